//! What one command goes through on its connection.
//!
//! States: free; waiting for a buffer or for room in the send queue; reading the host's data; in the backend; answered,
//! until the host has acknowledged the response. A capsule's receive buffer is posted again just before the response, or
//! at once for a held command. RDMA WRITEs and the response are posted as one chain, so the host never sees the response
//! before the data (NVMe RDMA Transport 1.0 §2.3).

use std::rc::Rc;

use everywire_block::IoBuf;
use everywire_verbs::{RKey, Remote, SendOp, SendWr};

use super::connection::{Connection, TAG_READ, TAG_RESPONSE};
use crate::pdu::sgl::{DataPointer, SglKind};
use crate::pdu::{Cqe, Sqe, Status};
use crate::rdma::pool::DataBuf;
use crate::target::{Direction, Job, Outcome, Ran, Step};

/// A command from its arrival until its response is acknowledged.
#[derive(Default)]
pub(super) struct Slot {
    phase: Phase,
    cid: u16,
    /// The receive buffer its capsule is in, until it is posted again.
    capsule: Option<u32>,
    job: Option<Job>,
    data: Option<DataBuf>,
    /// Key of the host that the response invalidates.
    invalidate: Option<u32>,
    /// Blocks of the host's memory read so far, for a command whose data comes in several.
    blocks_read: usize,
    bytes_read: usize,
    /// Entries of the send queue it takes now.
    entries: u32,
}

#[derive(Default)]
enum Phase {
    #[default]
    Free,
    /// Needs a buffer, or room for READs.
    NeedsData,
    /// Needs room for its response.
    Done(Outcome),
    /// READs are outstanding.
    Reading,
    /// The backend works.
    Running,
    /// The response is posted.
    Answered,
}

impl Connection {
    fn with<T>(&self, slot: u32, change: impl FnOnce(&mut Slot) -> T) -> T {
        change(&mut self.state.borrow_mut().slots[slot as usize])
    }

    /// A capsule of `len` bytes is in receive buffer `capsule`.
    pub(super) fn begin(self: &Rc<Self>, slot: u32, capsule: u32, len: u32) {
        let at = capsule as usize * self.parts.stride;
        let mut raw = [0; Sqe::LEN];
        self.parts.capsule_memory.load(at, &mut raw);
        let sqe = <Sqe as crate::pdu::Field>::get(&raw);
        let extra = IoBuf::new(self.parts.capsule_memory.clone(), at + Sqe::LEN, len as usize - Sqe::LEN);
        let step = self.shared.target.borrow_mut().begin(self.now.get(), self.id, &sqe, &extra);
        self.shared.dispatch();
        if self.is_torn_down() {
            return;
        }
        let mut invalidate = match sqe.sgl.kind() {
            SglKind::Keyed(block) if block.invalidate => Some(block.key),
            _ => None,
        };
        match step {
            Step::Held => {
                let mut state = self.state.borrow_mut();
                state.receives.push(self.parts.receive(capsule));
                state.free.push(slot);
            }
            Step::Respond(outcome) => {
                self.with(slot, |s| (s.cid, s.capsule, s.invalidate) = (sqe.cid, Some(capsule), invalidate));
                self.respond(slot, outcome);
            }
            Step::Run(job) => {
                invalidate = job.data.invalidate().or(invalidate);
                self.with(slot, |s| {
                    (s.cid, s.capsule, s.invalidate) = (sqe.cid, Some(capsule), invalidate);
                    (s.blocks_read, s.bytes_read, s.job) = (0, 0, Some(job));
                    s.phase = Phase::NeedsData;
                });
                let queued = !self.state.borrow().waiting.is_empty();
                if queued || !self.resume(slot) {
                    self.state.borrow_mut().waiting.push_back(slot);
                }
            }
        }
    }

    /// Goes on with a waiting command; false if it still cannot.
    pub(super) fn resume(self: &Rc<Self>, slot: u32) -> bool {
        let phase = self.with(slot, |s| std::mem::take(&mut s.phase));
        match phase {
            Phase::NeedsData => self.move_data(slot),
            Phase::Done(outcome) => self.try_respond(slot, outcome),
            // Only these two wait.
            Phase::Free | Phase::Reading | Phase::Running | Phase::Answered => true,
        }
    }

    fn move_data(self: &Rc<Self>, slot: u32) -> bool {
        let (direction, len, in_capsule) = self.with(slot, |s| match &s.job {
            Some(job) => match &job.data {
                DataPointer::InCapsule { offset, len } => (job.direction, job.len, Some((*offset, *len))),
                _ => (job.direction, job.len, None),
            },
            None => (Direction::None, 0, None),
        });
        match (direction, in_capsule) {
            (Direction::None, _) => self.run(slot, &self.nothing.clone()),
            (Direction::FromHost, Some((offset, len))) => {
                let capsule = self.with(slot, |s| s.capsule).unwrap_or_default();
                let at = capsule as usize * self.parts.stride + Sqe::LEN + offset;
                self.run(slot, &IoBuf::new(self.parts.capsule_memory.clone(), at, len as usize));
            }
            _ => {
                if !self.take_buffer(slot, len as usize) {
                    self.with(slot, |s| s.phase = Phase::NeedsData);
                    return false;
                }
                if direction == Direction::FromHost {
                    return self.read_some(slot);
                }
                let buf = self.with(slot, |s| s.data.as_ref().map(|data| data.io(len as usize)));
                self.run(slot, &buf.unwrap_or_else(|| self.nothing.clone()));
            }
        }
        true
    }

    fn take_buffer(self: &Rc<Self>, slot: u32, len: usize) -> bool {
        if self.with(slot, |s| s.data.is_some()) {
            return true;
        }
        let pool = &self.parts.context.pool;
        let buffer = pool.take(len);
        if buffer.is_none() {
            pool.wait(&self.poke);
        }
        let taken = buffer.is_some();
        self.with(slot, |s| s.data = buffer);
        taken
    }

    /// Posts READs for as many blocks as the send queue has room for, one entry being left for responses; false if none.
    fn read_some(self: &Rc<Self>, slot: u32) -> bool {
        let state = &mut *self.state.borrow_mut();
        let s = &mut state.slots[slot as usize];
        let (Some(job), Some(data)) = (&s.job, &s.data) else { return true };
        let blocks = &job.data.blocks()[s.blocks_read..];
        let count = blocks.len().min(state.room.saturating_sub(1) as usize);
        if count == 0 && !blocks.is_empty() {
            s.phase = Phase::NeedsData;
            return false;
        }
        for (i, block) in blocks[..count].iter().enumerate() {
            let remote = Remote { addr: block.addr, rkey: RKey(block.key) };
            // READs complete in order: the last one tells for all.
            let mut wr = SendWr::new(TAG_READ | u64::from(slot), SendOp::Read { remote })
                .with_sges([data.sge(s.bytes_read, block.len)]);
            wr.signaled = i + 1 == count;
            s.bytes_read += block.len as usize;
            state.sends.push(wr);
        }
        s.blocks_read += count;
        s.entries = count as u32;
        state.room -= count as u32;
        s.phase = Phase::Reading;
        true
    }

    /// The READs posted so far are done.
    pub(super) fn data_came(self: &Rc<Self>, slot: u32) {
        let (complete, buf) = {
            let state = &mut *self.state.borrow_mut();
            let s = &mut state.slots[slot as usize];
            state.room += std::mem::take(&mut s.entries);
            let (Some(job), Some(data)) = (&s.job, &s.data) else { return };
            (s.blocks_read == job.data.blocks().len(), data.io(job.len as usize))
        };
        if complete {
            self.run(slot, &buf);
        } else if !self.read_some(slot) {
            self.state.borrow_mut().waiting.push_back(slot);
        }
    }

    /// Has the work done; the answer goes out in this turn if it is there in this turn.
    fn run(self: &Rc<Self>, slot: u32, buf: &IoBuf) {
        let Some(job) = self.with(slot, |s| s.job.take()) else { return };
        let ran = self.shared.target.borrow_mut().run(self.now.get(), self.id, &job, buf);
        if job.is_connect() {
            self.identify();
        }
        self.with(slot, |s| {
            s.job = Some(job);
            s.phase = Phase::Running;
        });
        self.shared.dispatch();
        match ran {
            Ran::Done(outcome) => self.respond(slot, outcome),
            Ran::Pending(future) => {
                let connection = self.clone();
                self.shared.rt.spawn(async move {
                    let outcome = future.await;
                    connection.respond(slot, outcome);
                    connection.post();
                });
            }
        }
    }

    fn respond(self: &Rc<Self>, slot: u32, outcome: Outcome) {
        if !self.is_torn_down() && !self.try_respond(slot, outcome) {
            self.state.borrow_mut().waiting.push_back(slot);
        }
    }

    /// Posts the data, if any, and the response; false if the send queue has no room for both.
    fn try_respond(self: &Rc<Self>, slot: u32, outcome: Outcome) -> bool {
        let state = &mut *self.state.borrow_mut();
        let s = &mut state.slots[slot as usize];
        let blocks = match &s.job {
            Some(job) if job.direction == Direction::ToHost && outcome.is_ok() => job.data.blocks(),
            _ => &[],
        };
        let entries = blocks.len() as u32 + 1;
        if entries > state.room {
            s.phase = Phase::Done(outcome);
            return false;
        }
        let Some(cqe) = self.shared.target.borrow_mut().respond(self.id, s.cid, outcome) else { return true };
        if let Err(failure) = outcome {
            let status: Status = failure.status;
            tracing::debug!("{self}: command {:#06x}: {status}", s.cid);
        }
        if let Some(data) = &s.data {
            let mut sent = 0;
            for block in blocks {
                let remote = Remote { addr: block.addr, rkey: RKey(block.key) };
                let wr = SendWr::new(TAG_RESPONSE | u64::from(slot), SendOp::Write { remote });
                state.sends.push(wr.with_sges([data.sge(sent, block.len)]).unsignaled());
                sent += block.len as usize;
            }
        }
        let op = s.invalidate.map_or(SendOp::Send, |key| SendOp::SendInv(RKey(key)));
        let at = slot as usize * Cqe::LEN;
        self.parts.responses.write_at(at, &cqe.emit()).expect("a response slot lies inside its region");
        if let Some(capsule) = s.capsule.take() {
            state.receives.push(self.parts.receive(capsule));
        }
        s.entries = entries;
        s.phase = Phase::Answered;
        state.room -= entries;
        let wr = SendWr::new(TAG_RESPONSE | u64::from(slot), op);
        state.sends.push(wr.with_sges([self.parts.responses.sge(at..at + Cqe::LEN)]));
        true
    }

    /// The host has the response.
    pub(super) fn answered(self: &Rc<Self>, slot: u32) {
        let buffer = {
            let state = &mut *self.state.borrow_mut();
            let s = &mut state.slots[slot as usize];
            state.room += std::mem::take(&mut s.entries);
            s.phase = Phase::Free;
            s.job = None;
            s.invalidate = None;
            state.free.push(slot);
            s.data.take()
        };
        drop(buffer);
    }

    /// Sends the completion of a held command.
    pub(super) fn send_event(self: &Rc<Self>, slot: u32, cqe: Cqe) {
        let state = &mut *self.state.borrow_mut();
        if state.room == 0 {
            state.free.push(slot);
            state.events.push_front(cqe);
            return;
        }
        let at = slot as usize * Cqe::LEN;
        self.parts.responses.write_at(at, &cqe.emit()).expect("a response slot lies inside its region");
        let wr = SendWr::new(TAG_RESPONSE | u64::from(slot), SendOp::Send);
        state.sends.push(wr.with_sges([self.parts.responses.sge(at..at + Cqe::LEN)]));
        let s = &mut state.slots[slot as usize];
        (s.entries, s.phase) = (1, Phase::Answered);
        state.room -= 1;
    }
}
