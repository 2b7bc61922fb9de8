//! Key table tests.
