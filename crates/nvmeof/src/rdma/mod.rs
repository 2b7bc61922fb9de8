//! NVMe over RDMA: the binding of [`crate::target`] and of an initiator to queue pairs. NVMe RDMA Transport 1.0.
//!
//! Both are async Rust on [`everywire_verbs::rt::Rt`] and [`everywire_verbs::Device`] alone, so they run on real sockets
//! and in simulation unchanged. A capsule is one SEND; the controller moves data with RDMA READ and WRITE.
//! What is not here: choosing devices, configuration files, processes.

pub mod initiator;
mod pool;
mod region;
pub mod target;

pub use initiator::{Controller, HostIdentity, InitiatorOptions, IoBuffer, Namespace, NvmeError, discover};
pub use target::{NvmeTarget, TargetOptions};
