//! A request in the target: what it is, and how far it has come.

use std::rc::Rc;

use everywire_block::IoBuf;
use everywire_scsi::target::{Outcome, Task};
use everywire_verbs::pool::PoolBuf;

use crate::iu::{Command, Descriptor, ResponseCode, TaskManagement};
use crate::target::channel::{Asked, Received};

/// A request from its arrival until its response is acknowledged.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) phase: Phase,
    /// Which request it holds: what comes late for another one finds nobody.
    pub(super) serial: u64,
    /// Its number among the requests of the nexus.
    pub(super) arrival: u64,
    pub(super) asked: Asked,
    /// The receive buffer that its information unit is in, until it is posted again.
    pub(super) iu: Option<u32>,
    /// Bytes of the information unit.
    pub(super) iu_len: usize,
    /// As it came, until the logical unit has it.
    pub(super) command: Option<Box<Command>>,
    /// Where its data are in the initiator's memory.
    pub(super) segments: Vec<Descriptor>,
    /// Segments that were moved, and bytes.
    pub(super) segment: usize,
    pub(super) moved: u32,
    pub(super) task: Option<Task>,
    pub(super) memory: Option<IoBuf>,
    /// Shared with the logical unit while it is at work: a channel that ends must not give away what is still written to.
    pub(super) data: Option<Rc<PoolBuf>>,
    pub(super) outcome: Option<Outcome>,
    /// Entries of the send queue it takes now.
    pub(super) entries: u32,
    /// A task management function that has ended.
    pub(super) managed: Option<(TaskManagement, ResponseCode)>,
    /// A task management function has ended it: no more of its data is asked for.
    pub(super) aborted: bool,
}

/// A request that found no free slot.
pub(super) struct Backlog {
    /// The receive buffer that it is in, and its bytes.
    pub(super) iu: (u32, usize),
    pub(super) arrival: u64,
    pub(super) request: Received,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    /// Holds nothing.
    #[default]
    Free,
    /// Needs a buffer and room to fetch the rest of its table.
    NeedsTable,
    /// The table is being read.
    FetchingTable,
    /// Needs a buffer for its data.
    NeedsBuffer,
    /// Needs room for READs.
    NeedsRead,
    /// READs are outstanding.
    Reading,
    /// The logical unit has it.
    Running,
    /// Needs room for WRITEs.
    NeedsWrite,
    /// WRITEs are outstanding, and there are more to come.
    Writing,
    /// Needs room for its response.
    NeedsResponse,
    /// A task management function.
    Managing,
    /// The response is posted.
    Answered,
}

impl Phase {
    /// Whether a task management function that covers it must wait for it.
    pub(super) fn is_under_way(self) -> bool {
        !matches!(self, Self::Free | Self::Answered | Self::Managing)
    }

    /// Whether it waits for a buffer.
    pub(super) fn wants_buffer(self) -> bool {
        matches!(self, Self::NeedsTable | Self::NeedsBuffer)
    }

    /// Whether it can be given up here and now.
    pub(super) fn may_stop(self) -> bool {
        matches!(self, Self::NeedsTable | Self::NeedsBuffer | Self::NeedsRead)
    }
}
