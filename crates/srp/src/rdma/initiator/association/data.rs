//! What a caller gives with a command and gets back: data in registered memory, the completion, the tag to abort it by.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use everywire_scsi::target::Residual;
use everywire_scsi::{SenseKey, Status};
use everywire_verbs::MemoryRegion;
use everywire_verbs::rt::Notify;

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

/// Names a command to whoever wants to abort it: by its tag once it is sent.
#[derive(Clone, Default)]
pub struct TagCell(Rc<Named>);

#[derive(Default)]
struct Named {
    sent: RefCell<Option<(u64, Weak<Channel>)>>,
    /// It waits to be sent.
    waits: Cell<bool>,
    given_up: Notify,
}

/// A command that waits to be sent, or for its end.
pub(super) struct Waiting<'a>(&'a TagCell);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.waits.set(false);
    }
}

impl TagCell {
    pub(in crate::rdma::initiator) fn set(&self, tag: u64, channel: &Rc<Channel>) {
        self.0.waits.set(false);
        *self.0.sent.borrow_mut() = Some((tag, Rc::downgrade(channel)));
    }

    /// Whether the command was sent.
    pub fn is_sent(&self) -> bool {
        self.0.sent.borrow().is_some()
    }

    /// Its tag, and the channel that it was sent on.
    pub(super) fn sent(&self) -> Option<(u64, Rc<Channel>)> {
        self.0.sent.borrow().as_ref().and_then(|(tag, channel)| Some((*tag, channel.upgrade()?)))
    }

    /// It is to be sent now, or once more.
    pub(super) fn waits(&self) -> Waiting<'_> {
        self.0.sent.borrow_mut().take();
        self.0.waits.set(true);
        Waiting(self)
    }

    /// Ends a command that waits to be sent; false if there is none.
    pub(super) fn give_up(&self) -> bool {
        let waits = self.0.waits.replace(false);
        if waits {
            self.0.given_up.notify_one();
        }
        waits
    }

    pub(super) async fn given_up(&self) {
        self.0.given_up.notified().await;
    }
}
