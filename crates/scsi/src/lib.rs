//! The SCSI block command set, once, for every transport: SPC-4, SBC-3, SAM-5.
//!
//! [`target`] is the device: ports, maps of logical units, I_T nexuses, tasks; [`lun`] the logical units over
//! [`everywire_block::Backend`]. A transport opens a [`target::Nexus`], submits CDBs, brings data into memory, runs the
//! task and sends its outcome. [`cdb`] and [`sense`] belong to initiators too. Futures returned here only use
//! `core::task::Waker`, and nothing here reads a clock, opens a socket or starts a thread.
//! What this does not do: bidirectional commands, ACA, protection information.
#![forbid(unsafe_code)]

mod bytes;
pub mod cdb;
mod inquiry;
pub mod limits;
pub mod lun;
mod mode;
pub mod reservations;
pub mod sense;
mod status;
pub mod target;
mod task_set;
pub mod transport_id;
mod unit_attention;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use sense::{Asc, Failure, Sense, SenseData, SenseKey};
pub use status::Status;
pub use task_set::Attribute;
pub use transport_id::{Protocol, TransportId};

/// Locks, whatever happened to an earlier holder: every critical section here leaves its data whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
