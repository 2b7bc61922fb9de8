//! A connection's queue pair, its receives and its sends: messages in and out, for either side.
//!
//! Read RFC 7145 §8 (flow control: a receive for every PDU that may come) and §9.2. Work goes out in the order it was pushed in; a
//! chain of work requests completes as one, and what it needs is kept until then. Whoever cannot send is not listened to.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use everywire_verbs::rt::{LocalFuture, Notify, Rt};
use everywire_verbs::trains::Trains;
use everywire_verbs::{
    Access, Closed, Completion, Connection, Cq, DisconnectReason, MemoryRegion, Pd, Qp, QpCaps, QpInit,
    QpType, RKey, RecvWr, SendOp, SendWr, VerbsError, WcOpcode, WcStatus,
};

use super::{HEADER_LEN, Header, HeaderError};
use crate::login::MAX_LOGIN_DATA;
use crate::pdu::{BHS_LEN, Digests, Pdu};

/// Most data in a PDU that either side takes here: what a login PDU may have, and what Linux's ends say in
/// TargetRecvDataSegmentLength.
pub(super) const MAX_DATA: usize = MAX_LOGIN_DATA;
/// Bytes of additional header segments: the default of MaxAHSLength (RFC 7145 §6.5).
const MAX_AHS: usize = 256;
/// Longest message.
const MESSAGE: usize = HEADER_LEN + BHS_LEN + MAX_AHS + MAX_DATA;
/// Receives start on a cache line.
const STRIDE: usize = MESSAGE.next_multiple_of(64);
/// Completions taken at once.
const BATCH: usize = 64;
/// Messages that wait for room in the send queue beyond which nothing more is received.
const ENOUGH: usize = 256;
/// How long the connection manager has to say why work was flushed.
const CAUSE_PATIENCE: Duration = Duration::from_secs(1);

/// A queue pair in INIT with all its receives posted.
pub(super) struct Ends {
    pub(super) qp: Qp,
    cq: Cq,
    messages: MemoryRegion,
    sends: u32,
}

impl Ends {
    /// With so many receives and entries of the send queue; `access` is what the peer may do to registered memory.
    pub(super) fn new(pd: &Pd, receives: u32, sends: u32, access: Access) -> Result<Ends, VerbsError> {
        let limits = pd.device().limits();
        let (receives, sends) = (receives.min(limits.max_qp_wr), sends.min(limits.max_qp_wr));
        let cq = pd.device().create_cq((receives + sends).min(limits.max_cqe))?;
        let caps = QpCaps {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: limits.max_inline,
        };
        let qp = pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) })?;
        let messages = pd.register(STRIDE * receives as usize, Access::LOCAL_WRITE)?;
        qp.to_init(access)?;
        let ends = Ends { qp, cq, messages, sends };
        for index in 0..receives {
            let posted = ends.qp.post_recv(ends.receive(index));
            posted.expect("an empty receive queue of this depth takes as many receives");
        }
        Ok(ends)
    }

    fn receive(&self, index: u32) -> RecvWr {
        let at = index as usize * STRIDE;
        RecvWr::new(index.into(), [self.messages.sge(at..at + MESSAGE)])
    }
}

/// Work that completes as one.
struct Chain<D> {
    serial: u64,
    entries: u32,
    done: D,
    /// A message too long to travel in its work request.
    _long: Option<MemoryRegion>,
}

/// A message in its parts.
pub(super) struct Message {
    pub(super) header: Header,
    /// What is behind the header.
    pub(super) pdu: Bytes,
}

/// What has happened.
pub(super) enum Came<D> {
    /// A message.
    Message {
        /// It, unless its header makes no sense.
        message: Result<Message, HeaderError>,
        /// The key that it invalidated here.
        invalidated: Option<RKey>,
    },
    /// A chain is complete.
    Done(D),
}

/// Why a connection is to be waited for no longer.
pub(super) enum Event {
    /// Completions: see [`Link::take`].
    Work,
    /// The poke.
    Poked,
    /// The time, or an earlier one that was asked for before.
    Time,
    /// The connection is over.
    Ended(String),
}

/// A connection. `D` is what its owner wants to hear of complete work.
pub(super) struct Link<D> {
    rt: Rt,
    ends: Ends,
    cm: Connection,
    closed: Closed,
    batch: Vec<Completion>,
    next: usize,
    broken: Option<Completion>,
    serial: u64,
    room: u32,
    chains: VecDeque<Chain<D>>,
    waiting: VecDeque<(Vec<SendWr>, Chain<D>)>,
    ready: Trains,
    idle: Vec<u32>,
    timer: Option<(Instant, LocalFuture<()>)>,
}

/// A message's bytes.
pub(super) fn message(header: &Header, pdu: Option<&Pdu>) -> Vec<u8> {
    let len = pdu.map_or(0, |pdu| pdu.wire_len(Digests::default()));
    let mut bytes = Vec::with_capacity(HEADER_LEN + len);
    bytes.extend_from_slice(&header.emit());
    if let Some(pdu) = pdu {
        bytes.extend_from_slice(&pdu.bhs());
        bytes.extend_from_slice(&pdu.ahs);
        bytes.extend_from_slice(&pdu.data);
        bytes.resize(HEADER_LEN + len, 0);
    }
    bytes
}

impl<D> Link<D> {
    /// A connection that is established.
    pub(super) fn new(rt: Rt, ends: Ends, cm: Connection) -> Link<D> {
        let room = ends.sends;
        Link {
            rt,
            ends,
            closed: cm.closed(),
            cm,
            batch: Vec::with_capacity(BATCH),
            next: 0,
            broken: None,
            serial: 0,
            room,
            chains: VecDeque::new(),
            waiting: VecDeque::new(),
            ready: Trains::default(),
            idle: Vec::new(),
            timer: None,
        }
    }

    /// The connection.
    pub(super) fn cm(&self) -> &Connection {
        &self.cm
    }

    /// Queues `before`, then a message behind it, as one chain. What of the message does not fit a work request is registered.
    pub(super) fn send(
        &mut self,
        before: Option<SendWr>,
        op: SendOp,
        bytes: Vec<u8>,
        done: D,
    ) -> Result<(), String> {
        let mut wr = SendWr::new(0, op);
        wr.solicited = true;
        let mut long = None;
        if bytes.len() <= self.ends.qp.caps().max_inline_data as usize {
            wr = wr.with_inline(bytes);
        } else {
            let region = self.ends.qp.pd().register_vec(bytes, Access::empty()).map_err(|e| e.to_string())?;
            wr = wr.with_sges([region.sge(..)]);
            long = Some(region);
        }
        match before {
            Some(before) => self.push_with([before, wr], done, long),
            None => self.push_with([wr], done, long),
        }
        Ok(())
    }

    /// Queues a chain.
    pub(super) fn push<const N: usize>(&mut self, work: [SendWr; N], done: D) {
        self.push_with(work, done, None);
    }

    fn push_with<const N: usize>(&mut self, mut work: [SendWr; N], done: D, long: Option<MemoryRegion>) {
        self.serial += 1;
        for (at, wr) in work.iter_mut().enumerate() {
            (wr.wr_id, wr.signaled) = (self.serial, at + 1 == N);
        }
        let chain = Chain { serial: self.serial, entries: N as u32, done, _long: long };
        if self.waiting.is_empty() && self.room >= chain.entries {
            self.room -= chain.entries;
            self.ready(work);
            self.chains.push_back(chain);
        } else {
            self.waiting.push_back((work.into(), chain));
        }
    }

    fn ready(&mut self, work: impl IntoIterator<Item = SendWr>) {
        work.into_iter().for_each(|wr| self.ready.push(wr));
    }

    /// The next thing that has happened; `None` if there is nothing more.
    pub(super) fn take(&mut self) -> Option<Came<D>> {
        while self.broken.is_none() {
            let completion = *self.batch.get(self.next)?;
            self.next += 1;
            if completion.status != WcStatus::Success {
                self.broken = Some(completion);
                break;
            }
            if completion.opcode == WcOpcode::Recv {
                let index = completion.wr_id as u32;
                self.idle.push(index);
                let message = self.message(index as usize * STRIDE, completion.byte_len as usize);
                return Some(Came::Message { message, invalidated: completion.invalidated });
            }
            // Sends complete in the order in which they were posted (IBTA vol. 1 §10.8).
            if let Some(chain) = self.chains.pop_front_if(|chain| chain.serial == completion.wr_id) {
                self.room += chain.entries;
                return Some(Came::Done(chain.done));
            }
        }
        None
    }

    /// The message of `len` bytes that came to `at`.
    fn message(&self, at: usize, len: usize) -> Result<Message, HeaderError> {
        const INSIDE: &str = "a receive lies inside its region";
        let mut head = [0; HEADER_LEN];
        let head = &mut head[..len.min(HEADER_LEN)];
        self.ends.messages.read_at(at, head).expect(INSIDE);
        let header = Header::parse(head)?;
        let pdu = self.ends.messages.read_vec(at + HEADER_LEN, len - HEADER_LEN).expect(INSIDE);
        Ok(Message { header, pdu: pdu.into() })
    }

    /// Posts what was collected: receives first, so that no answer finds its place missing.
    pub(super) fn flush(&mut self) -> Result<(), String> {
        while self.waiting.front().is_some_and(|(_, chain)| chain.entries <= self.room) {
            let Some((work, chain)) = self.waiting.pop_front() else { break };
            self.room -= chain.entries;
            self.ready(work);
            self.chains.push_back(chain);
        }
        if self.waiting.len() < ENOUGH && !self.idle.is_empty() {
            let Self { ends, idle, .. } = self;
            let receives = idle.drain(..).map(|index| ends.receive(index));
            ends.qp.post_recv_list(receives).map_err(|e| e.to_string())?;
        }
        if self.ready.is_empty() {
            return Ok(());
        }
        self.ends.qp.post_send_list(self.ready.drain()).map_err(|e| e.to_string())
    }

    /// Waits for something to happen.
    pub(super) async fn wait(&mut self, poke: &Notify, until: Option<Instant>) -> Event {
        if let Some(broken) = self.broken.take() {
            return Event::Ended(self.cause(&broken).await);
        }
        if self.next < self.batch.len() {
            return Event::Work;
        }
        self.batch.clear();
        self.next = 0;
        if let Some(until) = until
            && self.timer.as_ref().is_none_or(|(at, _)| *at > until)
        {
            self.timer = Some((until, self.rt.sleep_until(until)));
        }
        let Self { ends, batch, closed, timer, .. } = self;
        let mut poked = pin!(poke.notified());
        let mut work = pin!(ends.cq.wait(batch, BATCH));
        std::future::poll_fn(move |cx| {
            match work.as_mut().poll(cx) {
                Poll::Ready(Ok(_)) => return Poll::Ready(Event::Work),
                Poll::Ready(Err(error)) => return Poll::Ready(Event::Ended(error.to_string())),
                Poll::Pending => {}
            }
            if poked.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Poked);
            }
            if let Poll::Ready(reason) = Pin::new(&mut *closed).poll(cx) {
                return Poll::Ready(Event::Ended(text(reason)));
            }
            if let Some((_, sleep)) = timer
                && sleep.as_mut().poll(cx).is_ready()
            {
                *timer = None;
                return Poll::Ready(Event::Time);
            }
            Poll::Pending
        })
        .await
    }

    /// Flushed work is the consequence of something that the connection manager is about to tell; other errors tell themselves.
    async fn cause(&self, broken: &Completion) -> String {
        let what = match broken.opcode {
            WcOpcode::RdmaRead => "RDMA READ of the command's data",
            WcOpcode::RdmaWrite => "RDMA WRITE of the command's data",
            WcOpcode::FastReg => "fast registration",
            WcOpcode::LocalInv => "local invalidation",
            WcOpcode::Recv => "receive",
            _ => "SEND",
        };
        let told = format!("{what}: {}", broken.status);
        if broken.status != WcStatus::WrFlushErr {
            return told;
        }
        self.rt.timeout(CAUSE_PATIENCE, self.cm.closed()).await.map_or(told, text)
    }

    /// Waits until all that was pushed is complete, or until a time; what comes meanwhile is dropped.
    pub(super) async fn settle(&mut self, until: Instant) {
        self.pass(until, |link| link.chains.is_empty() && link.waiting.is_empty()).await;
    }

    /// The same until the peer has disconnected.
    pub(super) async fn gone(&mut self, until: Instant) {
        self.pass(until, |_| false).await;
    }

    async fn pass(&mut self, until: Instant, over: impl Fn(&Self) -> bool) {
        let never = Notify::default();
        loop {
            while self.take().is_some() {}
            let over = over(self);
            if self.flush().is_err() || over || self.rt.now() >= until {
                return;
            }
            if let Event::Ended(_) = self.wait(&never, Some(until)).await {
                return;
            }
        }
    }

    /// Disconnects; waits for the peer's word until a time.
    pub(super) async fn disconnect(&self, patience: Duration) {
        let _ = self.rt.timeout(patience, self.cm.disconnect()).await;
    }
}

fn text(reason: DisconnectReason) -> String {
    match reason {
        DisconnectReason::Peer => "the peer disconnected".to_owned(),
        reason => reason.to_string(),
    }
}
