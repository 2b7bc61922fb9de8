//! One message at a time. WRITE and SEND are ping-pongs, and half a round trip is reported as perftest does; READ and
//! atomics answer themselves. Both sides spin: this measures the path, not the scheduler.

use std::time::{Duration, Instant};

use everywire_verbs::{
    Completion, Cq, MemoryRegion, Qp, QpState, QpType, RecvWr, Remote, SendOp, SendWr, UdDest, WcStatus,
};

use super::client::Link;
use super::datagram::GRH_BYTES;
use super::report::Measured;
use super::{Operation, Plan};
use crate::error::{self, CliError};
use crate::probe;
use crate::samples::Samples;

/// Spins between two looks at the queue pair's state and the clock.
const SPINS_PER_STATE_CHECK: u32 = 4096;
/// So long without the peer's message, and it is not waited for any more: an unreliable service may have lost it.
const SILENCE: Duration = super::datagram::IDLE;

/// One side of a ping-pong.
pub struct PingPong<'a> {
    /// Queue pair to send on.
    pub qp: &'a Qp,
    /// Completions of both queues.
    pub cq: &'a Cq,
    /// What is sent, and where the peer writes; the second half receives SENDs.
    pub buffer: &'a MemoryRegion,
    /// The peer's buffer.
    pub remote: Remote,
    /// Bytes of a message.
    pub size: usize,
    /// On UD, where to.
    pub ud: Option<UdDest>,
    done: Vec<Completion>,
}

/// What a wait ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The peer's message is here.
    Arrived,
    /// The connection is gone.
    Closed,
    /// Nothing came.
    Silence,
}

impl<'a> PingPong<'a> {
    /// A side. For SENDs, its first receive must be posted with [`PingPong::receive_into`] before the peer may send.
    pub fn new(
        qp: &'a Qp,
        cq: &'a Cq,
        buffer: &'a MemoryRegion,
        remote: Remote,
        size: usize,
        ud: Option<UdDest>,
    ) -> PingPong<'a> {
        PingPong { qp, cq, buffer, remote, size, ud, done: Vec::with_capacity(8) }
    }

    /// The receive of a SEND of `size` bytes, into the second half of the buffer.
    pub fn receive_into(buffer: &MemoryRegion, size: usize) -> RecvWr {
        let half = buffer.len() / 2;
        RecvWr::new(1, [buffer.sge(half..half + size)])
    }

    /// Writes `turn` into the last byte of the message at the peer.
    pub fn write(&mut self, turn: u8) -> Result<(), CliError> {
        let half = self.buffer.len() / 2;
        self.buffer.write_at(half + self.size - 1, &[turn]).map_err(CliError::failed)?;
        let wr = SendWr::new(0, SendOp::Write { remote: self.remote });
        self.post(wr.with_sges([self.buffer.sge(half..half + self.size)]))
    }

    /// Sends a message.
    pub fn send(&mut self) -> Result<(), CliError> {
        let mut wr = SendWr::new(0, SendOp::Send);
        wr.ud = self.ud;
        self.post(wr.with_sges([self.buffer.sge(..self.size)]))
    }

    fn post(&mut self, wr: SendWr) -> Result<(), CliError> {
        self.qp.post_send(wr).map_err(|e| CliError::failed(format_args!("post: {e}")))
    }

    /// Spins until the last byte of our buffer's first message is `turn`.
    pub fn await_write(&mut self, turn: u8) -> Result<Turn, CliError> {
        let mut last = [0];
        let mut patience = Patience::new();
        loop {
            self.poll()?;
            self.buffer.read_at(self.size - 1, &mut last).map_err(CliError::failed)?;
            if last[0] == turn {
                return Ok(Turn::Arrived);
            }
            if let Some(end) = patience.over(self.qp) {
                return Ok(end);
            }
        }
    }

    /// Spins until a SEND arrived, and posts the next receive.
    pub fn await_send(&mut self) -> Result<Turn, CliError> {
        let mut patience = Patience::new();
        loop {
            match self.poll()? {
                Some(WcStatus::Success) => {
                    let wr = PingPong::receive_into(self.buffer, self.size + self.headroom());
                    self.qp.post_recv(wr).map_err(|e| CliError::failed(format_args!("post receive: {e}")))?;
                    return Ok(Turn::Arrived);
                }
                Some(_) => return Ok(Turn::Closed),
                None => {
                    if let Some(end) = patience.over(self.qp) {
                        return Ok(end);
                    }
                }
            }
        }
    }

    /// Bytes that come before the message: the GRH on UD.
    fn headroom(&self) -> usize {
        if self.ud.is_some() { GRH_BYTES } else { 0 }
    }

    /// Takes completions; the status of a receive, if there was one.
    fn poll(&mut self) -> Result<Option<WcStatus>, CliError> {
        self.done.clear();
        self.cq.poll(&mut self.done, 8).map_err(CliError::failed)?;
        let mut received = None;
        for done in &self.done {
            if done.wr_id == 1 {
                received = Some(done.status);
            } else if done.status != WcStatus::Success && done.status != WcStatus::WrFlushErr {
                return Err(CliError::peer(error::ended(done.status, None, None)));
            }
        }
        Ok(received)
    }
}

/// How long a wait lasts. It looks at the clock seldom, since that costs as much as looking for a message.
struct Patience {
    spins: u32,
    since: Option<Instant>,
}

impl Patience {
    fn new() -> Patience {
        Patience { spins: 0, since: None }
    }

    /// Why waiting is over, if it is. A reliable connection ends by itself when the peer is gone, which it learns by asking.
    fn over(&mut self, qp: &Qp) -> Option<Turn> {
        self.spins = self.spins.wrapping_add(1);
        if !self.spins.is_multiple_of(SPINS_PER_STATE_CHECK) {
            return None;
        }
        if qp.state() == QpState::Err {
            return Some(Turn::Closed);
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if qp.ty() == QpType::Rc {
            if since.elapsed() > probe::SILENCE {
                probe::ask(qp);
                self.since = None;
            }
            return None;
        }
        (since.elapsed() > SILENCE).then_some(Turn::Silence)
    }
}

/// The measuring side.
pub fn run(link: &Link, plan: &Plan) -> Result<Measured, CliError> {
    match plan.operation {
        Operation::Write | Operation::Send => ping_pong(link, plan),
        Operation::Read | Operation::Atomic => super::throughput::run(std::slice::from_ref(link), plan),
    }
}

fn ping_pong(link: &Link, plan: &Plan) -> Result<Measured, CliError> {
    let size = plan.size as usize;
    let mut side = PingPong::new(&link.qp, &link.cq, &link.buffer, link.remote, size, link.ud);
    let mut samples = Samples::new();
    let start = Instant::now();
    let deadline = start + plan.duration;
    let mut turns = 0_u64;
    let mut before = start;
    while before < deadline {
        turns += 1;
        let turn = Plan::turn(turns);
        let who = &link.who;
        let outcome = match plan.operation {
            Operation::Write => side.write(turn).and_then(|()| side.await_write(turn)),
            _ => side.send().and_then(|()| side.await_send()),
        };
        let outcome = outcome.map_err(|e| e.within(format_args!("{who}: in turn {turns}")))?;
        match outcome {
            Turn::Arrived => {}
            Turn::Closed => {
                let why = link.ended(WcStatus::WrFlushErr, None);
                return Err(CliError::peer(format_args!("{who}: in turn {turns}: {why}")));
            }
            Turn::Silence => {
                let text =
                    format_args!("{who}: no message for {} s in turn {turns}: lost", SILENCE.as_secs());
                return Err(CliError::peer(text));
            }
        }
        let now = Instant::now();
        samples.record((now - before) / 2);
        before = now;
    }
    // Each turn carries a message each way.
    Ok(Measured::new(turns * 2, plan.size, start.elapsed(), &samples))
}
