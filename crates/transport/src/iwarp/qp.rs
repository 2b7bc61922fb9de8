//! The iWARP queue pair: the two queues, the state they are in, and the driving contract.
//!
//! Read RFC 5040 §5 and §6 (stream set-up and teardown) first. A queue pair is driven by its device: one post, piece of stream,
//! event, modify or timeout at a time, then [`Qp::poll_transmit`] until it says false, then [`Qp::poll_close`] and
//! [`Qp::poll_timeout`]. Completions, events and memory go through [`QpEnv`]. The send half is `requester`, the receive half
//! `responder`, the stream's two ways `tx` and `rx`; `inbound` dispatches segments, `ending` is how it ends. Connecting the
//! socket and the start frames are not its business: it takes the stream over with [`Qp::start`].

use std::time::Instant;

use everywire_wire::Qpn;

use super::burst::StreamBurst;
use super::ending::Ending;
use super::nudge::Nudge;
use super::params::{Close, ConnId, IwarpConfig, StreamEvent, StreamFault, StreamParams};
use super::post::check_send;
use super::requester::{Requester, Step, push_empty_write};
use super::responder::Responder;
use super::rx::{Cut, Rx};
use super::shared::Shared;
use super::state::check_modify;
use super::tx::Tx;
use crate::ib::attr::{QpAttr, QpConfig, QpState};
use crate::ib::env::{Counter, QpEnv};
use crate::ib::post::{PostError, admit_recv, admit_send};
use crate::ib::qp_state::ModifyError;
use crate::ib::wr::{RecvWr, SendWr, WcStatus};

/// Whose message is under way, or whose turn it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    #[default]
    Requests,
    Answers,
}

/// An iWARP queue pair. See the module for how it is driven.
#[derive(Debug)]
pub struct Qp {
    pub(super) shared: Shared,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) tx: Tx,
    pub(super) rx: Rx,
    pub(super) ending: Ending,
    pub(super) nudge: Nudge,
    /// The peer's first FPDU has come, or need not be waited for.
    pub(super) heard: bool,
    turn: Turn,
    pub(super) conn: Option<ConnId>,
    pub(super) fault: Option<StreamFault>,
}

impl Qp {
    /// A queue pair in RESET. The device has checked the capabilities with
    /// [`QpCaps::check`](crate::ib::QpCaps::check) and its own limits.
    pub fn new(config: QpConfig, iwarp: IwarpConfig) -> Qp {
        debug_assert!(config.caps.check().is_ok());
        Qp {
            shared: Shared::new(config, iwarp),
            requester: Requester::default(),
            responder: Responder::default(),
            tx: Tx::default(),
            rx: Rx::default(),
            ending: Ending::default(),
            nudge: Nudge::default(),
            heard: false,
            turn: Turn::default(),
            conn: None,
            fault: None,
        }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.shared.qpn()
    }

    /// What it was made with.
    pub fn config(&self) -> &QpConfig {
        &self.shared.config
    }

    /// What it does beyond RFC 5040.
    pub fn iwarp_config(&self) -> &IwarpConfig {
        &self.shared.iwarp
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.shared.state
    }

    /// The connection that it was last started on: the one that [`Qp::poll_close`] speaks of, also after RESET.
    pub fn conn(&self) -> Option<ConnId> {
        self.conn
    }

    /// Why its stream has not ended in good order; `None` as long as nothing is wrong.
    pub fn fault(&self) -> Option<StreamFault> {
        self.fault
    }

    /// Every attribute that iWARP has, and the state.
    pub fn query(&self) -> QpAttr {
        let sh = &self.shared;
        let depth = |d: u16| d.min(StreamParams::MAX_DEPTH) as u8;
        let set = sh.state != QpState::Reset;
        QpAttr {
            state: Some(sh.state),
            cur_state: Some(sh.state),
            access: set.then_some(sh.access),
            pkey_index: set.then_some(0),
            port: set.then_some(1),
            max_rd_atomic: sh.stream.map(|s| depth(s.ord)),
            max_dest_rd_atomic: sh.stream.map(|s| depth(s.ird)),
            ..QpAttr::default()
        }
    }

    /// Send work requests outstanding.
    pub fn sends_outstanding(&self) -> usize {
        self.requester.len()
    }

    /// Receive work requests outstanding, without those of a shared queue.
    pub fn receives_outstanding(&self) -> usize {
        self.responder.len()
    }

    /// Changes attributes and state, as one step: on an error nothing has changed. INIT to RTS is [`Qp::start`]'s alone. A
    /// move to ERR or RESET leaves the end of the connection to [`Qp::poll_close`].
    pub fn modify<E: QpEnv>(&mut self, env: &mut E, attr: &QpAttr) -> Result<(), ModifyError> {
        let from = self.shared.state;
        let to = check_modify(&self.shared.config, from, attr)?;
        if from == QpState::Sqd && matches!(to, QpState::Rts | QpState::Sqd) && !self.requester.is_drained() {
            return Err(ModifyError::StillDraining);
        }
        self.shared.access = attr.access.unwrap_or(self.shared.access);
        match (from, to) {
            (_, QpState::Reset) => self.reset(),
            (_, QpState::Err) => self.stop(env),
            (QpState::Rts, QpState::Sqd) => {
                self.shared.tell_drained = attr.en_sqd_async_notify.unwrap_or(false);
                self.shared.state = to;
                self.requester.begin_drain();
                self.requester.check_drained(&self.shared, env);
            }
            _ => self.shared.state = to,
        }
        Ok(())
    }

    /// MPA start-up is done: INIT to RTS on this stream. The next byte of the stream comes to [`Qp::handle_stream`]. On an error
    /// it stays where it was, and an initiator says so to its peer with
    /// [`Agreed::refusal`](crate::cm::iwarp::Agreed::refusal).
    pub fn start<E: QpEnv>(
        &mut self,
        _env: &mut E,
        _now: Instant,
        params: StreamParams,
    ) -> Result<(), ModifyError> {
        let from = self.shared.state;
        if from != QpState::Init {
            let ty = self.shared.config.ty;
            return Err(ModifyError::NoTransition { ty, from, to: QpState::Rts });
        }
        self.tx = Tx::new(&params);
        self.rx = Rx::new(&params);
        // RFC 5044 §7.1: the responder sends no FPDU before it has received one.
        self.heard = params.initiator;
        self.ending = Ending::default();
        self.nudge = if params.initiator { Nudge::begin() } else { Nudge::default() };
        self.fault = None;
        self.requester.start(params.rtr.filter(|_| params.initiator));
        self.conn = Some(params.conn);
        self.shared.stream = Some(params);
        self.shared.state = QpState::Rts;
        Ok(())
    }

    /// Queues a send. In ERR it completes at once, flushed, after all before it.
    pub fn post_send<E: QpEnv>(&mut self, env: &mut E, wr: SendWr) -> Result<(), PostError> {
        let state = self.shared.state;
        let (config, iwarp) = (&self.shared.config, &self.shared.iwarp);
        admit_send(config, state, self.requester.len(), || check_send(config, iwarp, &wr))?;
        self.requester.push(wr);
        if state == QpState::Err {
            self.requester.flush(&self.shared, env, None);
        }
        Ok(())
    }

    /// Queues a receive. In ERR it completes at once, flushed, after all before it.
    pub fn post_recv<E: QpEnv>(&mut self, env: &mut E, wr: RecvWr) -> Result<(), PostError> {
        let state = self.shared.state;
        admit_recv(&self.shared.config, state, self.responder.len(), wr.sges.len())?;
        if state == QpState::Err {
            env.count(Counter::RespCqeFlushError, 1);
            self.shared.complete_error(env, &wr, WcStatus::WrFlushErr, 0);
        } else {
            self.responder.push(wr);
        }
        Ok(())
    }

    /// Whether bytes of the stream are still of interest.
    fn receives(&self) -> bool {
        self.shared.stream.is_some() && self.shared.state.receives()
    }

    /// Bytes of the stream, in order, cut anywhere. Takes all of them.
    pub fn handle_stream<E: QpEnv>(&mut self, env: &mut E, now: Instant, mut bytes: &[u8]) {
        if !self.receives() {
            return;
        }
        // Out of the way while frames are handled; given back below if an FPDU is cut.
        let mut buffer = std::mem::take(&mut self.rx.partial);
        while !bytes.is_empty() && self.receives() {
            match self.rx.cut(&mut buffer, &mut bytes) {
                Cut::More => break,
                Cut::Whole(len) => {
                    let (frame, rest) = bytes.split_at(len);
                    bytes = rest;
                    self.frame(env, now, frame);
                }
                Cut::Buffered => {
                    self.frame(env, now, &buffer);
                    buffer.clear();
                }
            }
        }
        if !buffer.is_empty() && self.receives() {
            self.rx.partial = buffer;
        }
        self.settle(env, now);
    }

    /// What became of the stream.
    pub fn stream_event<E: QpEnv>(&mut self, env: &mut E, now: Instant, event: StreamEvent) {
        match event {
            StreamEvent::Written(bytes) => {
                self.tx.wrote(bytes);
                if self.shared.state != QpState::Err {
                    self.requester.retire(&self.shared, env, self.tx.written);
                }
            }
            StreamEvent::Eof => self.ended(env, false),
            StreamEvent::Reset => self.ended(env, true),
        }
        self.settle(env, now);
    }

    /// Fills `burst` (cleared first) with the next FPDUs; false if there are none now. Call until false.
    pub fn poll_transmit<E: QpEnv>(&mut self, env: &mut E, now: Instant, burst: &mut StreamBurst) -> bool {
        burst.clear();
        let Some(stream) = self.shared.stream else { return false };
        if self.shared.state == QpState::Err && !self.ending.owes_terminate() {
            return false;
        }
        burst.begin(stream.conn);
        if matches!(self.shared.state, QpState::Rts | QpState::Sqd) {
            if self.heard {
                while self.transmit_one(env, now, burst) {}
                if self.nudge.is_owed() && burst.is_empty() {
                    self.transmit_nudge(env, burst);
                }
            } else {
                // What stays here needs no peer: it does not wait for the first FPDU.
                self.requester.run_local(&self.shared, env, self.tx.written);
            }
        }
        self.settle(env, now);
        self.transmit_terminate(env, now, burst);
        env.count(Counter::SentPkts, burst.fpdus() as u64);
        if !burst.is_empty() {
            self.nudge.sent(now);
        }
        !burst.is_empty()
    }

    /// Adds one FPDU; false if nothing more goes now. Messages of both directions take turns.
    fn transmit_one<E: QpEnv>(&mut self, env: &mut E, now: Instant, burst: &mut StreamBurst) -> bool {
        let amid = self.requester.is_amid() || self.responder.is_amid();
        for _ in 0..2 {
            let step = match self.turn {
                Turn::Requests => Ok(self.requester.transmit(&self.shared, env, &mut self.tx, burst)),
                Turn::Answers => self.responder.transmit(&self.shared, env, &mut self.tx, burst),
            };
            match step {
                Ok(Step::Sent { done: false }) => return true,
                Ok(Step::Sent { done: true }) => {
                    self.other_turn();
                    return true;
                }
                Ok(Step::Full) => return false,
                // A message that was begun and can't go on has failed.
                Ok(Step::Nothing) if amid => return false,
                Ok(Step::Nothing) => self.other_turn(),
                Err(refusal) => {
                    // RFC 5040 §4.8: it is the request that can't be answered which the message is about.
                    let request = self.responder.unanswerable();
                    self.refuse(env, now, refusal, request.as_ref().map(|r| &r[..]));
                    return false;
                }
            }
        }
        false
    }

    /// Between two messages, where nothing is in flight: else there is no want of bytes.
    #[cold]
    fn transmit_nudge<E: QpEnv>(&mut self, env: &mut E, burst: &mut StreamBurst) {
        let amid = self.requester.is_amid() || self.responder.is_amid();
        if !amid && self.tx.in_flight() == 0 && !self.ending.has_said_its_end() {
            push_empty_write(env, &mut self.tx, burst);
        }
    }

    fn other_turn(&mut self) {
        self.turn = if self.turn == Turn::Requests { Turn::Answers } else { Turn::Requests };
    }

    /// Says once that the connection is to be ended, and how.
    pub fn poll_close(&mut self) -> Option<Close> {
        self.ending.take_close()
    }

    /// When to call [`Qp::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.ending.deadline().into_iter().chain(self.nudge.due()).min()
    }
}
