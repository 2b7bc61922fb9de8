//! Connecting by address and port, as with rdma_cm: [`Device::listen`], [`Device::connect`], and SIDR for datagrams.
//!
//! Read IBTA vol. 1 chapter 12 and annex A11 (RDMA IP CM service) first. The protocol is `everywire_transport::cm::ib`; here
//! are addresses and ports, routes, the 36-byte header in the private data, and the moves of queue pairs. What a program
//! calls is noted down and carried out when the driver comes by, since only the driver knows the time. The hooks at the end
//! of this file are called with the device's lock held; none may block.
//!
//! A record's life: route asked for (`ResolveRoute`) · REQ out (`Connect`) or request in hand (`Accept`) · up · ended.

mod active;
mod connection;
mod datagram;
mod error;
mod events;
mod mpa;
mod multicast;
mod param;
mod passive;
mod ports;
mod record;
mod request;
mod service;
mod starting;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

use everywire_transport::cm::ib::{
    self, AcceptParams, Cm, CmConfig, CmCounters, CommId, ListenerId, Reject, SidrParams,
};
use everywire_transport::iwarp::ConnId;
use everywire_transport::mad::{MAD_LEN, MadPath};
use everywire_wire::Qpn;
use everywire_wire::cm::RejReason;

use crate::config::DeviceConfig;
use crate::config::PortState;
use crate::device::{Device, LOCAL_ACK_DELAY};
use crate::drive::Unreachable;
use crate::route::{ROUTE_TIMEOUT, RouteError, RouteToken, Way};
use crate::state::State;

pub(crate) use record::Key;
pub(crate) use starting::{Dial, Starting};

pub use active::Connecting;
pub use connection::{Closed, Connection, Rested};
pub use datagram::{DatagramService, ResolveOptions};
pub use error::{CmError, CmErrorKind, CmStep, DisconnectReason};
pub use multicast::{MULTICAST_QKEY, Multicast, MulticastOptions};
pub use param::{ConnParam, ConnectOptions, ListenOptions};
pub use passive::{Listener, NextRequest};
pub use request::{Accepting, ConnectRequest};
pub use service::{NextResolve, ResolveRequest, UdListener};

use passive::Queue;
use ports::Ports;
use record::{End, Record, Records};
use service::{Asking, UdQueue};

/// Bytes of a REQ's private data that are the program's (IBTA annex A11.4).
pub const CONNECT_PRIVATE_DATA: usize = ib::REQ_PRIVATE_DATA - everywire_wire::ip_cm::IpCmHeader::LEN;
/// Bytes of a REQ's private data where a service is asked for without RDMA/CM.
pub const SERVICE_PRIVATE_DATA: usize = ib::REQ_PRIVATE_DATA;
/// Bytes of private data in an acceptance.
pub const ACCEPT_PRIVATE_DATA: usize = ib::REP_PRIVATE_DATA;
/// Bytes of private data in a rejection.
pub const REJECT_PRIVATE_DATA: usize = ib::REJ_PRIVATE_DATA;
/// Bytes of private data in any of the three over iWARP: MPA's, less RFC 6581's block.
pub const IWARP_PRIVATE_DATA: usize = everywire_transport::cm::iwarp::types::MAX_PRIVATE_DATA;
/// Bytes of private data in a request for a datagram service.
pub const RESOLVE_PRIVATE_DATA: usize = ib::SIDR_REQ_PRIVATE_DATA - everywire_wire::ip_cm::IpCmHeader::LEN;
/// Bytes of private data in a datagram service's answer.
pub const RESOLVED_PRIVATE_DATA: usize = ib::SIDR_REP_PRIVATE_DATA;

/// Something a program asked for, to be done when the time is known.
enum Call {
    /// The clock of an attempt starts.
    Start(Key),
    Accept(Key, AcceptParams),
    Reject {
        comm: CommId,
        reason: RejReason,
        private_data: Vec<u8>,
    },
    Disconnect(Key),
    Abandon(CommId),
    /// The same over iWARP.
    AcceptStream(Key),
    RejectStream {
        conn: ConnId,
        private_data: Vec<u8>,
    },
    AbandonStream(ConnId),
    /// Ask for a datagram service.
    Ask(Key, SidrParams),
}

/// The connection manager's own state.
pub(crate) struct CmState {
    engine: Cm,
    records: Records,
    listeners: HashMap<ListenerId, Queue>,
    ud_listeners: HashMap<ListenerId, UdQueue>,
    asking: HashMap<CommId, Asking>,
    /// Requests for datagram services so far.
    asked: u64,
    /// Port spaces of connections and datagrams.
    tcp: Ports,
    udp: Ports,
    calls: VecDeque<Call>,
    /// What the network has reported last is a closed port, not a host without a way.
    port_unreachable: bool,
    /// Over iWARP.
    last_stream_listener: u32,
}

impl CmState {
    pub(crate) fn new(config: &DeviceConfig, seed: u64) -> CmState {
        let config = CmConfig {
            node_guid: config.node_guid,
            ack_delay: LOCAL_ACK_DELAY,
            max_mtu: config.active_mtu,
            max_responder_resources: config.limits.max_qp_rd_atom,
            id_slot: config.id_slot,
            ..CmConfig::default()
        };
        CmState {
            engine: Cm::new(config, seed),
            records: Records::default(),
            listeners: HashMap::new(),
            ud_listeners: HashMap::new(),
            asking: HashMap::new(),
            asked: 0,
            tcp: Ports::default(),
            udp: Ports::default(),
            calls: VecDeque::new(),
            port_unreachable: false,
            last_stream_listener: 0,
        }
    }

    /// Whether a queue pair number is in time-wait and must not be given out.
    pub(crate) fn holds_qpn(&self, qpn: Qpn) -> bool {
        self.engine.qpn_in_timewait(qpn)
    }

    /// Entries in all tables; flat over any number of connections.
    fn footprint(&self) -> usize {
        self.engine.footprint()
            + self.records.footprint()
            + self.listeners.len()
            + self.ud_listeners.len()
            + self.asking.len()
            + self.tcp.len()
            + self.udp.len()
            + self.calls.len()
    }
}

impl Device {
    /// What the connection manager has counted.
    pub fn cm_counters(&self) -> CmCounters {
        *self.lock().cm.engine.counters()
    }

    /// Entries in all of the connection manager's tables: flat, however many connections came and went.
    pub fn cm_footprint(&self) -> usize {
        let state = self.lock();
        state.cm.footprint() + state.streams.len()
    }
}

impl State {
    /// Notes a call for when the driver comes, and sees to it that it does.
    fn cm_call(&mut self, call: Call) {
        self.cm.calls.push_back(call);
        self.work = true;
    }

    /// Carries out what was noted, then what followed from it.
    fn cm_run(&mut self, now: Instant) {
        while let Some(call) = self.cm.calls.pop_front() {
            match call {
                Call::Start(key) => self.cm_start(now, key),
                Call::Accept(key, params) => self.cm_accept(now, key, &params),
                Call::Reject { comm, reason, private_data } => {
                    // The request may have been withdrawn meanwhile: then there is nothing to reject.
                    let reject = Reject { reason, info: &[], private_data: &private_data };
                    let _ = self.cm.engine.reject(now, comm, &reject);
                }
                Call::Disconnect(key) => {
                    if let Some(conn) = self.cm.records.get(key).and_then(|record| record.conn) {
                        self.stream_close(now, conn);
                    }
                    if let Some(comm) = self.cm.records.get(key).and_then(|record| record.comm) {
                        // The peer may have been first: then the one event is on its way.
                        let _ = self.cm.engine.disconnect(now, comm, &[]);
                    }
                }
                Call::Abandon(comm) => self.cm.engine.abandon(now, comm),
                Call::AcceptStream(key) => self.mpa_accept(now, key),
                Call::RejectStream { conn, private_data } => self.mpa_reject(now, conn, &private_data),
                Call::AbandonStream(conn) => self.mpa_abandon(now, conn),
                Call::Ask(key, params) => self.cm_ask(now, key, &params),
            }
        }
        self.cm_events(now);
    }

    /// Lets a record go: its port is free, the connection manager ends what is left of it.
    fn cm_release(&mut self, key: Key) {
        let Some(mut record) = self.cm.records.remove(key) else { return };
        if let Some(bound) = record.bound {
            match record.step {
                CmStep::ResolveService => self.cm.udp.release(bound),
                _ => self.cm.tcp.release(bound),
            }
        }
        if let Some(pending) = record.pending {
            self.routes.withdraw(pending.token);
        }
        if record.moved_qp && record.end.is_none() {
            self.cm_fail_qp(record.qpn);
        }
        if let Some(comm) = record.comm {
            self.cm_call(Call::Abandon(comm));
        }
        if let Some(conn) = record.conn {
            self.cm_call(Call::AbandonStream(conn));
        }
        self.cm_wake_record(&mut record);
    }

    /// Whether the program has asked for the connection's end.
    pub(crate) fn cm_is_leaving(&self, key: Key) -> bool {
        self.cm.records.get(key).is_some_and(|record| record.leaving)
    }

    /// A program has taken a queue pair to ERR or RESET itself, and so its connection's end upon itself.
    pub(crate) fn cm_qp_taken(&mut self, qpn: Qpn) {
        if let Some(key) = self.cm.records.of_qpn(qpn)
            && let Some(record) = self.cm.records.get_mut(key)
        {
            record.leaving |= record.end.is_none();
        }
    }

    /// Wakes whoever waits for a record, once the lock is free.
    fn cm_wake(&mut self, key: Key) {
        if let Some(record) = self.cm.records.get_mut(key) {
            record.wakers.drain_into(&mut self.core.wakes);
        }
    }

    fn cm_wake_record(&mut self, record: &mut Record) {
        record.wakers.drain_into(&mut self.core.wakes);
    }

    /// An attempt or a connection is over.
    fn cm_end(&mut self, key: Key, end: End) {
        self.cm.records.disarm(key);
        let end = match end {
            End::Failed(kind) if kind.is_no_way() => End::Failed(self.link_to_blame().unwrap_or(kind)),
            end => end,
        };
        let Some(record) = self.cm.records.get_mut(key) else { return };
        if record.end.is_some() {
            return;
        }
        record.end = Some(end);
        record.rested |= record.comm.is_none(); // over iWARP nothing of it is left on the way
        let (qpn, moved) = (record.qpn, record.moved_qp);
        if moved {
            self.cm_fail_qp(qpn);
        }
        self.cm_wake(key);
    }

    /// Where the device's own interface is down, nothing is known of the way or the peer.
    fn link_to_blame(&self) -> Option<CmErrorKind> {
        let interface = self.config.gids.first().and_then(|gid| gid.interface.clone())?;
        (self.port == PortState::Down).then_some(CmErrorKind::LinkDown { interface })
    }

    /// The port is gone: what is or was to be connected over it ends. No time for partings, there is nobody to part from.
    pub(crate) fn cm_port_lost(&mut self) {
        for key in self.cm.records.under_way() {
            if self.cm_unqueue(key) {
                continue;
            }
            if let Some(pending) = self.cm.records.get_mut(key).and_then(|record| record.pending.take()) {
                self.cm.records.forget_route(pending.token);
                self.withdraw_route(pending.token);
            }
            if let Some(comm) = self.cm.records.take_comm(key) {
                self.cm_call(Call::Abandon(comm));
            }
            let was_up = self.cm.records.get(key).is_some_and(|record| record.was_up);
            self.cm_end(
                key,
                match was_up {
                    true => End::Closed(DisconnectReason::PortLost),
                    false => End::Failed(CmErrorKind::PortLost),
                },
            );
        }
    }

    // The hooks.

    /// A MAD arrived on QP1.
    pub(crate) fn cm_handle_mad(&mut self, now: Instant, path: MadPath, mad: &[u8; MAD_LEN]) {
        self.cm_run(now);
        self.cm.engine.handle_mad(now, path, mad);
        self.cm_events(now);
    }

    /// The next MAD to send from QP1.
    pub(crate) fn cm_poll_transmit(&mut self, now: Instant) -> Option<(MadPath, [u8; MAD_LEN])> {
        if !self.cm.calls.is_empty() {
            self.cm_run(now);
        }
        self.cm.engine.poll_transmit().map(|(path, mad)| (path, *mad))
    }

    /// When the connection manager wants to be called.
    pub(crate) fn cm_poll_timeout(&mut self) -> Option<Instant> {
        let own = self.cm.records.next_timer().map(|(at, _)| at);
        self.cm.engine.poll_timeout().into_iter().chain(own).min()
    }

    /// Time has passed.
    pub(crate) fn cm_handle_timeout(&mut self, now: Instant) {
        self.cm_run(now);
        self.cm.engine.handle_timeout(now);
        while let Some((at, key)) = self.cm.records.next_timer()
            && at <= now
        {
            self.cm_deadline(now, key);
        }
        self.cm_events(now);
    }

    /// The answer to `State::resolve_for_cm`.
    pub(crate) fn cm_route_resolved(
        &mut self,
        now: Instant,
        token: RouteToken,
        answer: Result<Way, RouteError>,
    ) {
        self.cm_run(now);
        if let Some((key, pending)) = self.cm.records.take_route(token) {
            self.cm_route(now, key, pending, answer);
        }
        self.cm_events(now);
    }

    /// The network says that a destination cannot be reached.
    pub(crate) fn cm_unreachable(&mut self, now: Instant, dst: IpAddr, why: Unreachable) {
        self.cm_run(now);
        // A packet that was too big says that somebody forwards packets there.
        if !matches!(why, Unreachable::TooBig(_)) {
            self.cm.port_unreachable = why == Unreachable::Port;
            self.cm.engine.unreachable(now, dst);
        }
        self.cm_events(now);
    }

    /// The first packet arrived on a queue pair in RTR.
    pub(crate) fn cm_communication_established(&mut self, now: Instant, qpn: Qpn) {
        self.cm_run(now);
        let key = self.cm.records.of_qpn(qpn);
        if let Some(comm) = key.and_then(|key| self.cm.records.get(key)).and_then(|record| record.comm) {
            self.cm.engine.data_arrived(now, comm);
        }
        self.cm_events(now);
    }

    /// A queue pair is about to be destroyed. A handle that keeps a connection keeps its queue pair, so there is none left.
    pub(crate) fn cm_qp_destroyed(&mut self, qpn: Qpn) {
        debug_assert!(self.cm.records.of_qpn(qpn).is_none(), "a connection outlived its queue pair");
    }
}
