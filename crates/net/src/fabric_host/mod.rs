//! An InfiniBand subnet that runs in real time, in this process: switches and links of `everywire_fabric::ib`, a subnet
//! manager, and doors for programs.
//!
//! Start with [`Plan`], what it is made from; [`snapshot`] is what it looks like, and [`control`] asks and tells one that
//! runs. Nothing here knows verbs: a port is packets, from LRH to VCRC.

pub mod control;
pub mod place;
pub mod plan;
pub mod snapshot;

pub use plan::Plan;
