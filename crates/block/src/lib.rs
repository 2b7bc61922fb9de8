//! Block backends: what a storage target keeps its bytes in.
//!
//! A [`Backend`] is an array of logical blocks with read, write, flush, write-zeroes and discard. Three kinds exist:
//! sparse RAM ([`RamBackend`]), a file or block device ([`FileBackend`], io_uring where the kernel has it) and a null
//! backend for benchmarks. [`BackendSpec`] reads `ram:256MiB`, `file:PATH[,ro][,size=N]` and `null:1GiB`.
//! Futures returned here work under any executor: they only use `core::task::Waker`.
//! This crate knows nothing of RDMA or of any storage protocol; data moves through the [`IoMemory`] trait.
#![deny(unsafe_code)]

mod backend;
#[allow(unsafe_code)]
pub mod buffer;
mod error;
#[allow(unsafe_code)]
mod file;
mod identity;
pub mod memory;
mod null;
mod ram;
mod size;
mod spec;

pub use backend::{Backend, Extent, Geometry, IoBuf, IoFuture, IoMemory, IoResult};
pub use buffer::SharedBuffer;
pub use error::{BlockError, BlockOp};
pub use file::{FileBackend, FileOptions};
pub use identity::FileIdentity;
pub use null::NullBackend;
pub use ram::RamBackend;
pub use size::{SizeError, format_size, parse_size};
pub use spec::{BackendSpec, SpecError, parse_spec};
