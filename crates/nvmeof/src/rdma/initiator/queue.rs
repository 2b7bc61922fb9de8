//! One queue of an association, from the host's side: commands out, completions in.
//!
//! A command holds a slot from submission until both its SEND is acknowledged and its completion has come; the slot's
//! number and a generation make the command identifier, so a stray completion is noticed. Whoever waits for the command
//! waits for the completion alone, which proves that the command came; so there are more slots than entries. At most one
//! command less than the queue has entries is outstanding (NVMe-oF 1.1 §2.4). States: live, dead (with the reason).

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use everywire_verbs::rt::{Notify, Permit, Rt, Semaphore};
use everywire_verbs::{
    CmError, Completion, ConnParam, ConnectOptions, Connection, Cq, Device, MemoryRegion, Pd, Qp, SendOp,
    SendWr, Sge, WcOpcode, WcStatus,
};

use super::error::{NvmeError, NvmeErrorKind, Who};
use super::parts::{MAX_ENTRIES, Made, SLOT_BITS, make, response, slots_of};
use crate::pdu::cm::CmRequest;
use crate::pdu::{Cqe, Field, Keyed, Sgl, Sqe};

/// Completions taken at once.
const BATCH: usize = 64;
/// What a send's work request id says besides its slot.
const TAG_SEND: u64 = 1 << 32;
/// Queue pairs that are tried with a controller that still has a connection of another process with the same number.
const QUEUE_PAIRS: usize = 5;

/// The data of a command.
pub(super) enum Data<'a> {
    /// None.
    None,
    /// `len` bytes of registered memory from `at`; `inline` sends them in the capsule.
    Region { region: &'a MemoryRegion, at: usize, len: u32, inline: bool },
}

#[derive(Default)]
struct Slot {
    generation: u8,
    busy: bool,
    /// The SEND is acknowledged.
    sent: bool,
    answer: Option<Cqe>,
    /// Nobody waits any more.
    abandoned: bool,
    waker: Option<Waker>,
    /// The queue's tick when it was sent.
    since: u32,
    /// Keeps the memory that the controller may still reach into.
    region: Option<MemoryRegion>,
    /// A place in the controller's queue, given back when the completion has come.
    place: Option<Permit>,
    /// Given back when the slot is free again.
    _slot: Option<Permit>,
}

pub(super) struct HostQueue {
    pub(super) qid: u16,
    pub(super) who: Who,
    qp: Qp,
    cq: Cq,
    cm: Connection,
    capsules: MemoryRegion,
    responses: MemoryRegion,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u16>>,
    /// Places in the controller's queue.
    places: Semaphore,
    /// Free slots.
    room: Semaphore,
    dead: RefCell<Option<String>>,
    closing: Cell<bool>,
    /// Counts even intervals, to tell commands without an answer without reading a clock for each.
    ticks: Cell<u32>,
    /// Told when the queue dies.
    trouble: Notify,
}

/// How to open a queue.
pub(super) struct Open<'a> {
    pub(super) rt: &'a Rt,
    pub(super) device: &'a Device,
    pub(super) pd: &'a Pd,
    pub(super) who: &'a Who,
    pub(super) qid: u16,
    /// Entries, 1-based.
    pub(super) entries: u16,
    pub(super) rd_atomic: u8,
    /// How long it may take.
    pub(super) timeout: Duration,
    pub(super) trouble: &'a Notify,
}

impl HostQueue {
    /// Connects a queue at the transport; the Connect command must follow.
    pub(super) async fn open(open: Open<'_>) -> Result<Rc<Self>, NvmeError> {
        debug_assert!((2..=MAX_ENTRIES).contains(&open.entries));
        let mut refused = Vec::new();
        let (made, cm) = loop {
            match connect(&open).await {
                Ok(connected) => break connected,
                Err(Failed::Here(error)) => return Err(error),
                // The controller clears that connection away; another number can be had now (IBTA §12.9.8.3).
                Err(Failed::There(error, qp)) if error.is_stale() && refused.len() + 1 < QUEUE_PAIRS => {
                    tracing::debug!("{error}: another queue pair is tried");
                    refused.push(qp);
                }
                Err(Failed::There(error, _)) => return Err(open.who.connect_error(error)),
            }
        };
        let who = Who { local: Some(cm.local()), ..open.who.clone() };
        let queue = Rc::new(Self {
            qid: open.qid,
            who,
            qp: made.qp,
            cq: made.cq,
            cm,
            capsules: made.capsules,
            responses: made.responses,
            slots: RefCell::new((0..slots_of(open.entries)).map(|_| Slot::default()).collect()),
            free: RefCell::new((0..slots_of(open.entries)).rev().collect()),
            places: Semaphore::new(usize::from(open.entries) - 1),
            room: Semaphore::new(usize::from(slots_of(open.entries))),
            dead: RefCell::default(),
            closing: Cell::new(false),
            ticks: Cell::new(0),
            trouble: open.trouble.clone(),
        });
        open.rt.spawn(queue.clone().completions());
        open.rt.spawn(queue.clone().watch());
        Ok(queue)
    }

    /// Sends a command and waits for its completion, whatever its status.
    pub(super) async fn submit(self: &Rc<Self>, sqe: Sqe, data: Data<'_>) -> Result<Cqe, NvmeErrorKind> {
        let place = one(&self.places).await;
        let room = one(&self.room).await;
        if let Some(why) = &*self.dead.borrow() {
            return Err(NvmeErrorKind::Lost(why.clone()));
        }
        let slot = self.free.borrow_mut().pop().expect("as many slots as permits");
        let generation = self.occupy(slot, place, room, &data);
        self.post(slot, generation, sqe, data);
        Submitted { queue: self, slot }.await
    }

    /// Fills a slot; its new generation.
    fn occupy(&self, slot: u16, place: Permit, room: Permit, data: &Data<'_>) -> u8 {
        let s = &mut self.slots.borrow_mut()[usize::from(slot)];
        let generation = s.generation.wrapping_add(1) & 0x3f;
        *s = Slot {
            generation,
            busy: true,
            since: self.ticks.get(),
            place: Some(place),
            _slot: Some(room),
            ..Slot::default()
        };
        if let Data::Region { region, .. } = data {
            s.region = Some((*region).clone());
        }
        generation
    }

    fn post(self: &Rc<Self>, slot: u16, generation: u8, mut sqe: Sqe, data: Data<'_>) {
        sqe.cid = slot | u16::from(generation) << SLOT_BITS;
        let at = usize::from(slot) * Sqe::LEN;
        let mut wr = SendWr::new(TAG_SEND | u64::from(slot), SendOp::Send);
        let mut payload: Option<Sge> = None;
        if let Data::Region { region, at, len, inline } = data {
            if inline {
                sqe.sgl = Sgl::in_capsule(0, len);
                payload = Some(region.sge(at..at + len as usize));
            } else {
                let remote = region.remote(at);
                sqe.sgl = Sgl::keyed(Keyed { addr: remote.addr, len, key: remote.rkey.0, invalidate: false });
            }
        }
        self.capsules.write_at(at, &sqe.emit()).expect("a capsule slot lies inside its region");
        wr = wr.with_sges([self.capsules.sge(at..at + Sqe::LEN)]).with_sges(payload);
        if let Err(error) = self.qp.post_send(wr) {
            self.fail(error.to_string());
        }
    }

    async fn completions(self: Rc<Self>) {
        let mut batch: Vec<Completion> = Vec::with_capacity(BATCH);
        let mut receives = Vec::with_capacity(BATCH);
        while !self.is_over() {
            if let Err(error) = self.cq.wait(&mut batch, BATCH).await {
                self.fail(error.to_string());
                return;
            }
            for completion in batch.drain(..) {
                if completion.status != WcStatus::Success {
                    // What was flushed says nothing of why.
                    match self.cm.closed_reason().filter(|_| completion.status == WcStatus::WrFlushErr) {
                        Some(reason) => self.fail(reason.to_string()),
                        None => self.fail(format!("{:?}: {}", completion.opcode, completion.status)),
                    }
                    return;
                }
                let index = completion.wr_id as u16;
                if completion.opcode != WcOpcode::Recv {
                    self.finish(index, |slot| slot.sent = true);
                    continue;
                }
                let mut raw = [0; Cqe::LEN];
                let at = usize::from(index) * Cqe::LEN;
                self.responses.read_at(at, &mut raw).expect("a response slot lies inside its region");
                receives.push(response(&self.responses, index));
                self.answered(&Cqe::get(&raw), completion.byte_len);
            }
            // Before the tasks that were woken send their next commands.
            if let Err(error) = self.qp.post_recv_list(receives.drain(..)) {
                self.fail(error.to_string());
            }
        }
    }

    fn answered(&self, cqe: &Cqe, len: u32) {
        let slot = cqe.cid & (MAX_ENTRIES - 1);
        let known = len as usize == Cqe::LEN
            && self.slots.borrow().get(usize::from(slot)).is_some_and(|s| {
                s.busy && s.answer.is_none() && u16::from(s.generation) == cqe.cid >> SLOT_BITS
            });
        if known {
            self.finish(slot, |s| (s.answer, s.place) = (Some(*cqe), None));
        } else {
            self.fail(format!(
                "a completion of {len} bytes for command {:#06x}, which is not outstanding",
                cqe.cid
            ));
        }
    }

    /// Notes one of the two ends of a command: its completion wakes whoever waits; after the second the slot is free.
    fn finish(&self, index: u16, note: impl FnOnce(&mut Slot)) {
        let waker = {
            let mut slots = self.slots.borrow_mut();
            let slot = &mut slots[usize::from(index)];
            note(slot);
            if slot.answer.is_none() {
                return;
            }
            if slot.abandoned && slot.sent {
                self.release(index, slot);
                return;
            }
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn release(&self, index: u16, slot: &mut Slot) {
        *slot = Slot { generation: slot.generation, ..Slot::default() };
        self.free.borrow_mut().push(index);
    }

    async fn watch(self: Rc<Self>) {
        let reason = self.cm.closed().await;
        if !self.closing.get() {
            self.fail(reason.to_string());
        }
    }

    fn is_over(&self) -> bool {
        self.dead.borrow().is_some() || self.closing.get()
    }

    /// The queue is of no use any more: everything outstanding fails.
    pub(super) fn fail(&self, why: String) {
        if self.dead.borrow().is_some() {
            return;
        }
        if !self.closing.get() {
            tracing::warn!("{} queue {}: {why}", self.cm, self.qid);
        }
        *self.dead.borrow_mut() = Some(why);
        drop(self.cm.disconnect());
        let wakers: Vec<Waker> =
            self.slots.borrow_mut().iter_mut().filter_map(|slot| slot.waker.take()).collect();
        wakers.into_iter().for_each(Waker::wake);
        self.trouble.notify_one();
    }

    /// Disconnects; nothing should be outstanding. The future waits until the controller has confirmed.
    pub(super) fn close(&self) -> impl Future<Output = ()> {
        self.closing.set(true);
        let ended = self.cm.disconnect();
        async move {
            ended.await;
            self.fail("disconnected".to_owned());
        }
    }

    /// Called at even intervals; gives the number of them that the oldest outstanding command has seen.
    pub(super) fn tick(&self) -> u32 {
        let now = self.ticks.get().wrapping_add(1);
        self.ticks.set(now);
        let slots = self.slots.borrow();
        let waiting = slots.iter().filter(|slot| slot.busy && slot.answer.is_none());
        waiting.map(|slot| now.wrapping_sub(slot.since)).max().unwrap_or(0)
    }

    /// Why it is of no use any more.
    pub(super) fn why(&self) -> Option<String> {
        self.dead.borrow().clone()
    }

    /// Whether the queue still works.
    pub(super) fn is_live(&self) -> bool {
        !self.is_over()
    }
}

/// One attempt, with a queue pair of its own; a refused one is kept until another is made, so that their numbers differ.
async fn connect(open: &Open<'_>) -> Result<(Made, Connection), Failed> {
    let made = make(open).map_err(|error| Failed::Here(open.who.error("making a queue pair", error)))?;
    let private =
        CmRequest { qid: open.qid, hrqsize: open.entries, hsqsize: open.entries - 1, ..Default::default() };
    let param = ConnParam {
        responder_resources: open.rd_atomic,
        // Nothing here READs.
        initiator_depth: 0,
        ..ConnParam::with_private_data(private.emit())
    };
    let options = ConnectOptions::new(open.who.remote, &made.qp).param(param).timeout(open.timeout);
    let options = match open.who.local {
        Some(local) => options.src(std::net::SocketAddr::new(local.ip(), 0)),
        None => options,
    };
    match open.device.connect(options).await {
        Ok(cm) => Ok((made, cm)),
        Err(error) => Err(Failed::There(error, made.qp)),
    }
}

/// Why an attempt failed.
enum Failed {
    /// This device has no queue pair for it.
    Here(NvmeError),
    /// It was refused, with this queue pair.
    There(CmError, Qp),
}

/// One permit, without waiting if there is one.
async fn one(semaphore: &Semaphore) -> Permit {
    match semaphore.try_acquire(1) {
        Some(permit) => permit,
        None => semaphore.acquire(1).await,
    }
}

/// A command on its way.
struct Submitted<'a> {
    queue: &'a Rc<HostQueue>,
    slot: u16,
}

impl Future for Submitted<'_> {
    type Output = Result<Cqe, NvmeErrorKind>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slots = self.queue.slots.borrow_mut();
        let slot = &mut slots[usize::from(self.slot)];
        if let Some(cqe) = slot.answer {
            return Poll::Ready(Ok(cqe));
        }
        if let Some(why) = &*self.queue.dead.borrow() {
            return Poll::Ready(Err(NvmeErrorKind::Lost(why.clone())));
        }
        if slot.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            slot.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Submitted<'_> {
    fn drop(&mut self) {
        let mut slots = self.queue.slots.borrow_mut();
        let slot = &mut slots[usize::from(self.slot)];
        // On a dead queue nothing more comes; its memory is safe, because its queue pair is in ERR.
        if slot.sent && slot.answer.is_some() || self.queue.dead.borrow().is_some() {
            self.queue.release(self.slot, slot);
        } else {
            slot.abandoned = true;
        }
    }
}
