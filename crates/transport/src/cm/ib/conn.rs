//! One connection's record, and the tables that find it.
//!
//! A record is found by our communication id, by the peer's (a repeated REQ), or by the peer's queue pair (a stale
//! connection). Ordered maps keep every walk the same for the same seed. What happens to a record is in `active`, `passive`
//! and `disconnect`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use everywire_wire::{Psn, Qpn};

use super::state::State;
use super::types::{CommId, ListenerId, QpParams};
use crate::mad::{MAD_LEN, MadPath};

/// What identifies a REQ beyond its sender's communication id: equal for a repeated one, different for a new life of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReqIdentity {
    pub tid: u64,
    pub qpn: Qpn,
    pub psn: Psn,
    /// Whether it proposes an alternate path.
    pub alternate_path: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub id: CommId,
    /// The peer's communication id, once known.
    pub remote_id: Option<u32>,
    pub state: State,
    /// `false` once the program let go: no more events.
    pub owned: bool,
    pub path: MadPath,
    /// Transaction id of the REQ, used by every message up to RTU and by REJ.
    pub tid: u64,
    /// Transaction id of our own DREQ.
    pub own_tid: u64,
    pub qpn: Option<Qpn>,
    /// Passive side: the REQ that made this connection.
    pub req: Option<ReqIdentity>,
    /// Passive side, until answered: the listener whose backlog it takes.
    pub pending_on: Option<ListenerId>,
    /// What the queue pair is or will be told. `dest_qpn` and `sq_psn` mean something from REP (active) or REQ (passive) on.
    pub params: QpParams,
    /// Time between transmissions.
    pub interval: Duration,
    /// Retransmissions allowed for each message.
    pub retries: u8,
    /// Retransmissions left for the message that is out.
    pub retries_left: u8,
    /// MRAs honoured for the message that is out.
    pub mras: u8,
    /// When the timer fires; mirrored in [`Conns::timers`].
    pub deadline: Option<Instant>,
    /// The last message sent, for as long as it may have to be repeated.
    pub last: Option<Box<[u8; MAD_LEN]>>,
}

/// Which peer communication id this is.
type RemoteKey = (IpAddr, u32);

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Conns {
    by_id: BTreeMap<CommId, Conn>,
    by_remote_id: BTreeMap<RemoteKey, CommId>,
    by_remote_qpn: BTreeMap<(IpAddr, Qpn), CommId>,
    /// Every armed timer.
    timers: BTreeSet<(Instant, CommId)>,
    /// Records in time-wait, by when they leave it.
    timewait: BTreeSet<(Instant, CommId)>,
    /// Our queue pair numbers in time-wait.
    held_qpns: BTreeMap<Qpn, u32>,
}

impl Conns {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn timewait_len(&self) -> usize {
        self.timewait.len()
    }

    pub fn get(&self, id: CommId) -> Option<&Conn> {
        self.by_id.get(&id)
    }

    pub fn get_mut(&mut self, id: CommId) -> Option<&mut Conn> {
        self.by_id.get_mut(&id)
    }

    pub fn contains(&self, id: CommId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub fn insert(&mut self, conn: Conn) {
        self.by_id.insert(conn.id, conn);
    }

    /// Every connection to `remote`, in the order of their ids.
    pub fn to(&self, remote: IpAddr) -> Vec<CommId> {
        self.by_id.values().filter(|c| c.path.remote == remote).map(|c| c.id).collect()
    }

    /// The connection for which the peer at `remote` uses its communication id `remote_id`.
    pub fn by_remote_id(&self, remote: IpAddr, remote_id: u32) -> Option<CommId> {
        self.by_remote_id.get(&(remote, remote_id)).copied()
    }

    /// The live connection to queue pair `qpn` at `remote`.
    pub fn by_remote_qpn(&self, remote: IpAddr, qpn: Qpn) -> Option<CommId> {
        self.by_remote_qpn.get(&(remote, qpn)).copied()
    }

    /// Writes down the peer's id and queue pair, so that repeated and stale requests are seen.
    pub fn learn_remote(&mut self, id: CommId, remote_id: u32, remote_qpn: Qpn) {
        let Some(conn) = self.by_id.get_mut(&id) else { return };
        conn.remote_id = Some(remote_id);
        conn.params.dest_qpn = remote_qpn;
        self.by_remote_id.insert((conn.path.remote, remote_id), id);
        self.by_remote_qpn.insert((conn.path.remote, remote_qpn), id);
    }

    /// Arms the connection's only timer.
    pub fn arm(&mut self, id: CommId, at: Instant) {
        self.disarm(id);
        if let Some(conn) = self.by_id.get_mut(&id) {
            conn.deadline = Some(at);
            self.timers.insert((at, id));
        }
    }

    pub fn disarm(&mut self, id: CommId) {
        if let Some(conn) = self.by_id.get_mut(&id)
            && let Some(at) = conn.deadline.take()
        {
            self.timers.remove(&(at, id));
            self.timewait.remove(&(at, id));
        }
    }

    /// The earliest timer.
    pub fn next_timer(&self) -> Option<(Instant, CommId)> {
        self.timers.first().copied()
    }

    /// Moves the record to time-wait until `until`: the peer's queue pair is forgotten, ours is held.
    pub fn enter_timewait(&mut self, id: CommId, until: Instant) {
        self.forget_remote_qpn(id);
        self.arm(id, until);
        let Some(conn) = self.by_id.get_mut(&id) else { return };
        conn.state = State::Timewait;
        conn.last = None;
        self.timewait.insert((until, id));
        if let Some(qpn) = conn.qpn {
            *self.held_qpns.entry(qpn).or_default() += 1;
        }
    }

    /// The record that leaves time-wait first.
    pub fn oldest_timewait(&self) -> Option<CommId> {
        self.timewait.first().map(|&(_, id)| id)
    }

    /// Whether a queue pair number is still in time-wait.
    pub fn holds_qpn(&self, qpn: Qpn) -> bool {
        self.held_qpns.contains_key(&qpn)
    }

    pub fn remove(&mut self, id: CommId) -> Option<Conn> {
        self.disarm(id);
        self.forget_remote_qpn(id);
        self.forget_remote_id(id);
        let conn = self.by_id.remove(&id)?;
        if conn.state == State::Timewait
            && let Some(qpn) = conn.qpn
            && let Some(count) = self.held_qpns.get_mut(&qpn)
        {
            *count -= 1;
            if *count == 0 {
                self.held_qpns.remove(&qpn);
            }
        }
        Some(conn)
    }

    /// From now on a message with the peer's communication id does not lead here.
    pub fn forget_remote_id(&mut self, id: CommId) {
        let Some(conn) = self.by_id.get(&id) else { return };
        let Some(remote_id) = conn.remote_id else { return };
        let key = (conn.path.remote, remote_id);
        if self.by_remote_id.get(&key) == Some(&id) {
            self.by_remote_id.remove(&key);
        }
    }

    fn forget_remote_qpn(&mut self, id: CommId) {
        let Some(conn) = self.by_id.get(&id) else { return };
        let key = (conn.path.remote, conn.params.dest_qpn);
        if self.by_remote_qpn.get(&key) == Some(&id) {
            self.by_remote_qpn.remove(&key);
        }
    }

    /// Entries in all tables together; what must stay flat over any number of connections.
    pub fn footprint(&self) -> usize {
        self.by_id.len()
            + self.by_remote_id.len()
            + self.by_remote_qpn.len()
            + self.timers.len()
            + self.timewait.len()
            + self.held_qpns.len()
    }
}
