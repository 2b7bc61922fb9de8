//! The target's datamover on RDMA: registered memory for each command, READs from the initiator, WRITEs to it.
//!
//! Read RFC 7145 §7.3.5 and §7.3.6 (Data-In is an RDMA WRITE, R2T an RDMA READ) and §9.3. A command's STags are known by its tag.
//! Memory comes from one pool for all connections of a listener; who finds it empty waits in line. A buffer is kept for as
//! long as anything may still reach it: the backend, a READ, a WRITE.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use everywire_block::{IoBuf, IoMemory};
use everywire_verbs::ids::IdMap;
use everywire_verbs::pool::{BufferPool, PoolBuf};
use everywire_verbs::rt::Notify;
use everywire_verbs::{MemoryRegion, Pd, RKey, Remote, SendOp, SendWr, VerbsError};

use super::link::{Link, message};
use super::{ControlHeader, Header, Tagged};
use crate::session::scsi;
use crate::session::target::{Response, Session, TaskId};

/// Largest buffer of one command.
pub(super) const MAX_BUFFER: usize = 32 << 20;
/// Bytes of buffers beyond which commands of a connection wait for each other: what is copied into a buffer should still be in the
/// processor's cache when it is sent (docs/performance.md).
const AT_ONCE: usize = 4 << 20;
/// Additional sense code of a command for which there is not enough memory (SPC-4 annex D).
const INSUFFICIENT_RESOURCES: (u8, u8) = (0x55, 0x03);

/// What has become complete on a target's connection.
pub(super) enum Done {
    /// A message, and what it had waited for: its memory is free.
    Sent { _memory: Option<Rc<Held>> },
    /// The data of a command is here.
    Fetched { task: TaskId, _memory: Rc<Held> },
}

/// The memory of all connections of one listener.
pub(super) struct Memory {
    pool: Rc<BufferPool>,
    io: Arc<dyn IoMemory>,
}

/// A registered region as the block layer sees it.
struct Registered(MemoryRegion);

impl IoMemory for Registered {
    fn load(&self, at: usize, into: &mut [u8]) {
        self.0.read_at(at, into).expect("an I/O buffer lies inside its region");
    }

    fn store(&self, at: usize, from: &[u8]) {
        self.0.write_at(at, from).expect("an I/O buffer lies inside its region");
    }
}

impl Memory {
    pub(super) fn new(pd: &Pd, bytes: usize) -> Result<Rc<Memory>, VerbsError> {
        let pool = BufferPool::new(pd, bytes, MAX_BUFFER, pd.device().read_sink_access())?;
        let io = Arc::new(Registered(pool.region().clone()));
        Ok(Rc::new(Memory { pool, io }))
    }

    /// Bytes that commands hold.
    pub(super) fn in_use(&self) -> usize {
        self.pool.in_use()
    }
}

/// The buffers of a connection that have not come back, whoever has them.
struct Out {
    bytes: Cell<usize>,
    /// A command waits for some to come back.
    waited_for: Cell<bool>,
    /// Wakes the connection.
    poke: Notify,
}

/// One of them.
pub(super) struct Held {
    buffer: PoolBuf,
    len: usize,
    out: Rc<Out>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.out.bytes.set(self.out.bytes.get() - self.len);
        if self.out.waited_for.take() {
            self.out.poke.notify_one();
        }
    }
}

/// What the other end can do.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    /// It takes SEND with Invalidate.
    pub(super) invalidate: bool,
    /// Its write STags cover only what it does not send unasked.
    pub(super) solicited_only: bool,
}

/// Transfers of one connection.
pub(super) struct Mover {
    memory: Rc<Memory>,
    peer: Peer,
    tags: IdMap<u32, ControlHeader>,
    buffers: IdMap<TaskId, Rc<Held>>,
    out: Rc<Out>,
    starving: VecDeque<(TaskId, usize)>,
    /// Tags of commands that the session ignored are cleared away when there are so many.
    many: usize,
}

impl Mover {
    /// With at most `commands` under way; `poke` wakes the connection when there is memory again.
    pub(super) fn new(memory: Rc<Memory>, peer: Peer, commands: usize, poke: Notify) -> Mover {
        let many = 2 * commands;
        Mover {
            memory,
            peer,
            tags: IdMap::default(),
            buffers: IdMap::default(),
            out: Rc::new(Out { bytes: Cell::new(0), waited_for: Cell::new(false), poke }),
            starving: VecDeque::new(),
            many,
        }
    }

    /// A command came with these STags.
    pub(super) fn command(&mut self, session: &Session, itt: u32, header: ControlHeader) {
        // One that uses the tag of another is rejected, and must not touch what belongs to that one.
        if session.knows(itt) {
            return;
        }
        if self.tags.len() >= self.many {
            self.tags.retain(|itt, _| session.knows(*itt));
        }
        self.tags.insert(itt, header);
    }

    /// The buffer of a task, for as long as it is at work.
    pub(super) fn buffer(&self, task: TaskId) -> Option<Rc<Held>> {
        self.buffers.get(&task).cloned()
    }

    /// Memory for a command, now or when there is some.
    pub(super) fn allocate(&mut self, session: &mut Session, task: TaskId, len: usize) {
        if len > MAX_BUFFER {
            let (asc, ascq) = INSUFFICIENT_RESOURCES;
            return session.finished(task, Some(scsi::aborted(asc, ascq)));
        }
        self.starving.push_back((task, len));
        if self.starving.len() == 1 {
            self.feed(session);
        }
    }

    /// Gives memory to those who wait for it, in their order; a large one is never overtaken.
    pub(super) fn feed(&mut self, session: &mut Session) {
        while let Some(&(task, len)) = self.starving.front() {
            let out = self.out.bytes.get();
            if out > 0 && out + len > AT_ONCE {
                return self.out.waited_for.set(true);
            }
            let pool = &self.memory.pool;
            let Some(buffer) = pool.take(len) else { return pool.wait(&self.out.poke) };
            self.starving.pop_front();
            let memory = IoBuf::new(self.memory.io.clone(), buffer.at(), len);
            self.out.bytes.set(out + len);
            self.buffers.insert(task, Rc::new(Held { buffer, len, out: self.out.clone() }));
            session.memory(task, memory);
        }
    }

    /// Nothing of this task is wanted any more.
    pub(super) fn release(&mut self, task: TaskId) {
        self.buffers.remove(&task);
        self.tags.remove(&task.itt);
        self.starving.retain(|(waiting, _)| *waiting != task);
    }

    /// Reads bytes `from..to` of the initiator's data; `unsolicited` of them came before any was asked for.
    pub(super) fn get_data(
        &mut self,
        session: &mut Session,
        link: &mut Link<Done>,
        task: TaskId,
        from: usize,
        to: usize,
    ) {
        let tag = self.tags.get(&task.itt).and_then(|header| header.write);
        let (Some(tag), Some(memory)) = (tag, self.buffers.get(&task)) else {
            // RFC 7145 §9.3: what is not sent with the command must have an STag.
            tracing::debug!("command {:#x}: bytes {from} to {to} of its data have no write STag", task.itt);
            return session.transfer_failed(task);
        };
        // What came unasked is all before `from`.
        let skip = if self.peer.solicited_only { 0 } else { from as u64 };
        let read = SendWr::new(0, SendOp::Read { remote: remote(tag, skip) })
            .with_sge(memory.buffer.sge(from, (to - from) as u32));
        link.push([read], Done::Fetched { task, _memory: memory.clone() });
    }

    /// Sends a command's data and status.
    ///
    /// # Errors
    /// The initiator gave no STag for data that it wants: the connection cannot go on.
    pub(super) fn respond(
        &mut self,
        session: &mut Session,
        link: &mut Link<Done>,
        response: &Response,
    ) -> Result<(), String> {
        let header = self.tags.get(&response.task.itt).copied().unwrap_or_default();
        let memory = self.buffers.get(&response.task).cloned();
        self.release(response.task);
        let write = match (&memory, header.read) {
            _ if response.data_in == 0 => None,
            (Some(memory), Some(tag)) => {
                let write = SendWr::new(0, SendOp::Write { remote: remote(tag, 0) });
                Some(write.with_sge(memory.buffer.sge(0, response.data_in as u32)))
            }
            _ => {
                return Err(format!(
                    "command {:#x} reads and has no read STag (RFC 7145 §9.3)",
                    response.task.itt
                ));
            }
        };
        // One STag can go with the response (RFC 7145 §7.3.2).
        let tag = header.read.or(header.write).filter(|_| self.peer.invalidate);
        let op = tag.map_or(SendOp::Send, |tag| SendOp::SendInv(RKey(tag.stag)));
        // Data-In and R2T PDUs do not exist here, and are not counted.
        let pdu = session.scsi_response(response, 0);
        let bytes = message(&Header::Control(ControlHeader::default()), Some(&pdu));
        link.send(write, op, bytes, Done::Sent { _memory: memory })
    }
}

fn remote(tag: Tagged, skip: u64) -> Remote {
    Remote { addr: tag.base.wrapping_add(skip), rkey: RKey(tag.stag) }
}
