//! The active side: from an address to an established connection.
//!
//! Route first, through the driver; its MTU bounds the path MTU. Then REQ; when REP has come the queue pair goes to RTR
//! and RTS and RTU is sent, all in one step, so that the program only ever sees the end of it. The flow label is what
//! Linux's rdma_cm derives from the two ports.

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use everywire_transport::cm::ib::{CommId, ConnectParams, Reject, Reply, Transport, ack_timeout};
use everywire_transport::ib::QpType;
use everywire_transport::mad::MadPath;
use everywire_wire::Gid;
use everywire_wire::cm::RejReason;
use everywire_wire::ip_cm::{IpCmHeader, PortSpace, service_id};

use super::error::{CmError, CmErrorKind, CmStep};
use super::events::acceptable_mtu;
use super::param::{ConnParam, ConnectOptions};
use super::ports::Bound;
use super::record::{End, Key, Pending, Record, scope_of, socket_addr};
use super::{CONNECT_PRIVATE_DATA, Call, Connection, ROUTE_TIMEOUT, SERVICE_PRIVATE_DATA};
use crate::config::Wire;
use crate::device::{Device, LOCAL_ACK_DELAY};
use crate::qp::Qp;
use crate::route::{RouteError, Way};
use crate::state::State;
use crate::waker::WakerKey;

/// Hop limit of connections, as Linux's rdma_cm on RoCE.
const HOP_LIMIT: u8 = 64;

impl Device {
    /// Connects a queue pair. The future ends when the connection is established or has failed for good; dropped before,
    /// it takes the attempt back.
    pub fn connect(&self, options: ConnectOptions) -> Connecting {
        let started = self.lock().cm_connect(self, &options);
        let started = started.map_err(|kind| {
            let step =
                if matches!(kind, CmErrorKind::Route(_)) { CmStep::ResolveRoute } else { CmStep::Connect };
            CmError::new(self.config(), step, options.src, Some(options.dst), kind)
        });
        Connecting(Handshake::new(self, options.qp, started))
    }
}

impl State {
    fn cm_connect(&mut self, device: &Device, options: &ConnectOptions) -> Result<Key, CmErrorKind> {
        let ConnectOptions { dst, src, ref qp, ref param, traffic_class, path_bits, timeout, .. } = *options;
        if options.service_id.is_some() && self.config.wire == Wire::Iwarp {
            return Err(CmErrorKind::Qp("iWARP has no services without RDMA/CM".to_owned()));
        }
        let limit = options.service_id.map_or(CONNECT_PRIVATE_DATA, |_| SERVICE_PRIVATE_DATA);
        let limit = self.private_limit(limit);
        check_private("connection request", limit, &param.private_data)?;
        self.cm_check_qp(device, qp)?;
        let src_ip = src.map(|src| src.ip()).filter(|ip| !ip.is_unspecified());
        if let (Some(src), Some(ip)) = (src, src_ip) {
            self.cm_check_address(ip, scope_of(src))?;
        }
        let token = self.resolve_for_cm(dst.ip(), scope_of(dst), src_ip, path_bits);
        let token = token.map_err(CmErrorKind::Route)?;
        let mut port = src.map_or(0, |src| src.port());
        let mut bound = None;
        // Over iWARP the port is TCP's own; a service has none.
        if self.config.wire != Wire::Iwarp && options.service_id.is_none() {
            bound = self.cm.tcp.bind(src_ip, port, &mut self.rng);
            let Some(bound) = bound else {
                self.withdraw_route(token);
                return Err(CmErrorKind::AddressInUse);
            };
            port = bound.port;
        }
        if let Err(kind) = self.cm_to_init(qp, param) {
            self.withdraw_route(token);
            bound.inspect(|&bound| self.cm.tcp.release(bound));
            return Err(kind);
        }
        // Elsewhere the route says which address it leaves from.
        let own = src_ip.or_else(|| self.ib.is_some().then(|| self.ib_name_for(dst.ip())));
        let local = SocketAddr::new(own.unwrap_or(unspecified(dst.ip())), port);
        let mut record = Record::new(CmStep::ResolveRoute, qp.ty(), local, dst);
        record.qpn = Some(qp.qpn());
        record.ours =
            ConnParam { srq: qp.srq().is_some(), ..param.clone().limited(self.config.limits.max_qp_rd_atom) };
        record.bound = bound;
        record.service_id = options.service_id;
        record.pending = Some(Pending { token, traffic_class });
        record.millis = timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        let key = self.cm.records.insert(record);
        self.cm_call(Call::Start(key));
        Ok(key)
    }

    /// Starts the clocks of an attempt.
    pub(super) fn cm_start(&mut self, now: Instant, key: Key) {
        let Some(record) = self.cm.records.get_mut(key) else { return };
        record.started = Some(now);
        let limit = record.time_limit();
        let limit = if record.pending.is_some() {
            limit.map_or(ROUTE_TIMEOUT, |l| l.min(ROUTE_TIMEOUT))
        } else {
            let Some(limit) = limit else { return };
            limit
        };
        self.cm.records.arm(key, now + limit);
    }

    /// The time of an attempt is over.
    pub(super) fn cm_deadline(&mut self, _now: Instant, key: Key) {
        self.cm.records.disarm(key);
        let Some(record) = self.cm.records.get_mut(key) else { return };
        let millis = record.millis.unwrap_or(u64::MAX);
        let mut kind = CmErrorKind::Deadline { millis };
        if let Some(pending) = record.pending.take() {
            kind = match self.ib_silence(pending.token) {
                RouteError::NoAnswer => {
                    CmErrorKind::Deadline { millis: millis.min(ROUTE_TIMEOUT.as_millis() as u64) }
                }
                silent => CmErrorKind::Route(silent),
            };
            self.cm.records.forget_route(pending.token);
            self.withdraw_route(pending.token);
        }
        if let Some(comm) = self.cm.records.take_comm(key) {
            if let Some((tries, every)) = self.cm.engine.unanswered(comm) {
                let every_millis = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
                kind = CmErrorKind::Silence { millis, tries, every_millis };
            }
            self.cm_call(Call::Abandon(comm));
        }
        if let Some(conn) = self.cm.records.get_mut(key).and_then(|record| record.conn.take()) {
            self.cm_call(Call::AbandonStream(conn));
        }
        self.cm_end(key, End::Failed(kind));
    }

    /// The driver's answer: the REQ can go, or the attempt is over.
    pub(super) fn cm_route(
        &mut self,
        now: Instant,
        key: Key,
        pending: Pending,
        answer: Result<Way, RouteError>,
    ) {
        self.cm.records.disarm(key);
        let sent = answer.map_err(CmErrorKind::Route).and_then(|way| match self.config.wire {
            Wire::Iwarp => {
                self.mpa_dial(key, pending.traffic_class, &way);
                Ok(())
            }
            _ => {
                if let Some(record) = self.cm.records.get_mut(key) {
                    record.again = Some((pending, way));
                }
                self.cm_send_req(now, key, pending, &way)
            }
        });
        if let Err(kind) = sent {
            return self.cm_end(key, End::Failed(kind));
        }
        if let Some(record) = self.cm.records.get(key)
            && let (Some(started), Some(limit)) = (record.started, record.time_limit())
        {
            self.cm.records.arm(key, started + limit);
        }
    }

    fn cm_send_req(
        &mut self,
        now: Instant,
        key: Key,
        pending: Pending,
        way: &Way,
    ) -> Result<(), CmErrorKind> {
        let active_mtu = self.config.active_mtu;
        let on_ib = way.link.is_infiniband();
        let pkey = self.pkey_at(0).unwrap_or_default();
        let remote = self.cm.records.get(key).map(|record| record.remote.ip());
        let name = remote.filter(|_| on_ib).map(|remote| self.ib_name_for(remote));
        let Some(record) = self.cm.records.get_mut(key) else { return Ok(()) };
        record.step = CmStep::Connect;
        if !on_ib || record.local.ip().is_unspecified() {
            record.local = socket_addr(name.unwrap_or(way.src), record.local.port(), way.scope_id);
        }
        let path_mtu = way.mtu.min(active_mtu);
        record.asked_mtu = Some(path_mtu);
        let path = MadPath::on(way.link, way.src, way.dst, way.scope_id);
        let (ours, qpn) = (&record.ours, record.qpn.unwrap_or_default());
        let params = ConnectParams {
            path,
            gids: on_ib.then(|| [way.src, way.dst].map(Gid::from)),
            service_id: record.service_id.unwrap_or(service_id(PortSpace::TCP, record.remote.port())),
            transport: if record.ty == QpType::Uc { Transport::Uc } else { Transport::Rc },
            qpn,
            pkey,
            path_mtu,
            responder_resources: ours.responder_resources,
            initiator_depth: ours.initiator_depth,
            flow_control: false, // no end-to-end credits are kept (IBTA §9.7.7.2)
            retry_count: ours.retry_count,
            rnr_retry_count: ours.rnr_retry_count,
            srq: ours.srq,
            // IBTA §12.7.34: the round trip and the peer's delay.
            ack_timeout: ours.ack_timeout.or(way.life_time.map(|life| ack_timeout(LOCAL_ACK_DELAY, life))),
            flow_label: flow_label(record.local, record.remote),
            traffic_class: pending.traffic_class,
            hop_limit: HOP_LIMIT,
            private_data: match record.service_id {
                Some(_) => ours.private_data.clone(),
                None => with_header(record.local, record.remote.ip(), &ours.private_data),
            },
        };
        let comm = self.cm.engine.connect(now, &params).map_err(CmErrorKind::Refused)?;
        self.cm.records.set_comm(key, comm);
        Ok(())
    }

    /// The peer has rejected the request, whose id is over. Where it says that a smaller path MTU would do, the request goes out
    /// again with that, once; else the rejection stands, which is false.
    pub(super) fn cm_smaller_mtu(
        &mut self,
        now: Instant,
        comm: CommId,
        reason: RejReason,
        info: &[u8],
    ) -> bool {
        let Some(mtu) = acceptable_mtu(reason, info) else { return false };
        let Some(key) = self.cm.records.of_comm(comm) else { return false };
        let again = self.cm.records.get_mut(key).and_then(|record| record.again.take());
        let Some((pending, way)) = again.filter(|(_, way)| mtu < way.mtu.min(self.config.active_mtu)) else {
            return false;
        };
        self.cm.records.take_comm(key);
        if let Err(kind) = self.cm_send_req(now, key, pending, &Way { mtu, ..way }) {
            self.cm_end(key, End::Failed(kind));
        }
        true
    }

    /// REP has come: the queue pair goes to RTS, RTU goes out.
    pub(super) fn cm_reply(&mut self, now: Instant, reply: &Reply) {
        let Some(key) = self.cm.records.of_comm(reply.id) else { return };
        self.cm.records.disarm(key);
        if let Some(record) = self.cm.records.get_mut(key) {
            let p = &reply.params;
            record.peers = ConnParam {
                private_data: reply.private_data.clone(),
                responder_resources: p.max_rd_atomic,
                initiator_depth: p.max_dest_rd_atomic,
                retry_count: p.retry_count,
                rnr_retry_count: p.rnr_retry_count,
                min_rnr_timer: 0,
                ack_timeout: Some(p.ack_timeout),
                srq: reply.srq,
                qp_num: p.dest_qpn,
            };
        }
        let moved = self.cm_to_rtr(key, &reply.params).and_then(|()| self.cm_to_rts(key, &reply.params));
        let sent =
            moved.and_then(|()| self.cm.engine.establish(now, reply.id, &[]).map_err(CmErrorKind::Refused));
        match sent {
            Ok(()) => self.cm_up(key),
            Err(kind) => {
                // Our own device refused what was negotiated: the peer must not wait for RTU.
                let _ = self.cm.engine.reject(now, reply.id, &Reject::because(RejReason::NoResources));
                self.cm_end(key, End::Failed(kind));
            }
        }
    }
}

/// The flow label of a connection: as Linux's rdma_cm, from the ports, unless the address carries one.
fn flow_label(src: SocketAddr, dst: SocketAddr) -> u32 {
    let given = match dst {
        SocketAddr::V6(v6) => v6.flowinfo() & 0xf_ffff,
        SocketAddr::V4(_) => 0,
    };
    let hash = u32::from(src.port()) * 31 + u32::from(dst.port());
    if given == 0 { hash & 0xf_ffff } else { given }
}

/// The RDMA IP CM header, then the program's data.
pub(super) fn with_header(src: SocketAddr, dst: IpAddr, data: &[u8]) -> Vec<u8> {
    let mut private = vec![0; IpCmHeader::LEN];
    IpCmHeader::new(src, dst).emit(&mut private);
    private.extend_from_slice(data);
    private
}

pub(super) fn check_private(message: &'static str, limit: usize, data: &[u8]) -> Result<(), CmErrorKind> {
    if data.len() > limit {
        return Err(CmErrorKind::PrivateDataTooLong { message, limit, given: data.len() });
    }
    Ok(())
}

/// The unspecified address of the same family.
pub(super) fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    }
}

/// Waits for an attempt, on either side, to become a connection.
pub(super) struct Handshake {
    device: Device,
    qp: Option<Qp>,
    started: Result<Key, CmError>,
    waker: Option<WakerKey>,
}

impl Handshake {
    pub(super) fn new(device: &Device, qp: Qp, started: Result<Key, CmError>) -> Handshake {
        Handshake { device: device.clone(), qp: Some(qp), started, waker: None }
    }

    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Connection, CmError>> {
        let key = match &self.started {
            Ok(key) => *key,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        let mut state = self.device.lock();
        let Some(record) = state.cm.records.get_mut(key) else { return Poll::Pending };
        if record.was_up {
            let Some(qp) = self.qp.take() else { return Poll::Pending };
            // From here on the record is the connection's.
            let connection = Connection::new(&self.device, qp, key, record);
            return Poll::Ready(Ok(connection));
        }
        if let Some(end) = &record.end {
            let kind = match end {
                End::Failed(kind) => kind.clone(),
                End::Closed(reason) => CmErrorKind::Closed(*reason),
            };
            let (step, local, remote) = (record.step, record.local, record.remote);
            let local = Some(local).filter(|local| !local.ip().is_unspecified());
            return Poll::Ready(Err(CmError::new(&state.config, step, local, Some(remote), kind)));
        }
        let replaced = record.wakers.register(&mut self.waker, cx.waker());
        state.discard(replaced);
        Poll::Pending
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        // Without its queue pair it has become a connection.
        if let (Ok(key), Some(_)) = (&self.started, &self.qp) {
            self.device.lock().cm_release(*key);
        }
    }
}

/// The future of [`Device::connect`].
#[must_use = "dropped, it takes the attempt back"]
pub struct Connecting(Handshake);

impl Future for Connecting {
    type Output = Result<Connection, CmError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connecting({})", self.0.device.name())
    }
}

/// A bound port as a socket address.
pub(super) fn bound_addr(bound: Bound, scope_id: u32) -> SocketAddr {
    socket_addr(bound.ip.unwrap_or(IpAddr::from([0; 4])), bound.port, scope_id)
}
