//! Block backends: sparse RAM, file, null.
