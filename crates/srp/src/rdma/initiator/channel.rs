//! One channel from the initiator's side: login, requests out, information units in.
//!
//! A request holds a slot from submission until its SEND is acknowledged and its answer has come; the slot's number and a
//! generation make the tag. At most as many requests are outstanding as credits allow. States: live, dead (with the reason).

mod parts;
mod receive;
mod submitted;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use everywire_verbs::rt::{Notify, Rt};
use everywire_verbs::{
    ConnParam, ConnectOptions, Connection, Cq, Device, MemoryRegion, Pd, Qp, SendOp, SendWr,
};

use parts::{Made, make};

use super::InitiatorOptions;
use super::error::{SrpError, SrpErrorKind, Who};
use crate::initiator::{Broken, IMMEDIATE_OFFSET, Session, iu_len_for};
use crate::iu::{
    BufferFormats, Function, InitiatorIu, LoginRequest, MultiChannel, RejectReason, Response, ResponseCode,
    TargetIu,
};

/// Completions taken at once.
const BATCH: usize = 64;
/// How long making one connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Room for one information unit of the target.
const TI_IU_LEN: usize = 8448;
/// Receives beyond those for responses: the target's own requests.
const SPARE_RECEIVES: u32 = 8;
/// Sends beyond those of requests: answers to the target, a logout.
const SPARE_SENDS: u32 = 8;
const REPLY_LEN: usize = 16;
/// Ticks after which a command is aborted; after half as many more the channel is lost.
const OVERDUE_TICKS: u32 = 4;
/// Tags: slot, then generation.
const SLOT_BITS: u32 = 16;
/// What a send's work request id says besides its slot.
const TAG_REQUEST: u64 = 1 << 32;
const TAG_REPLY: u64 = 2 << 32;
const TAG_LOGOUT: u64 = 3 << 32;

/// How a request ended.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Done(Box<Response>),
    Aborted,
    Managed(ResponseCode),
}

#[derive(Default)]
struct Slot {
    generation: u64,
    busy: bool,
    /// The SEND is acknowledged.
    sent: bool,
    answer: Option<Answer>,
    /// Nobody waits any more.
    abandoned: bool,
    waker: Option<Waker>,
    /// Keeps the memory that the target may still reach into.
    _regions: Vec<MemoryRegion>,
    /// The channel's tick when it was sent.
    since: u32,
    /// ABORT TASK was sent because it has taken too long.
    overdue: bool,
}

pub(super) struct Channel {
    pub(super) who: Who,
    rt: Rt,
    qp: Qp,
    cq: Cq,
    cm: Connection,
    session: RefCell<Session>,
    requests: MemoryRegion,
    responses: MemoryRegion,
    replies: MemoryRegion,
    it_iu_len: usize,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u16>>,
    /// Replies that wait for an entry, and entries of the reply memory that are free.
    reply_queue: RefCell<VecDeque<Vec<u8>>>,
    reply_room: RefCell<Vec<u32>>,
    /// A slot or a credit came back.
    room: Notify,
    dead: RefCell<Option<SrpErrorKind>>,
    closing: Cell<bool>,
    logged_out: Notify,
    ticks: Cell<u32>,
    trouble: Notify,
}

/// What a channel is opened with.
#[derive(Clone, Copy)]
pub(super) struct Open<'a> {
    pub(super) rt: &'a Rt,
    pub(super) device: &'a Device,
    pub(super) pd: &'a Pd,
    pub(super) who: &'a Who,
    pub(super) options: &'a InitiatorOptions,
    pub(super) multi: MultiChannel,
    pub(super) trouble: &'a Notify,
}

/// What a login asks for.
fn login(open: &Open<'_>, immediate: u32) -> LoginRequest {
    let options = open.options;
    let plain = iu_len_for(options.descriptors);
    let with_data = if immediate > 0 { u32::from(IMMEDIATE_OFFSET) + immediate } else { 0 };
    LoginRequest {
        tag: 0,
        it_iu_len: plain.max(with_data).max(crate::iu::MIN_IU_LEN),
        formats: BufferFormats::OURS,
        multi_channel: open.multi,
        immediate_offset: (immediate > 0).then_some(IMMEDIATE_OFFSET),
        initiator: options.initiator,
        target: open.who.target,
    }
}

impl Channel {
    pub(super) async fn open(open: Open<'_>) -> Result<Rc<Self>, SrpError> {
        let with_data = login(&open, open.options.immediate);
        match Self::attempt(open, with_data).await {
            // A target that takes no such information units may take shorter ones, without data in them.
            Err(error)
                if matches!(*error.kind, SrpErrorKind::Refused(RejectReason::IU_LENGTH_TOO_LARGE))
                    && open.options.immediate > 0 =>
            {
                Self::attempt(open, login(&open, 0)).await
            }
            other => other,
        }
    }

    async fn attempt(open: Open<'_>, login: LoginRequest) -> Result<Rc<Self>, SrpError> {
        const STEP: &str = "login";
        let made = make(&open, login.it_iu_len).map_err(|error| open.who.error(STEP, error))?;
        let param = ConnParam {
            responder_resources: open.options.rd_atomic,
            // Nothing here READs.
            initiator_depth: 0,
            ..ConnParam::with_private_data(match open.options.service_id {
                Some(_) => login.emit(),
                None => login.emit_rdma_cm(),
            })
        };
        let options = ConnectOptions::new(open.who.remote, &made.qp).param(param).timeout(CONNECT_TIMEOUT);
        let options = ConnectOptions { service_id: open.options.service_id, ..options };
        let options = match open.who.local {
            Some(local) => options.src(std::net::SocketAddr::new(local.ip(), 0)),
            None => options,
        };
        let cm = open.device.connect(options).await.map_err(|error| open.who.error(STEP, error))?;
        let response = match TargetIu::parse(cm.private_data()) {
            Ok(TargetIu::Login(response)) => response,
            other => {
                let what = format!("the connection was accepted without SRP_LOGIN_RSP: {other:?}");
                return Err(open.who.error(STEP, SrpErrorKind::Protocol(what)));
            }
        };
        let session = Session::new(&login, &response).map_err(|error| open.who.error(STEP, error))?;
        tracing::debug!(
            "{cm}: logged in to {}: {} requests, {:?}, {} bytes of immediate data",
            login.target,
            response.request_limit_delta,
            response.multi_channel,
            session.immediate()
        );
        let Made { qp, cq, requests, responses, replies, slots } = made;
        let channel = Rc::new(Self {
            who: Who { local: Some(cm.local()), ..open.who.clone() },
            rt: open.rt.clone(),
            qp,
            cq,
            cm,
            session: RefCell::new(session),
            requests,
            responses,
            replies,
            it_iu_len: login.it_iu_len as usize,
            slots: RefCell::new((0..slots).map(|_| Slot::default()).collect()),
            free: RefCell::new((0..slots).rev().collect()),
            reply_queue: RefCell::default(),
            reply_room: RefCell::new((0..SPARE_SENDS - 1).collect()),
            room: Notify::new(),
            dead: RefCell::default(),
            closing: Cell::new(false),
            logged_out: Notify::new(),
            ticks: Cell::new(0),
            trouble: open.trouble.clone(),
        });
        open.rt.spawn(channel.clone().completions());
        open.rt.spawn(channel.clone().watch());
        Ok(channel)
    }

    /// Most bytes of immediate data.
    pub(super) fn immediate(&self) -> usize {
        self.session.borrow().immediate()
    }

    /// Descriptors that fit into a command.
    pub(super) fn inline_descriptors(&self, cdb: usize) -> usize {
        self.session.borrow().inline_descriptors(cdb)
    }

    /// Credits, and requests without an answer.
    pub(super) fn credits(&self) -> (i32, usize) {
        let session = self.session.borrow();
        (session.credits(), session.outstanding())
    }

    /// Commands at a logical unit that have no answer.
    pub(super) fn on_lun(&self, lun: u64) -> Vec<u64> {
        self.session.borrow().commands_at(lun)
    }

    /// Aborts commands that have gone without an answer for almost as long as they may: another initiator's function may have ended them
    /// without a word (SAM-5 §5.3.1). Without an answer to that, too, the channel is lost in the end.
    pub(super) fn abort_overdue(self: &Rc<Self>) {
        let now = self.ticks.get();
        let mut overdue = Vec::new();
        for (index, slot) in self.slots.borrow_mut().iter_mut().enumerate() {
            let late = now.wrapping_sub(slot.since) >= OVERDUE_TICKS;
            if slot.busy && slot.answer.is_none() && late && !std::mem::replace(&mut slot.overdue, true) {
                overdue.push(slot.generation << SLOT_BITS | index as u64);
            }
        }
        for tag in overdue {
            let Some(lun) = self.session.borrow().lun_of(tag) else { continue };
            tracing::warn!("{}: command {tag:#x} has no answer: ABORT TASK", self.cm);
            let channel = self.clone();
            self.rt.spawn(async move { channel.manage(lun, Function::AbortTask, tag).await.is_ok() });
        }
    }

    fn send(&self, wr: SendWr) {
        if let Err(error) = self.qp.post_send(wr) {
            self.fail(SrpErrorKind::Lost(error.to_string()));
        }
    }

    async fn watch(self: Rc<Self>) {
        let reason = self.cm.closed().await;
        if !self.closing.get() {
            self.fail(SrpErrorKind::Lost(reason.to_string()));
        }
    }

    fn check(&self) -> Result<(), SrpErrorKind> {
        self.dead.borrow().as_ref().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// The channel is of no use any more: everything outstanding fails.
    pub(super) fn fail(&self, why: SrpErrorKind) {
        if self.dead.borrow().is_some() {
            return;
        }
        if !self.closing.get() {
            tracing::warn!("{}: {why}", self.cm);
        }
        *self.dead.borrow_mut() = Some(why);
        drop(self.cm.disconnect());
        let wakers: Vec<Waker> =
            self.slots.borrow_mut().iter_mut().filter_map(|slot| slot.waker.take()).collect();
        wakers.into_iter().for_each(Waker::wake);
        self.room.notify_waiters();
        self.room.notify_one();
        self.trouble.notify_one();
    }

    /// Logs out and disconnects; nothing should be outstanding.
    pub(super) async fn close(&self) {
        if self.dead.borrow().is_some() {
            return;
        }
        self.closing.set(true);
        let bytes = InitiatorIu::Logout { tag: 0 }.emit();
        let at = (SPARE_SENDS as usize - 1) * REPLY_LEN;
        self.replies.write_at(at, &bytes).expect("a reply lies inside its region");
        self.send(SendWr::new(TAG_LOGOUT, SendOp::Send).with_sges([self.replies.sge(at..at + bytes.len())]));
        // A target may disconnect before it has acknowledged.
        let _ = self.rt.timeout(Duration::from_secs(1), self.logged_out.notified()).await;
        let ended = self.cm.disconnect();
        ended.await;
        self.fail(SrpErrorKind::LoggedOutHere);
    }

    /// Called at even intervals; gives the number of them that the oldest outstanding request has seen.
    pub(super) fn tick(&self) -> u32 {
        let now = self.ticks.get().wrapping_add(1);
        self.ticks.set(now);
        let slots = self.slots.borrow();
        let waiting = slots.iter().filter(|slot| slot.busy && slot.answer.is_none());
        waiting.map(|slot| now.wrapping_sub(slot.since)).max().unwrap_or(0)
    }

    /// Why it is of no use any more.
    pub(super) fn why(&self) -> Option<SrpErrorKind> {
        self.dead.borrow().clone()
    }

    pub(super) fn is_live(&self) -> bool {
        self.dead.borrow().is_none() && !self.closing.get()
    }
}

impl From<Broken> for SrpErrorKind {
    fn from(broken: Broken) -> Self {
        Self::Protocol(broken.0)
    }
}
