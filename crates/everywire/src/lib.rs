//! RDMA on every wire, in user space: the facade for Rust programs.
#![forbid(unsafe_code)]
