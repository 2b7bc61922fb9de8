//! One channel: its completion loop, its resources, its end.
//!
//! Completions are taken in batches; everything they cause is collected and posted as one list of receives and one of sends,
//! receives first, so that a place given back is never used before its buffer is there. States: running, logging out, torn
//! down. What a single request goes through is in [`super::command`], [`super::data`] and [`super::manage`].

mod end;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use everywire_block::{IoBuf, IoMemory};
use everywire_verbs::peer_log::About;
use everywire_verbs::rt::{Either, Notify, select};
use everywire_verbs::{
    Completion, Connection, Cq, DisconnectReason, MemoryRegion, Qp, RecvWr, SendOp, SendWr, WcOpcode,
    WcStatus,
};

use super::Shared;
use super::accept::{Context, Who};
use super::nexus::SharedNexus;
use super::slot::{Backlog, Phase, Slot};
use crate::PortId;
use crate::iu::LogoutReason;
use crate::target::{self, Accepted, ChannelId, Received};

/// Completions taken at once.
const BATCH: usize = 64;
/// How long the connection manager has to say why work was flushed, and an initiator to take a logout.
const PATIENCE: Duration = Duration::from_secs(1);
/// Room for one information unit to the initiator: SRP_RSP with response and sense data.
pub(super) const RESPONSE_LEN: usize = 320;

/// What a work request id says besides its index.
pub(super) const TAG_DATA: u64 = 1 << 32;
pub(super) const TAG_RESPONSE: u64 = 2 << 32;
const TAG_LOGOUT: u64 = 3 << 32;

/// Memory and queues around a queue pair.
pub(super) struct Parts {
    pub(super) context: Rc<Context>,
    pub(super) cq: Cq,
    pub(super) ius: MemoryRegion,
    pub(super) iu_memory: Arc<dyn IoMemory>,
    pub(super) responses: MemoryRegion,
    /// Bytes from one information unit to the next.
    pub(super) stride: usize,
    /// Bytes an information unit may have.
    pub(super) iu_len: usize,
    pub(super) slots: usize,
    pub(super) send_wr: u32,
}

impl Parts {
    pub(super) fn receive(&self, index: u32) -> RecvWr {
        let at = index as usize * self.stride;
        RecvWr::new(index.into(), [self.ius.sge(at..at + self.iu_len)])
    }
}

/// What changes while a channel runs.
pub(super) struct State {
    pub(super) protocol: target::Channel,
    /// Made when first needed.
    pub(super) slots: Vec<Slot>,
    most_slots: usize,
    free: Vec<u32>,
    serial: u64,
    /// Slots waiting for a buffer, in order.
    pub(super) waiting: VecDeque<u32>,
    /// Slots waiting for room in the send queue, in order. What they hold comes back when they go on, so those that wait for
    /// a buffer must not keep them.
    pub(super) outgoing: VecDeque<u32>,
    pub(super) backlog: VecDeque<Backlog>,
    /// Free entries of the send queue.
    pub(super) room: u32,
    pub(super) sends: Vec<SendWr>,
    pub(super) receives: Vec<RecvWr>,
}

impl State {
    fn take_slot(&mut self) -> Option<u32> {
        let slot = self.free.pop().or_else(|| {
            let new = self.slots.len();
            (new < self.most_slots).then(|| self.slots.push(Slot::default()))?;
            Some(new as u32)
        })?;
        self.serial += 1;
        self.slots[slot as usize] = Slot { serial: self.serial, ..Slot::default() };
        Some(slot)
    }
}

pub(super) struct Channel {
    pub(super) shared: Rc<Shared>,
    pub(super) parts: Parts,
    pub(super) state: RefCell<State>,
    pub(super) nexus: RefCell<Option<Rc<SharedNexus>>>,
    pub(super) nothing: IoBuf,
    id: ChannelId,
    who: Who,
    qp: Qp,
    cm: Connection,
    /// Buffers came back, work ended outside the completion loop, or the end has come.
    pub(super) poke: Notify,
    logged_out: Notify,
    logging_out: Cell<bool>,
    torn_down: Cell<bool>,
    flushed: Cell<bool>,
}

impl Channel {
    pub(super) fn start(
        shared: &Rc<Shared>,
        accepted: &Accepted,
        who: Who,
        nexus: Rc<SharedNexus>,
        (qp, cm): (Qp, Connection),
        parts: Parts,
        luns: usize,
    ) {
        let limit = accepted.response.request_limit_delta as u16;
        let state = State {
            protocol: target::Channel::new(limit, accepted.immediate_offset),
            slots: Vec::new(),
            most_slots: parts.slots,
            free: Vec::new(),
            serial: 0,
            waiting: VecDeque::new(),
            outgoing: VecDeque::new(),
            backlog: VecDeque::new(),
            room: parts.send_wr - 1, // one is the logout's
            sends: Vec::new(),
            receives: Vec::new(),
        };
        let channel = Rc::new(Self {
            shared: shared.clone(),
            id: accepted.channel,
            nothing: IoBuf::new(parts.iu_memory.clone(), 0, 0),
            parts,
            state: RefCell::new(state),
            nexus: RefCell::new(Some(nexus.clone())),
            who,
            qp,
            cm,
            poke: Notify::new(),
            logged_out: Notify::new(),
            logging_out: Cell::new(false),
            torn_down: Cell::new(false),
            flushed: Cell::new(false),
        });
        shared.channels.borrow_mut().insert(channel.id, channel.clone());
        nexus.add(&channel);
        if shared.log.may(About::Event) {
            tracing::info!("{channel}: logged in, {luns} logical units");
        }
        shared.rt.spawn(channel.clone().completions());
        shared.rt.spawn(channel.clone().watch());
        if shared.stopping.get() {
            channel.log_out(LogoutReason::NONE, &"the target shuts down");
        }
    }

    pub(super) fn target_port(&self) -> PortId {
        self.who.target
    }

    /// The completion loop.
    async fn completions(self: Rc<Self>) {
        let mut batch = Vec::with_capacity(BATCH);
        // After a flush nothing more comes that anybody would wait for.
        while !self.torn_down.get() && !self.flushed.get() {
            if let Err(error) = self.parts.cq.wait(&mut batch, BATCH).await {
                return self.tear_down(&error);
            }
            for completion in batch.drain(..) {
                self.completed(&completion);
            }
            self.pump();
            self.post();
        }
    }

    /// Everything but completions: the peer's disconnect, and what ended elsewhere.
    async fn watch(self: Rc<Self>) {
        let mut closed = std::pin::pin!(self.cm.closed());
        while !self.torn_down.get() {
            match select(closed.as_mut(), self.poke.notified()).await {
                Either::First(reason) => self.ended(reason),
                Either::Second(()) => {
                    self.pump();
                    self.post();
                }
            }
        }
    }

    fn completed(self: &Rc<Self>, completion: &Completion) {
        if self.torn_down.get() {
            return;
        }
        let index = completion.wr_id as u32;
        if completion.status != WcStatus::Success {
            // The first error says what happened; the flushes that follow do not.
            let what = match completion.opcode {
                WcOpcode::RdmaRead => "reading the initiator's data",
                WcOpcode::RdmaWrite => "writing to the initiator's memory",
                WcOpcode::Send => "sending a response",
                _ => "receiving a request",
            };
            let why = format!("{what}: {}", completion.status);
            return match completion.status {
                WcStatus::WrFlushErr => self.flush_began(why),
                _ => self.tear_down(&why),
            };
        }
        match (completion.opcode, completion.wr_id & !0xffff_ffff) {
            (WcOpcode::Recv, _) => self.received(index, completion.byte_len as usize),
            (_, TAG_LOGOUT) => self.logged_out.notify_one(),
            _ if self.logging_out.get() => {}
            (_, TAG_DATA) => self.data_moved(index),
            _ => self.answered(index),
        }
    }

    fn ended(self: &Rc<Self>, reason: DisconnectReason) {
        match reason {
            DisconnectReason::Peer => self.tear_down(&"disconnected by the initiator"),
            reason => self.tear_down(&reason),
        }
    }

    fn received(self: &Rc<Self>, iu: u32, len: usize) {
        if self.logging_out.get() {
            return;
        }
        let at = iu as usize * self.parts.stride;
        // Immediate data are not looked at here: they stay where they are.
        let mut head = [0; 6];
        let peeked = len.min(head.len());
        self.parts.iu_memory.load(at, &mut head[..peeked]);
        let immediate = head[0] == crate::iu::code::CMD && head[5] >> 4 == 3;
        let shown = if immediate { len.min(LONGEST_HEAD) } else { len };
        let mut bytes = vec![0; shown];
        self.parts.iu_memory.load(at, &mut bytes);
        let received = self.state.borrow_mut().protocol.receive(&bytes);
        match received {
            Ok(Received::Nothing) => {
                self.state.borrow_mut().receives.push(self.parts.receive(iu));
            }
            Ok(Received::Logout) => self.tear_down(&"logged out by the initiator"),
            Ok(request) => {
                let arrival = self.nexus.borrow().as_ref().map_or(0, |nexus| nexus.arrival());
                self.state.borrow_mut().backlog.push_back(Backlog { iu: (iu, len), arrival, request });
                self.take_requests();
            }
            Err(violation) => self.log_out(violation.reason, &violation.why),
        }
    }

    /// Begins requests while there are slots for them.
    fn take_requests(self: &Rc<Self>) {
        loop {
            let (slot, Backlog { iu: (iu, len), request, .. }) = {
                let state = &mut *self.state.borrow_mut();
                if state.backlog.is_empty() {
                    return;
                }
                let Some(slot) = state.take_slot() else { return };
                let Some(next) = state.backlog.pop_front() else { return };
                let s = &mut state.slots[slot as usize];
                (s.iu, s.iu_len, s.arrival) = (Some(next.iu.0), next.iu.1, next.arrival);
                (slot, next)
            };
            tracing::trace!("{self}: information unit {iu} of {len} bytes in slot {slot}");
            match request {
                Received::Command(command) => self.begin(slot, command),
                Received::Manage(manage) => self.manage(slot, manage),
                Received::Logout | Received::Nothing => {}
            }
        }
    }

    /// Gives waiting work what has become free.
    pub(super) fn pump(self: &Rc<Self>) {
        self.take_requests();
        self.drain(|state| &mut state.outgoing);
        self.drain(|state| &mut state.waiting);
        self.send_requests();
    }

    /// Stops at the first that still cannot go on: those behind it must not overtake for ever.
    fn drain(self: &Rc<Self>, line: impl Fn(&mut State) -> &mut VecDeque<u32>) {
        loop {
            let Some(slot) = line(&mut self.state.borrow_mut()).pop_front() else { return };
            if !self.resume(slot) {
                let state = &mut *self.state.borrow_mut();
                let phase = state.slots[slot as usize].phase;
                // It may have a buffer by now, and want for room.
                let now = if phase.wants_buffer() { &mut state.waiting } else { &mut state.outgoing };
                now.push_front(slot);
                return;
            }
        }
    }

    /// The target's own requests: credits that would be stranded, asynchronous events.
    fn send_requests(self: &Rc<Self>) {
        loop {
            let state = &mut *self.state.borrow_mut();
            if state.room == 0 {
                return;
            }
            let Some(slot) = state.take_slot() else { return };
            match state.protocol.poll_request() {
                Some(bytes) => self.put_response(state, slot, &bytes),
                None => return state.free.push(slot),
            }
        }
    }

    /// Puts an information unit into a slot's room, and into the list to send.
    pub(super) fn put_response(&self, state: &mut State, slot: u32, bytes: &[u8]) {
        let at = slot as usize * RESPONSE_LEN;
        let len = bytes.len().min(RESPONSE_LEN);
        self.parts.responses.write_at(at, &bytes[..len]).expect("a response slot lies inside its region");
        let s = &mut state.slots[slot as usize];
        if let Some(iu) = s.iu.take() {
            state.receives.push(self.parts.receive(iu));
        }
        s.entries = 1;
        s.phase = Phase::Answered;
        state.room -= 1;
        let wr = SendWr::new(TAG_RESPONSE | u64::from(slot), SendOp::Send);
        state.sends.push(wr.with_sges([self.parts.responses.sge(at..at + len)]));
    }

    /// A slot holds nothing any more.
    pub(super) fn release(&self, slot: u32) {
        let state = &mut *self.state.borrow_mut();
        let s = std::mem::take(&mut state.slots[slot as usize]);
        state.room += s.entries;
        if let Some(iu) = s.iu {
            state.receives.push(self.parts.receive(iu));
        }
        state.free.push(slot);
    }

    /// Posts what was collected.
    pub(super) fn post(self: &Rc<Self>) {
        if self.torn_down.get() || self.logging_out.get() {
            return;
        }
        let failed = {
            let State { sends, receives, .. } = &mut *self.state.borrow_mut();
            let receives =
                if receives.is_empty() { Ok(()) } else { self.qp.post_recv_list(receives.drain(..)) };
            let sends = if sends.is_empty() { Ok(()) } else { self.qp.post_send_list(sends.drain(..)) };
            receives.and(sends)
        };
        if let Err(error) = failed {
            self.tear_down(&error);
        }
    }

    pub(super) fn event(&self, lun: u64, sense: &[u8]) {
        self.state.borrow_mut().protocol.event(lun, sense.to_vec());
        self.poke.notify_one();
    }
}

/// Bytes of a command with immediate data before these, at most.
const LONGEST_HEAD: usize = 48 + 252 + 4 + 16;

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Who { initiator, name, .. } = &self.who;
        write!(f, "{} -> {}: {initiator} at {name}", self.cm.peer(), self.cm.local())
    }
}
