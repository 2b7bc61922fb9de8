//! The project's own chores.
#![forbid(unsafe_code)]

fn main() {}
