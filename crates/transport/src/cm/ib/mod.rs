//! The InfiniBand communication manager, without IO: the agent behind QP1 that connects queue pairs.
//!
//! Read first: IBTA volume 1 §12.6–12.9 (messages, parameters, states) and §12.11 (SIDR). [`Cm`] is driven like every part of
//! this crate: MADs, calls and time go in, then [`Cm::poll_transmit`], [`Cm::poll_event`] and [`Cm::poll_timeout`] are
//! drained. It changes no queue pair: it says what a queue pair must be told ([`QpParams`]) and which QPN must not be reused
//! yet. The IP header in the private data, addresses and ports are the business of `everywire_verbs::cm_id`. Alternate paths,
//! redirection and RD are refused by name.
//!
//! A connection's records are in `conn`, its life is the table in `state`; `active`, `passive` and `disconnect` perform it.

mod active;
mod config;
mod conn;
mod counters;
mod disconnect;
mod events;
mod listeners;
mod message;
mod passive;
mod receive;
mod sidr;
mod state;
mod timers;
mod types;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use everywire_wire::{Psn, Qpn};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

pub use config::*;
pub use counters::CmCounters;
pub use events::{CmCallError, CmEvent};
pub use message::Reject;
pub use state::{Act, Input, State, Step, step};
pub use types::*;

use crate::mad::{MAD_LEN, MadPath};
use conn::{Conn, Conns};
use listeners::Listeners;
use sidr::Sidrs;

/// The connection manager of one port.
#[derive(Debug)]
pub struct Cm {
    config: CmConfig,
    rng: ChaCha8Rng,
    /// Upper half of every transaction id of this engine.
    tid_high: u32,
    listeners: Listeners,
    conns: Conns,
    sidrs: Sidrs,
    out: VecDeque<(MadPath, Box<[u8; MAD_LEN]>)>,
    events: VecDeque<CmEvent>,
    counters: CmCounters,
    /// For tests of what follows when an id comes back.
    forced_id: Option<CommId>,
}

impl Cm {
    /// A connection manager whose ids and PSNs come from `seed`.
    pub fn new(config: CmConfig, seed: u64) -> Cm {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let tid_high = rng.next_u32();
        Cm {
            config,
            rng,
            tid_high,
            listeners: Listeners::default(),
            conns: Conns::default(),
            sidrs: Sidrs::default(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
            forced_id: None,
        }
    }

    /// The next fresh id is this one, if it is free: for tests of what follows when an id comes back.
    #[doc(hidden)]
    pub fn force_next_id(&mut self, id: CommId) {
        self.forced_id = Some(id);
    }

    /// Starts to take requests for a service.
    pub fn listen(&mut self, params: &ListenParams) -> Result<ListenerId, CmCallError> {
        self.listeners.add(params)
    }

    /// Stops to take requests. Requests that were reported already can still be answered.
    pub fn unlisten(&mut self, id: ListenerId) {
        self.listeners.remove(id);
    }

    /// The next MAD to send, from QP1 to the peer's QP1.
    pub fn poll_transmit(&mut self) -> Option<(MadPath, Box<[u8; MAD_LEN]>)> {
        self.out.pop_front()
    }

    /// Whether [`Cm::poll_transmit`] has something.
    pub fn has_transmit(&self) -> bool {
        !self.out.is_empty()
    }

    /// The next thing the program must hear.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// When [`Cm::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let conn = self.conns.next_timer().map(|(at, _)| at);
        let sidr = self.sidrs.next_timer().map(|(at, _)| at);
        conn.into_iter().chain(sidr).min()
    }

    /// Whether a queue pair number is in time-wait and must not be given to a new queue pair.
    pub fn qpn_in_timewait(&self, qpn: Qpn) -> bool {
        self.conns.holds_qpn(qpn)
    }

    /// Where a connection is in its life; `None` when it is over.
    pub fn state(&self, id: CommId) -> Option<State> {
        self.conns.get(id).map(|conn| conn.state)
    }

    /// Whether an id is in use, by a connection or by a SIDR exchange. Once it is not, it can come back as another's.
    pub fn knows(&self, id: CommId) -> bool {
        self.conns.contains(id) || self.sidrs.contains(id)
    }

    /// What a connection's queue pair is or will be told, as far as it is known.
    pub fn qp_params(&self, id: CommId) -> Option<QpParams> {
        self.conns.get(id).map(|conn| conn.params)
    }

    /// How often a message has been sent that nothing has come back for, and how long after one another; `None` where none is
    /// out.
    pub fn unanswered(&self, id: CommId) -> Option<(u8, Duration)> {
        if let Some(asked) = self.sidrs.unanswered(id) {
            return Some(asked);
        }
        let conn = self.conns.get(id).filter(|conn| conn.deadline.is_some() && conn.mras == 0)?;
        let waits = matches!(conn.state, State::ReqSent | State::RepSent);
        waits.then(|| ((conn.retries - conn.retries_left.min(conn.retries)).saturating_add(1), conn.interval))
    }

    /// What happened so far.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// What it was configured with.
    pub fn config(&self) -> &CmConfig {
        &self.config
    }

    /// Entries in all tables and queues together: what must stay flat, however many connections came and went.
    pub fn footprint(&self) -> usize {
        self.conns.footprint()
            + self.sidrs.footprint()
            + self.listeners.len()
            + self.out.len()
            + self.events.len()
    }

    /// An id nobody uses, from entropy, in this process's slot.
    fn fresh_id(&mut self) -> CommId {
        if let Some(id) = self.forced_id.take().filter(|id| !self.knows(*id)) {
            return id;
        }
        // The tables hold at most 2^17 of 2^24 ids, so this ends after a few draws.
        loop {
            let mut raw = self.rng.next_u32();
            if let Some(slot) = self.config.id_slot {
                raw = raw & 0x00ff_ffff | u32::from(slot) << 24;
            }
            let id = CommId(raw);
            if raw != 0 && !self.knows(id) {
                return id;
            }
        }
    }

    fn fresh_psn(&mut self) -> Psn {
        Psn::new(self.rng.next_u32())
    }

    fn tid(&self, id: CommId) -> u64 {
        u64::from(self.tid_high) << 32 | u64::from(id.0)
    }

    /// Live connections: all but those in time-wait.
    fn live(&self) -> usize {
        self.conns.len() - self.conns.timewait_len()
    }

    fn send(&mut self, path: MadPath, mad: Box<[u8; MAD_LEN]>) {
        if self.out.len() >= MAX_QUEUED_MADS {
            self.counters.queue_full += 1;
            return;
        }
        self.counters.sent += 1;
        self.out.push_back((path, mad));
    }

    /// Sends the connection's last message once more.
    fn repeat(&mut self, id: CommId) {
        if let Some(conn) = self.conns.get(id)
            && let Some(mad) = conn.last.clone()
        {
            let path = conn.path;
            self.send(path, mad);
        }
    }

    /// Queues an event, unless the program let go of the connection.
    fn tell(&mut self, id: CommId, event: CmEvent) {
        if self.conns.get(id).is_some_and(|conn| conn.owned) {
            self.events.push_back(event);
        }
    }

    /// What the table says about a call of the program, or the error for it.
    fn allowed(&mut self, id: CommId, input: Input, call: &'static str) -> Result<Step, CmCallError> {
        let state = self.state(id).ok_or(CmCallError::UnknownId(id))?;
        let step = step(state, input);
        if step.act == Act::Refuse {
            return Err(CmCallError::WrongState { id, call, state });
        }
        Ok(step)
    }

    /// Puts the record into the state that follows an act.
    fn settle(&mut self, now: Instant, id: CommId, next: Option<State>) {
        let answering = matches!(next, Some(State::ReqReceived | State::ReqMraSent));
        let Some(conn) = self.conns.get_mut(id) else { return };
        if !answering && let Some(listener) = conn.pending_on.take() {
            self.listeners.free_place(listener);
        }
        match next {
            None => {
                self.conns.remove(id);
            }
            Some(State::Timewait) if conn.state != State::Timewait => self.enter_timewait(now, id),
            Some(state) => conn.state = state,
        }
    }

    /// IBTA §12.9.8.4: the QPN rests until packets of the old connection have died.
    fn enter_timewait(&mut self, now: Instant, id: CommId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.retries_left = 0;
        let rest = self.config.time_wait(conn.params.ack_timeout);
        self.conns.enter_timewait(id, now + rest);
        while self.conns.timewait_len() > self.config.max_timewait.min(MAX_TIMEWAIT)
            && let Some(oldest) = self.conns.oldest_timewait()
        {
            self.counters.timewait_early += 1;
            self.forget(oldest);
        }
    }

    /// Ends a time-wait.
    fn forget(&mut self, id: CommId) {
        let Some(conn) = self.conns.remove(id) else { return };
        if conn.owned
            && let Some(qpn) = conn.qpn
        {
            self.events.push_back(CmEvent::TimewaitExit { id, qpn });
        }
    }

    /// A new record, not yet in the table.
    fn new_conn(&self, id: CommId, state: State, params: QpParams, tid: u64) -> Conn {
        let interval = CmConfig::retry_interval(self.config.response_timeout, params.ack_timeout);
        let retries = self.config.max_retries.min(15);
        Conn {
            id,
            remote_id: None,
            state,
            owned: true,
            path: params.path,
            tid,
            own_tid: self.tid(id),
            qpn: None,
            req: None,
            pending_on: None,
            params,
            interval,
            retries,
            retries_left: 0,
            mras: 0,
            deadline: None,
            last: None,
        }
    }

    /// Sends a message that must be answered and starts its timer.
    fn send_and_wait(&mut self, now: Instant, id: CommId, mad: Box<[u8; MAD_LEN]>) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.last = Some(mad.clone());
        conn.retries_left = conn.retries;
        conn.mras = 0;
        let (path, at) = (conn.path, now + conn.interval);
        self.send(path, mad);
        self.conns.arm(id, at);
    }

    /// Starts the timer for the program's answer: as long as a peer of our own patience would wait.
    fn wait_for_program(&mut self, now: Instant, id: CommId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.retries_left = 0;
        let at = now + conn.interval * (u32::from(conn.retries) + 1);
        self.conns.arm(id, at);
    }

    /// Whether `path` is where this connection's peer speaks from.
    fn same_peer(conn: &Conn, path: &MadPath) -> bool {
        (conn.path.remote, conn.path.local) == (path.remote, path.local)
    }

    /// The network reports that nobody is at `remote`. Ends attempts and disconnects under way, never a connection.
    pub fn unreachable(&mut self, now: Instant, remote: IpAddr) {
        for id in self.conns.to(remote) {
            let Some(state) = self.state(id) else { continue };
            let step = step(state, Input::Unreachable);
            match step.act {
                Act::NobodyThere => self.tell(id, CmEvent::Failed { id, failure: Failure::Unreachable }),
                Act::DisconnectTimedOut => self.tell_disconnected(id, DisconnectCause::TimedOut, Vec::new()),
                _ => continue,
            }
            self.settle(now, id, step.next);
        }
        self.sidr_unreachable(remote);
    }
}
