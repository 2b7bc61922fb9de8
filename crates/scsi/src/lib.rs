//! The SCSI block command set, once, for every transport: SPC-4, SBC-3, SAM-5.
//!
//! [`target`] is the device: logical units over [`everywire_block::Backend`], I_T nexuses, task sets, reservations. A
//! transport opens a [`target::Nexus`], submits CDBs, brings data into memory, runs the task and sends its outcome.
//! [`client`] is what initiators need; [`cdb`] and [`sense`] belong to both. Futures returned here only use
//! `core::task::Waker`, and nothing here reads a clock, opens a socket or starts a thread.
//! What this does not do: bidirectional commands, ACA, protection information.
#![forbid(unsafe_code)]

mod bytes;
pub mod cdb;
pub mod sense;
mod status;

pub use sense::{Asc, Failure, Sense, SenseData, SenseKey};
pub use status::Status;
