//! An InfiniBand subnet that runs in real time, in this process: switches and links of `everywire_fabric::ib`, a subnet
//! manager, and doors for programs.
//!
//! Start with [`Fabric`]: it takes a [`Plan`], runs it on a thread of its own, and sleeps when nothing happens. Programs
//! attach to its ports (`crate::fabric_port`), OpenSM and infiniband-diags come in by the ibsim protocol (`ibsim/`), and
//! [`control`] asks and tells it. Nothing here knows verbs: a port is packets, from LRH to VCRC.

pub mod control;
mod ibsim;
pub mod place;
pub mod plan;
pub mod snapshot;

pub use plan::Plan;
