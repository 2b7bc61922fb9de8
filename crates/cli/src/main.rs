//! The `everywire` program.
#![forbid(unsafe_code)]

fn main() {}
