//! What a caller gives with a command and gets back: data in registered memory, the completion, the tag to abort it by.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use everywire_scsi::target::Residual;
use everywire_scsi::{SenseKey, Status};
use everywire_verbs::MemoryRegion;

use crate::iu::Response;
use crate::rdma::initiator::channel::Channel;

/// Data of a command, in registered memory that [`Initiator::buffer`] gave.
#[derive(Debug, Clone, Copy)]
pub enum IoData<'a> {
    /// None.
    None,
    /// To the target.
    Out {
        /// Memory.
        region: &'a MemoryRegion,
        /// First byte.
        at: usize,
        /// Bytes.
        len: u32,
    },
    /// From the target.
    In {
        /// Memory.
        region: &'a MemoryRegion,
        /// First byte.
        at: usize,
        /// Bytes.
        len: u32,
    },
}

/// A command's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// Status.
    pub status: Status,
    /// Sense data.
    pub sense: Vec<u8>,
    /// Lengths that differ, of the direction that the command had.
    pub residual: Residual,
}

impl Completion {
    pub(super) fn of(response: &Response, out: bool) -> Self {
        Self {
            status: Status(response.status),
            sense: response.sense.clone(),
            residual: if out { response.out_residual } else { response.in_residual },
        }
    }

    /// The sense key of a CHECK CONDITION.
    pub fn sense_key(&self) -> Option<SenseKey> {
        everywire_scsi::Sense::parse(&self.sense).map(|sense| sense.key)
    }
}

/// Where a command's tag stands once it is sent, for whoever wants to abort it.
#[derive(Clone, Default)]
pub struct TagCell(pub(super) Rc<RefCell<Option<Sent>>>);

/// A tag, and the channel that it was sent on.
type Sent = (u64, Weak<Channel>);

impl TagCell {
    pub(in crate::rdma::initiator) fn set(&self, tag: u64, channel: &Rc<Channel>) {
        *self.0.borrow_mut() = Some((tag, Rc::downgrade(channel)));
    }

    /// Whether the command was sent.
    pub fn is_sent(&self) -> bool {
        self.0.borrow().is_some()
    }
}
