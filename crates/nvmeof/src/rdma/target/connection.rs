//! One connection: its completion loop, its resources, its end.
//!
//! Completions are taken in batches; everything they cause is collected and posted as one list of receives and one of
//! sends, receives first, so that a freed entry is never advertised before its buffer is there. States: running, torn
//! down. What a single command goes through is in [`super::command`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use everywire_block::{IoBuf, IoMemory};
use everywire_verbs::rt::{Either, Notify, select};
use everywire_verbs::trains::Trains;
use everywire_verbs::{Completion, Cq, DisconnectReason, MemoryRegion, Qp, RecvWr, WcOpcode, WcStatus};

use super::Shared;
use super::accept::Context;
use super::command::Slot;
use crate::pdu::{Cqe, Sqe};
use crate::target::{QueueId, QueueInfo};
use everywire_verbs::peer_log::About;

/// Completions taken at once.
const BATCH: usize = 64;

/// How long the connection manager has to say why work was flushed.
const CAUSE_PATIENCE: Duration = Duration::from_secs(1);

/// What a work request id says besides its index.
pub(super) const TAG_READ: u64 = 1 << 32;
pub(super) const TAG_RESPONSE: u64 = 2 << 32;

/// Memory and queues around a queue pair.
pub(super) struct Parts {
    pub(super) context: Rc<Context>,
    pub(super) cq: Cq,
    pub(super) capsules: MemoryRegion,
    pub(super) capsule_memory: Arc<dyn IoMemory>,
    pub(super) responses: MemoryRegion,
    /// Bytes from one capsule to the next.
    pub(super) stride: usize,
    /// Bytes a capsule may have.
    pub(super) capsule_len: usize,
    pub(super) slots: usize,
    pub(super) send_wr: u32,
}

impl Parts {
    pub(super) fn receive(&self, index: u32) -> RecvWr {
        let at = index as usize * self.stride;
        RecvWr::new(index.into(), [self.capsules.sge(at..at + self.capsule_len)])
    }
}

/// What changes while a connection runs.
pub(super) struct State {
    /// Made when first needed: most hosts never have as many commands under way as their queues allow.
    pub(super) slots: Vec<Slot>,
    /// As many there may be.
    pub(super) most_slots: usize,
    pub(super) free: Vec<u32>,
    /// Slots waiting for a buffer or for room in the send queue, in order.
    pub(super) waiting: VecDeque<u32>,
    /// Capsules (index, bytes) that found no free slot.
    pub(super) backlog: VecDeque<(u32, u32)>,
    /// Completions of held commands that found no free slot.
    pub(super) events: VecDeque<Cqe>,
    /// Free entries of the send queue.
    pub(super) room: u32,
    /// Data and responses of this turn.
    pub(super) sends: Trains,
    pub(super) receives: Vec<RecvWr>,
}

impl State {
    /// A free slot, or a new one.
    pub(super) fn take_slot(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let new = self.slots.len();
            (new < self.most_slots).then(|| self.slots.push(Slot::default()))?;
            Some(new as u32)
        })
    }

    fn has_slot(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.most_slots
    }
}

pub(super) struct Connection {
    pub(super) shared: Rc<Shared>,
    pub(super) id: QueueId,
    pub(super) parts: Parts,
    pub(super) state: RefCell<State>,
    pub(super) nothing: IoBuf,
    /// Whose it is; the target forgets that with the queue, the log must not.
    info: RefCell<Option<Rc<QueueInfo>>>,
    qp: Qp,
    cm: everywire_verbs::Connection,
    /// Buffers came back, the deadline is another one, or the end has come.
    pub(super) poke: Notify,
    torn_down: Cell<bool>,
    /// Work was flushed, and the cause is being waited for.
    flushed: Cell<bool>,
    /// The time when the batch being worked on was taken.
    pub(super) now: Cell<Instant>,
}

impl Connection {
    pub(super) fn start(
        shared: Rc<Shared>,
        id: QueueId,
        qp: Qp,
        cm: everywire_verbs::Connection,
        parts: Parts,
    ) {
        let state = State {
            slots: Vec::new(),
            most_slots: parts.slots,
            free: Vec::new(),
            waiting: VecDeque::new(),
            backlog: VecDeque::new(),
            events: VecDeque::new(),
            room: parts.send_wr,
            sends: Trains::default(),
            receives: Vec::new(),
        };
        let nothing = IoBuf::new(parts.capsule_memory.clone(), 0, 0);
        let connection = Rc::new(Self {
            shared: shared.clone(),
            id,
            parts,
            state: RefCell::new(state),
            nothing,
            info: RefCell::new(shared.target.borrow().queue_info(id)),
            qp,
            cm,
            poke: Notify::new(),
            torn_down: Cell::new(false),
            flushed: Cell::new(false),
            now: Cell::new(shared.rt.now()),
        });
        if shared.stopping.get() {
            connection.tear_down(&"the target shuts down");
            return;
        }
        shared.connections.borrow_mut().insert(id, connection.clone());
        if connection.parts.context.log.may(About::Event) {
            tracing::info!("{connection}: connected");
        }
        shared.rt.spawn(connection.clone().completions());
        shared.rt.spawn(connection.watch());
    }

    /// The completion loop.
    async fn completions(self: Rc<Self>) {
        let mut batch = Vec::with_capacity(BATCH);
        // After a flush nothing more comes that anybody would wait for.
        while !self.torn_down.get() && !self.flushed.get() {
            if let Err(error) = self.parts.cq.wait(&mut batch, BATCH).await {
                self.tear_down(&error);
                return;
            }
            self.now.set(self.shared.rt.now());
            for completion in batch.drain(..) {
                self.completed(&completion);
            }
            self.pump();
            self.post();
        }
    }

    /// Everything but completions: the peer's disconnect, deadlines, buffers that came back.
    async fn watch(self: Rc<Self>) {
        let mut closed = std::pin::pin!(self.cm.closed());
        while !self.torn_down.get() {
            let deadline = self.shared.target.borrow().queue_deadline(self.id);
            let timer = async {
                match deadline {
                    Some(at) => self.shared.rt.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let poked = select(self.poke.notified(), timer);
            match select(closed.as_mut(), poked).await {
                Either::First(reason) => self.ended(reason),
                Either::Second(Either::First(())) => {
                    self.now.set(self.shared.rt.now());
                    self.pump();
                    self.post();
                }
                Either::Second(Either::Second(())) => {
                    let now = self.shared.rt.now();
                    self.shared.target.borrow_mut().handle_timeout(now, self.id);
                    self.shared.dispatch();
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
                WcOpcode::RdmaRead => "reading the host's data",
                WcOpcode::RdmaWrite => "writing to the host's memory",
                WcOpcode::Send => "sending a response",
                _ => "receiving a command",
            };
            let why = format!("{what}: {}", completion.status);
            match completion.status {
                WcStatus::WrFlushErr => self.flush_began(why),
                _ => self.tear_down(&why),
            }
            return;
        }
        match completion.opcode {
            WcOpcode::Recv => self.received(index, completion.byte_len),
            WcOpcode::RdmaRead => self.data_came(index),
            _ => self.answered(index),
        }
    }

    /// Flushed work is the consequence of something that [`Connection::watch`] is about to hear of: the peer's disconnect,
    /// mostly. Only what nobody explains is called a flush.
    fn flush_began(self: &Rc<Self>, why: String) {
        if self.flushed.replace(true) {
            return;
        }
        let connection = self.clone();
        self.shared.rt.spawn(async move {
            match connection.shared.rt.timeout(CAUSE_PATIENCE, connection.cm.closed()).await {
                Ok(reason) => connection.ended(reason),
                Err(_) => connection.tear_down(&why),
            }
        });
    }

    /// The connection manager says that it is over.
    fn ended(self: &Rc<Self>, reason: DisconnectReason) {
        match reason {
            DisconnectReason::Peer => self.tear_down(&"disconnected by the host"),
            reason => self.tear_down(&reason),
        }
    }

    fn received(self: &Rc<Self>, capsule: u32, len: u32) {
        if (len as usize) < Sqe::LEN {
            self.tear_down(&format_args!(
                "a command capsule of {len} bytes; the entry alone has {}",
                Sqe::LEN
            ));
            return;
        }
        let slot = self.state.borrow_mut().take_slot();
        match slot {
            Some(slot) => self.begin(slot, capsule, len),
            None => self.state.borrow_mut().backlog.push_back((capsule, len)),
        }
    }

    /// Gives waiting work what has become free: slots first to events, then to capsules; then buffers and room.
    pub(super) fn pump(self: &Rc<Self>) {
        loop {
            let (event, capsule, slot) = {
                let mut state = self.state.borrow_mut();
                if !state.has_slot() || state.events.is_empty() && state.backlog.is_empty() {
                    break;
                }
                let event = state.events.pop_front();
                let capsule = if event.is_none() { state.backlog.pop_front() } else { None };
                (event, capsule, state.take_slot())
            };
            match (event, capsule, slot) {
                (Some(cqe), _, Some(slot)) => self.send_event(slot, cqe),
                (None, Some((capsule, len)), Some(slot)) => self.begin(slot, capsule, len),
                _ => break,
            }
        }
        // Stops at the first that still cannot go on: those behind it must not overtake for ever.
        loop {
            let Some(slot) = self.state.borrow_mut().waiting.pop_front() else { break };
            if !self.resume(slot) {
                self.state.borrow_mut().waiting.push_front(slot);
                break;
            }
        }
    }

    /// Posts what was collected.
    pub(super) fn post(self: &Rc<Self>) {
        if self.torn_down.get() {
            return;
        }
        let failed = {
            let state = &mut *self.state.borrow_mut();
            let State { sends, receives, .. } = state;
            let receives =
                if receives.is_empty() { Ok(()) } else { self.qp.post_recv_list(receives.drain(..)) };
            let sends = if sends.is_empty() { Ok(()) } else { self.qp.post_send_list(sends.drain()) };
            receives.and(sends)
        };
        if let Err(error) = failed {
            self.tear_down(&error);
        }
    }

    /// A held command was answered by an event.
    pub(super) fn event(self: &Rc<Self>, cqe: Cqe) {
        self.state.borrow_mut().events.push_back(cqe);
        // Not here: the caller may be in the middle of this very connection's batch.
        self.poke.notify_one();
    }

    /// The queue has another deadline.
    pub(super) fn rearm(&self) {
        self.poke.notify_one();
    }

    /// Connect was answered: the queue may be part of an association now.
    pub(super) fn identify(&self) {
        if let Some(info) = self.shared.target.borrow().queue_info(self.id) {
            *self.info.borrow_mut() = Some(info);
        }
    }

    /// Ends the connection, once; the association goes with its admin queue.
    pub(super) fn tear_down(self: &Rc<Self>, why: &dyn fmt::Display) {
        if self.torn_down.replace(true) {
            return;
        }
        let shared = &self.shared;
        if self.parts.context.log.may(About::Event) {
            tracing::info!("{self}: closed: {why}");
        }
        shared.connections.borrow_mut().remove(&self.id);
        shared.target.borrow_mut().close_queue(self.id);
        self.poke.notify_one();
        // To ERR at once: what is outstanding is flushed instead of retried against a host that has gone.
        let ended = self.cm.disconnect();
        shared.closing.set(shared.closing.get() + 1);
        let connection = self.clone();
        shared.rt.spawn(async move {
            let shared = &connection.shared;
            // A host that has died never confirms; its queue pair and memory are not kept for it.
            if shared.rt.timeout(shared.options.disconnect_timeout, ended).await.is_err() {
                tracing::debug!("{connection}: the host does not confirm");
            }
            shared.closing.set(shared.closing.get() - 1);
            shared.closed.notify_waiters();
        });
        shared.dispatch();
    }

    pub(super) fn is_torn_down(&self) -> bool {
        self.torn_down.get()
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.info.borrow() {
            Some(info) => info.fmt(f),
            None => write!(f, "{} -> {}", self.cm.peer(), self.cm.local()),
        }
    }
}
