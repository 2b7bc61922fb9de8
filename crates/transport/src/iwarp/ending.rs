//! How an iWARP connection ends: TERMINATE from either end, a graceful close, a stream that is gone.
//!
//! Read RFC 5040 §6.2 (teardown) and §4.8 (TERMINATE), RFC 5044 §7.2. Whoever finds an error sends one TERMINATE as its last
//! message and closes; whoever receives one closes. `disconnect` finishes what was posted first. What is outstanding is
//! flushed, and the queue pair goes to ERR. The FIN or RST itself is the driver's, asked for through [`Qp::poll_close`].

use std::time::{Duration, Instant};

use everywire_wire::ddp::DdpHeader;
use everywire_wire::mpa;
use everywire_wire::rdmap::{RdmapOpcode, ReadRequest, TermError, Terminate};

use super::burst::StreamBurst;
use super::fault::{Refusal, status_of};
use super::params::{Close, StreamFault};
use super::qp::Qp;
use super::requester::{Blamed, untagged};
use super::tx::{Source, Tx};
use crate::ib::attr::QpState;
use crate::ib::env::{Counter, QpEnv, QpEvent};
use crate::ib::wr::WcStatus;

/// How long a TERMINATE message may take to be written before the connection is reset.
pub const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a graceful close may stand still before the connection is reset. It starts again with every byte written, work
/// request done or piece of a READ landed while what was posted before `disconnect` is finished, however much that is; it
/// runs once for what the peer has begun, and once from our FIN to the peer's.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How far the end has come.
#[derive(Debug, Default)]
enum Stage {
    /// No end in sight.
    #[default]
    Running,
    /// `disconnect`: what was posted before is finished first.
    Draining,
    /// Our FIN was asked for; the peer's is waited for.
    HalfClosed,
    /// A TERMINATE message is to be sent.
    Terminate(Box<Terminate>),
    /// It was given to the driver, up to this stream position.
    Terminated(u64),
    /// Nothing more to do.
    Over,
}

#[derive(Debug, Default)]
pub(super) struct Ending {
    stage: Stage,
    close: Option<Close>,
    deadline: Option<Instant>,
    /// While draining: how far it had come when the deadline was set.
    reached: Progress,
}

/// Bytes written, work requests done, bytes of a READ landed.
type Progress = (u64, (u64, u32));

impl Ending {
    pub(super) fn owes_terminate(&self) -> bool {
        matches!(self.stage, Stage::Terminate(_))
    }

    /// Whether the stream has nothing more of ours behind what it has.
    pub(super) fn has_said_its_end(&self) -> bool {
        !matches!(self.stage, Stage::Running | Stage::Draining)
    }

    pub(super) fn take_close(&mut self) -> Option<Close> {
        self.close.take()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn finish(&mut self, close: Option<Close>) {
        *self = Ending { stage: Stage::Over, close, ..Ending::default() };
    }
}

impl Qp {
    /// Ends the connection in good order (rdma_disconnect): what was posted so far is finished, then the stream is closed,
    /// and with the peer's close everything left is flushed. Work requests posted later are flushed then.
    pub fn disconnect<E: QpEnv>(&mut self, _env: &mut E, now: Instant) {
        let running = matches!(self.ending.stage, Stage::Running);
        if running && self.shared.stream.is_some() && self.shared.state != QpState::Err {
            self.requester.begin_close();
            self.ending.stage = Stage::Draining;
            self.ending.deadline = now.checked_add(CLOSE_TIMEOUT);
            self.ending.reached = self.progress();
            self.check_closed(now);
        }
    }

    fn progress(&self) -> Progress {
        (self.tx.written, self.requester.progress())
    }

    /// Moves it to ERR for a reason of the device (a completion queue that overflowed): raises QP_FATAL, says TERMINATE to
    /// the peer if that can go at once, and flushes. The time that the TERMINATE has counts from the next
    /// [`Qp::poll_transmit`], which is due.
    pub fn fail<E: QpEnv>(&mut self, env: &mut E) {
        if self.shared.state == QpState::Reset || self.shared.state == QpState::Err {
            return;
        }
        env.event(self.qpn(), QpEvent::Fatal);
        let term = Terminate::new(TermError::LOCAL_CATASTROPHIC);
        self.fault.get_or_insert(StreamFault::Ours(term.error));
        if self.shared.stream.is_some() && self.tx.in_flight() == 0 {
            self.ending.stage = Stage::Terminate(Box::new(term));
        } else {
            self.ending.finish(self.shared.stream.map(|_| Close::Abort));
        }
        self.enter_err(env, None);
    }

    /// To be called before it is dropped: nothing is completed. The connection is the device's to end, as
    /// [`Qp::poll_close`] says.
    pub fn close<E: QpEnv>(&mut self, _env: &mut E) {
        self.reset();
    }

    /// To RESET, without completions.
    pub(super) fn reset(&mut self) {
        let close = self.ending.take_close().or_else(|| self.leave());
        let (config, iwarp) = (self.shared.config.clone(), self.shared.iwarp);
        let conn = self.conn;
        *self = Qp::new(config, iwarp);
        self.conn = conn;
        self.ending.finish(close);
    }

    /// A move to ERR that the consumer asked for.
    pub(super) fn stop<E: QpEnv>(&mut self, env: &mut E) {
        if self.shared.state == QpState::Err {
            return;
        }
        let close = self.leave();
        self.ending.finish(close);
        self.enter_err(env, None);
    }

    /// How to leave a connection that is still up: with a FIN, so that what was completed arrives, unless a message would
    /// be cut short unnoticed.
    fn leave(&self) -> Option<Close> {
        let up = matches!(self.ending.stage, Stage::Running | Stage::Draining);
        self.shared.stream.filter(|_| up && self.shared.state != QpState::Err)?;
        let amid = self.requester.is_amid() || self.responder.is_amid();
        Some(if amid { Close::Abort } else { Close::Graceful })
    }

    /// Refuses what the peer sent (or what we can't do): TERMINATE, the receive in use completed in error or else an event,
    /// and ERR.
    pub(super) fn refuse<E: QpEnv>(
        &mut self,
        env: &mut E,
        now: Instant,
        refusal: Refusal,
        segment: Option<&[u8]>,
    ) {
        match refusal.status {
            WcStatus::LocLenErr => env.count(Counter::RespLocalLengthError, 1),
            WcStatus::LocAccessErr => env.count(Counter::RespRemoteAccessErrors, 1),
            _ => {}
        }
        let term = term_of(refusal.error, segment);
        let answer = term.ddp.is_some_and(|d| {
            let opcode = RdmapOpcode::from_bits(d.ulp & 0x0f);
            matches!(opcode, Some(RdmapOpcode::ReadResponse | RdmapOpcode::AtomicResponse))
        });
        let blamed = if answer { self.requester.blame_answer() } else { None };
        let vendor_err = u32::from(refusal.error.to_u16());
        let told = self.responder.fail_landing(&self.shared, env, refusal.status, vendor_err);
        if !told && blamed.is_none() {
            env.event(self.qpn(), refusal.event);
        }
        self.terminate(env, now, term, blamed);
    }

    fn terminate<E: QpEnv>(&mut self, env: &mut E, now: Instant, term: Terminate, blamed: Option<Blamed>) {
        self.fault.get_or_insert(StreamFault::Ours(term.error));
        self.ending.stage = Stage::Terminate(Box::new(term));
        self.ending.deadline = now.checked_add(TERMINATE_TIMEOUT);
        self.enter_err(env, blamed);
    }

    /// The peer's TERMINATE: the work request it names ends with what it says, else an event tells; then we close.
    pub(super) fn terminated<E: QpEnv>(&mut self, env: &mut E, _now: Instant, payload: &[u8]) {
        let unknown = Terminate::new(TermError::LOCAL_CATASTROPHIC);
        let term = Terminate::parse(payload).unwrap_or(unknown);
        self.fault.get_or_insert(StreamFault::Peers(term.error));
        let blamed = self.requester.blame(&term, status_of(&term));
        if blamed.is_none() {
            env.event(self.qpn(), QpEvent::Fatal);
        }
        self.ending.finish(Some(Close::Graceful));
        self.enter_err(env, blamed);
    }

    /// The stream has ended: nothing more comes, or it is gone.
    pub(super) fn ended<E: QpEnv>(&mut self, env: &mut E, gone: bool) {
        let ours_is_closed = matches!(self.ending.stage, Stage::HalfClosed | Stage::Over);
        let pending = self.ending.take_close();
        let close = match gone {
            true => None,
            false if ours_is_closed && pending.is_none() => None,
            false => Some(pending.unwrap_or(Close::Graceful)),
        };
        if gone || !self.ending.owes_terminate() {
            self.ending.finish(close);
        }
        if self.shared.stream.is_some() && self.shared.state.receives() {
            let amid = self.responder.is_amid_message() || self.requester.is_amid_answer();
            if !gone && (amid || !self.rx.partial.is_empty()) {
                self.fault.get_or_insert(StreamFault::CutShort);
            }
            self.enter_err(env, None);
        }
    }

    /// To ERR: everything is flushed, but for one work request that is to blame.
    fn enter_err<E: QpEnv>(&mut self, env: &mut E, blamed: Option<Blamed>) {
        let before = self.shared.state;
        self.shared.state = QpState::Err;
        self.nudge.stop();
        self.rx.partial = Vec::new();
        self.requester.flush(&self.shared, env, blamed);
        self.responder.flush(&self.shared, env);
        // No further receive of the shared queue will be completed for this queue pair.
        if self.shared.config.srq.is_some() && before != QpState::Err {
            env.event(self.qpn(), QpEvent::LastWqeReached);
        }
    }

    /// Carries out what the call at hand has led to.
    pub(super) fn settle<E: QpEnv>(&mut self, env: &mut E, now: Instant) {
        if self.requester.take_broken() && self.shared.state != QpState::Err {
            // A work request of ours failed here: the peer learns no more than that (as from Linux siw).
            self.terminate(env, now, Terminate::new(TermError::LOCAL_CATASTROPHIC), None);
        }
        self.check_closed(now);
    }

    /// Whether the next stage of the end is reached.
    fn check_closed(&mut self, now: Instant) {
        let idle = self.tx.in_flight() == 0;
        match self.ending.stage {
            Stage::Draining if idle && self.requester.is_closed() && !self.responder.is_busy() => {
                self.ending.stage = Stage::HalfClosed;
                self.nudge.stop();
                self.ending.close = Some(Close::Graceful);
                self.ending.deadline = now.checked_add(CLOSE_TIMEOUT);
            }
            Stage::Draining if !self.requester.is_closed() && self.ending.reached != self.progress() => {
                self.ending.reached = self.progress();
                self.ending.deadline = now.checked_add(CLOSE_TIMEOUT);
            }
            Stage::Terminated(end) if self.tx.written >= end => self.ending.finish(Some(Close::Graceful)),
            _ => {}
        }
    }

    /// The TERMINATE message, once the FPDU before it is complete, which it always is here.
    pub(super) fn transmit_terminate<E: QpEnv>(
        &mut self,
        env: &mut E,
        now: Instant,
        burst: &mut StreamBurst,
    ) {
        let Stage::Terminate(term) = &self.ending.stage else { return };
        // A peer that does not read must not hold the stream, whoever asked for the message.
        self.ending.deadline = self.ending.deadline.or(now.checked_add(TERMINATE_TIMEOUT));
        if let Some(end) = push_terminate(env, &mut self.tx, burst, term) {
            self.ending.stage = Stage::Terminated(end);
        }
    }

    /// Time has passed.
    pub fn handle_timeout<E: QpEnv>(&mut self, env: &mut E, now: Instant) {
        if self.ending.deadline.is_some_and(|t| t <= now) {
            self.nudge.stop();
            self.ending.finish(Some(Close::Abort));
            if self.shared.state != QpState::Err {
                self.enter_err(env, None);
            }
        }
        self.nudge.expire(now);
        self.settle(env, now);
    }
}

fn push_terminate<E: QpEnv>(
    env: &mut E,
    tx: &mut Tx,
    burst: &mut StreamBurst,
    term: &Terminate,
) -> Option<u64> {
    let mut message = Vec::with_capacity(Terminate::MAX_LEN);
    term.emit(&mut message);
    let mut head = [0; DdpHeader::UNTAGGED_LEN];
    untagged(RdmapOpcode::Terminate, true, 1, 0).emit(&mut head);
    if !burst.admits(mpa::fpdu_len(head.len() + message.len()) + mpa::MARKER_INTERVAL as usize) {
        return None;
    }
    tx.push(burst, env.memory(), &head, &Source::Bytes(&message), message.len()).ok()?;
    Some(tx.pos)
}

/// RFC 5040 §4.8: which headers go along. None for what is wrong below DDP or here.
fn term_of(error: TermError, segment: Option<&[u8]>) -> Terminate {
    let mut term = Terminate::new(error);
    let Some(segment) = segment.filter(|_| error.layer < 2 && error != TermError::LOCAL_CATASTROPHIC) else {
        return term;
    };
    let Ok(header) = DdpHeader::parse(segment) else { return term };
    term.segment_len = Some(segment.len() as u16);
    term.ddp = Some(header);
    let is_read = RdmapOpcode::from_bits(header.ulp & 0x0f) == Some(RdmapOpcode::ReadRequest);
    if error.layer == 0 && is_read {
        term.read = segment.get(header.header_len()..).and_then(|p| ReadRequest::parse(p).ok());
    }
    term
}
