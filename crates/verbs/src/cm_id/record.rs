//! One attempt or connection as the device keeps it, and where each is found.
//!
//! A record lives as long as its handle ([`super::Connecting`], [`super::ConnectRequest`], [`super::Connection`]); when
//! that is dropped the connection manager ends what is left on its own, and no event reaches anybody any more.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use everywire_transport::cm::ib::{CommId, ListenerId, SidrAnswer};
use everywire_transport::ib::QpType;
use everywire_transport::iwarp::ConnId;
use everywire_transport::mad::MadPath;
use everywire_wire::ip_cm::IpCmHeader;
use everywire_wire::{Mtu, Qpn};

use super::error::{CmErrorKind, CmStep, DisconnectReason};
use super::param::ConnParam;
use super::ports::Bound;
use crate::route::{RouteToken, Way};
use crate::waker::WakerSet;

/// Names a record, never again another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key(pub u64);

/// How it ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// It was never established.
    Failed(CmErrorKind),
    /// It was established, and is not any more.
    Closed(DisconnectReason),
}

/// A request for a route that has not been answered, and what is to follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub token: RouteToken,
    pub traffic_class: u8,
}

/// An attempt or a connection.
pub(crate) struct Record {
    pub step: CmStep,
    pub comm: Option<CommId>,
    /// The TCP connection, over iWARP.
    pub conn: Option<ConnId>,
    /// The program has asked for its end.
    pub leaving: bool,
    /// The queue pair, once given.
    pub qpn: Option<Qpn>,
    pub ty: QpType,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub ours: ConnParam,
    pub peers: ConnParam,
    pub bound: Option<Bound>,
    /// The service asked for without RDMA/CM.
    pub service_id: Option<u64>,
    pub pending: Option<Pending>,
    /// What the request was sent with, while it may be sent again with a smaller path MTU.
    pub again: Option<(Pending, Way)>,
    /// The path MTU of the last request.
    pub asked_mtu: Option<Mtu>,
    /// Gives up then; mirrored in [`Records::timers`].
    pub deadline: Option<Instant>,
    /// The caller's time limit, in milliseconds.
    pub millis: Option<u64>,
    /// When its clock started: the first time the driver saw it.
    pub started: Option<Instant>,
    /// A datagram service's answer.
    pub answer: Option<Box<SidrAnswer>>,
    /// An incoming request that no program has taken yet.
    pub queued_on: Option<ListenerId>,
    /// Established at some time.
    pub was_up: bool,
    /// The queue pair has left INIT for it.
    pub moved_qp: bool,
    pub end: Option<End>,
    /// The QPN may be used again.
    pub rested: bool,
    pub wakers: WakerSet,
}

impl Record {
    pub fn new(step: CmStep, ty: QpType, local: SocketAddr, remote: SocketAddr) -> Record {
        Record {
            step,
            comm: None,
            conn: None,
            leaving: false,
            qpn: None,
            ty,
            local,
            remote,
            ours: ConnParam::default(),
            peers: ConnParam::default(),
            bound: None,
            service_id: None,
            pending: None,
            again: None,
            asked_mtu: None,
            deadline: None,
            millis: None,
            started: None,
            answer: None,
            queued_on: None,
            was_up: false,
            moved_qp: false,
            end: None,
            rested: false,
            wakers: WakerSet::default(),
        }
    }

    /// The caller's time limit.
    pub fn time_limit(&self) -> Option<Duration> {
        self.millis.map(Duration::from_millis)
    }
}

/// All records of a device.
#[derive(Default)]
pub(crate) struct Records {
    last: u64,
    all: HashMap<Key, Record>,
    by_comm: HashMap<CommId, Key>,
    by_qpn: HashMap<Qpn, Key>,
    by_token: HashMap<RouteToken, Key>,
    timers: BTreeSet<(Instant, Key)>,
}

impl Records {
    pub fn insert(&mut self, record: Record) -> Key {
        self.last += 1;
        let key = Key(self.last);
        if let Some(comm) = record.comm {
            self.by_comm.insert(comm, key);
        }
        if let Some(qpn) = record.qpn {
            self.by_qpn.insert(qpn, key);
        }
        if let Some(pending) = record.pending {
            self.by_token.insert(pending.token, key);
        }
        self.all.insert(key, record);
        key
    }

    pub fn get(&self, key: Key) -> Option<&Record> {
        self.all.get(&key)
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut Record> {
        self.all.get_mut(&key)
    }

    /// Those that have not ended.
    pub fn under_way(&self) -> Vec<Key> {
        self.all.iter().filter(|(_, record)| record.end.is_none()).map(|(key, _)| *key).collect()
    }

    pub fn of_comm(&self, comm: CommId) -> Option<Key> {
        self.by_comm.get(&comm).copied()
    }

    pub fn of_qpn(&self, qpn: Qpn) -> Option<Key> {
        self.by_qpn.get(&qpn).copied()
    }

    /// The record that waits for this route; it does not any more.
    pub fn take_route(&mut self, token: RouteToken) -> Option<(Key, Pending)> {
        let key = self.by_token.remove(&token)?;
        let pending = self.all.get_mut(&key)?.pending.take()?;
        Some((key, pending))
    }

    /// No record waits for this route any more.
    pub fn forget_route(&mut self, token: RouteToken) {
        self.by_token.remove(&token);
    }

    /// Cuts a record off from the connection manager: events no longer find it.
    pub fn take_comm(&mut self, key: Key) -> Option<CommId> {
        let comm = self.all.get_mut(&key)?.comm.take()?;
        self.forget_comm(comm, key);
        Some(comm)
    }

    fn forget_comm(&mut self, comm: CommId, key: Key) {
        if self.by_comm.get(&comm) == Some(&key) {
            self.by_comm.remove(&comm);
        }
    }

    pub fn set_comm(&mut self, key: Key, comm: CommId) {
        if let Some(record) = self.all.get_mut(&key) {
            record.comm = Some(comm);
            self.by_comm.insert(comm, key);
        }
    }

    pub fn set_qpn(&mut self, key: Key, qpn: Qpn) {
        if let Some(record) = self.all.get_mut(&key) {
            record.qpn = Some(qpn);
            self.by_qpn.insert(qpn, key);
        }
    }

    pub fn arm(&mut self, key: Key, at: Instant) {
        self.disarm(key);
        if let Some(record) = self.all.get_mut(&key) {
            record.deadline = Some(at);
            self.timers.insert((at, key));
        }
    }

    pub fn disarm(&mut self, key: Key) {
        if let Some(record) = self.all.get_mut(&key)
            && let Some(at) = record.deadline.take()
        {
            self.timers.remove(&(at, key));
        }
    }

    pub fn next_timer(&self) -> Option<(Instant, Key)> {
        self.timers.first().copied()
    }

    /// Takes a record out of every table.
    pub fn remove(&mut self, key: Key) -> Option<Record> {
        self.disarm(key);
        let record = self.all.remove(&key)?;
        if let Some(comm) = record.comm {
            self.forget_comm(comm, key);
        }
        if let Some(qpn) = record.qpn
            && self.by_qpn.get(&qpn) == Some(&key)
        {
            self.by_qpn.remove(&qpn);
        }
        if let Some(pending) = record.pending {
            self.by_token.remove(&pending.token);
        }
        Some(record)
    }

    /// Entries in all tables; flat over any number of connections.
    pub fn footprint(&self) -> usize {
        self.all.len() + self.by_comm.len() + self.by_qpn.len() + self.by_token.len() + self.timers.len()
    }
}

/// An address and port, with the scope where it takes one.
pub(super) fn socket_addr(ip: IpAddr, port: u16, scope_id: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, scope_id).into(),
        ip => SocketAddr::new(ip, port),
    }
}

/// The scope of an address, 0 if it has none.
pub(super) fn scope_of(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

/// Our end and the peer's of a MAD exchange.
pub(super) fn ends(path: &MadPath, header: &IpCmHeader, local_port: u16) -> (SocketAddr, SocketAddr) {
    let remote_port = header.src_port;
    // On InfiniBand a packet has no IP addresses: those of the header are the names that the programs go by.
    if let (true, Some(src), Some(dst)) = (path.link.is_infiniband(), header.src(), header.dst()) {
        return (SocketAddr::new(dst, local_port), SocketAddr::new(src.ip(), remote_port));
    }
    let scope = path.scope_id;
    (socket_addr(path.local, local_port, scope), socket_addr(path.remote, remote_port, scope))
}
