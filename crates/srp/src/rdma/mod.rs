//! SRP on queue pairs: the binding of [`crate::target`] and [`crate::initiator`] to RC connections. SRP r16a annex B.
//!
//! Both are async Rust on [`everywire_verbs::rt::Rt`] and [`everywire_verbs::Device`] alone, so they run on real sockets and in
//! simulation unchanged. An information unit is one SEND; the target moves data with RDMA READ and WRITE to the descriptors'
//! keys, straight between the initiator's memory and the buffers that backends copy into.
//! What is not here: choosing devices, configuration files, processes.

pub mod initiator;
mod region;
pub mod target;

pub use initiator::{Initiator, InitiatorOptions, SrpError};
pub use target::{SrpTarget, TargetOptions};
