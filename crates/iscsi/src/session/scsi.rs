//! What a session asks of the device server behind it: one I_T nexus.
//!
//! Read SAM-5 §5.4 (Execute Command) and §7 (task management). `everywire-scsi` implements it for real logical units
//! (`target::lun`); tests put something small in its place. Memory comes from the transport, so that data lies where the
//! transport can move it.

use everywire_block::{IoBuf, IoFuture};
use smallvec::SmallVec;

/// A command descriptor block. Those of up to 16 bytes, which is nearly all, take no memory of their own.
pub type Cdb = SmallVec<[u8; 16]>;

/// A command as the transport delivers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Logical unit, as in the PDU.
    pub lun: u64,
    /// Names it in this nexus until it ends; never reused within a session.
    pub tag: u64,
    /// Task attribute: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA (RFC 7143 §11.3.1).
    pub attribute: u8,
    /// The CDB.
    pub cdb: Cdb,
    /// Bytes the initiator is ready to send.
    pub data_out: u32,
    /// Bytes the initiator is ready to receive.
    pub data_in: u32,
}

/// What a command's length differs by from what the initiator expected (SAM-5 §5.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Residual {
    /// Nothing.
    #[default]
    None,
    /// So many bytes fewer.
    Under(u32),
    /// So many bytes more, which were not moved.
    Over(u32),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Status code.
    pub status: u8,
    /// Sense data; empty with most statuses.
    pub sense: Vec<u8>,
    /// Bytes of the command's memory that go to the initiator.
    pub data_in: u32,
    /// Lengths that differ.
    pub residual: Residual,
}

/// A command that was accepted into the task set.
pub trait Task {
    /// Bytes to have in memory before it runs; at most the command's `data_out`.
    fn data_out(&self) -> u32;
    /// Most bytes that it will put into memory; at most the command's `data_in`.
    fn data_in(&self) -> u32;
    /// Runs it. The memory holds `data_out()` bytes and has room for `data_in()`. `None`: aborted, and no status is due.
    fn execute(self: Box<Self>, memory: IoBuf) -> IoFuture<Option<Outcome>>;
}

/// What became of a command at its submission.
pub enum Submitted {
    /// It ended at once.
    Done(Outcome),
    /// It is in the task set.
    Task(Box<dyn Task>),
}

/// A task management function and what it applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// One task of this nexus.
    AbortTask {
        /// Its tag.
        tag: u64,
    },
    /// All tasks of this nexus.
    AbortTaskSet,
    /// All tasks of all nexuses.
    ClearTaskSet,
    /// Nothing here establishes an ACA.
    ClearAca,
    /// The logical unit.
    LunReset,
    /// Every logical unit of the target.
    TargetReset,
}

/// An I_T nexus. Dropped, it aborts its tasks.
pub trait Nexus {
    /// A command; in the order of delivery.
    fn submit(&self, command: &Command) -> Submitted;

    /// A task management function on `lun`; ready when every task that it ends has ended.
    fn manage(&self, lun: u64, function: Function) -> IoFuture<crate::pdu::TaskResult>;
}

/// Fixed-format sense data of the conditions that belong to the transport (RFC 7143 §11.4.7.2): ABORTED COMMAND with this
/// additional sense code and qualifier.
pub(crate) fn aborted(asc: u8, ascq: u8) -> Outcome {
    let mut sense = vec![0; 18];
    (sense[0], sense[2], sense[7], sense[12], sense[13]) = (0x70, 0x0b, 10, asc, ascq);
    Outcome { status: 0x02, sense, ..Outcome::default() }
}
