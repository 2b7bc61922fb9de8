//! An established connection, its end, and the moves of its queue pair.
//!
//! Read IBTA vol. 1 §12.9.10 (attributes from REQ and REP). Disconnecting takes the queue pair to ERR at once, so that
//! everything posted is flushed; completions can be polled afterwards as long as the queue pair lives. The last handle on a
//! connection disconnects it, and nothing is heard of it afterwards.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use everywire_transport::cm::ib::QpParams;
use everywire_transport::ib::{Path, QpAttr, QpState, QpType};
use everywire_transport::memory::Access;
use everywire_wire::Qpn;

use super::Call;
use super::error::{CmErrorKind, DisconnectReason, with_interface};
use super::param::ConnParam;
use super::record::{End, Key, Record};
use crate::ah::has_flow_label;
use crate::device::Device;
use crate::qp::Qp;
use crate::state::State;
use crate::waker::WakerKey;

/// A connection. Cheap to clone; the last handle disconnects.
#[derive(Clone)]
pub struct Connection(Arc<ConnectionInner>);

struct ConnectionInner {
    device: Device,
    qp: Qp,
    key: Key,
    local: SocketAddr,
    remote: SocketAddr,
    peers: ConnParam,
}

impl Drop for ConnectionInner {
    fn drop(&mut self) {
        self.device.lock().cm_release(self.key);
    }
}

impl Connection {
    pub(super) fn new(device: &Device, qp: Qp, key: Key, record: &Record) -> Connection {
        let (local, remote, peers) = (record.local, record.remote, record.peers.clone());
        Connection(Arc::new(ConnectionInner { device: device.clone(), qp, key, local, remote, peers }))
    }

    /// The peer's address and port.
    pub fn peer(&self) -> SocketAddr {
        self.0.remote
    }

    /// Our address and port.
    pub fn local(&self) -> SocketAddr {
        self.0.local
    }

    /// The peer program's private data: 56 bytes from one that connected, 196 from one that accepted, zeros at the end; over
    /// iWARP exactly what it gave.
    pub fn private_data(&self) -> &[u8] {
        &self.0.peers.private_data
    }

    /// The peer's parameters, READs and atomics as negotiated.
    pub fn param(&self) -> &ConnParam {
        &self.0.peers
    }

    /// The queue pair.
    pub fn qp(&self) -> &Qp {
        &self.0.qp
    }

    /// Disconnects: the queue pair goes to ERR now, the peer is told. The future tells how it went; it need not be awaited.
    /// On a connection that is over already it does nothing.
    pub fn disconnect(&self) -> Closed {
        let mut state = self.0.device.lock();
        if let Some(record) = state.cm.records.get(self.0.key)
            && record.end.is_none()
        {
            state.cm_qp_taken(self.0.qp.qpn());
            state.cm_fail_qp(Some(self.0.qp.qpn()));
            state.cm_call(Call::Disconnect(self.0.key));
        }
        drop(state);
        self.closed()
    }

    /// Waits for the end of the connection, whoever brings it about. By then the queue pair is in ERR and what was posted
    /// is flushed.
    pub fn closed(&self) -> Closed {
        Closed { connection: self.clone(), waker: None }
    }

    /// How it ended; `None` while it lasts.
    pub fn closed_reason(&self) -> Option<DisconnectReason> {
        let state = self.0.device.lock();
        state.cm.records.get(self.0.key).and_then(closed)
    }

    /// Waits until the connection's time-wait is over, after which its queue pair's number may be connected again.
    pub fn rested(&self) -> Rested {
        Rested { connection: self.clone(), waker: None }
    }
}

fn closed(record: &Record) -> Option<DisconnectReason> {
    match record.end {
        Some(End::Closed(reason)) => Some(reason),
        _ => None,
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |addr| with_interface(self.0.device.config(), addr);
        write!(f, "{} to {}", name(self.0.local), name(self.0.remote))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({self}, {})", self.0.qp)
    }
}

/// The future of [`Connection::closed`].
pub struct Closed {
    connection: Connection,
    waker: Option<WakerKey>,
}

impl Future for Closed {
    type Output = DisconnectReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<DisconnectReason> {
        let this = &mut *self;
        poll_record(&this.connection, &mut this.waker, cx, closed)
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        forget_waker(&self.connection, self.waker);
    }
}

/// The future of [`Connection::rested`].
pub struct Rested {
    connection: Connection,
    waker: Option<WakerKey>,
}

impl Future for Rested {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        poll_record(&this.connection, &mut this.waker, cx, |record| record.rested.then_some(()))
    }
}

impl Drop for Rested {
    fn drop(&mut self) {
        forget_waker(&self.connection, self.waker);
    }
}

fn poll_record<T>(
    connection: &Connection,
    waker: &mut Option<WakerKey>,
    cx: &Context<'_>,
    look: impl FnOnce(&Record) -> Option<T>,
) -> Poll<T> {
    let mut state = connection.0.device.lock();
    let Some(record) = state.cm.records.get_mut(connection.0.key) else { return Poll::Pending };
    if let Some(found) = look(record) {
        return Poll::Ready(found);
    }
    let replaced = record.wakers.register(waker, cx.waker());
    state.discard(replaced);
    Poll::Pending
}

fn forget_waker(connection: &Connection, waker: Option<WakerKey>) {
    let Some(waker) = waker else { return };
    let mut state = connection.0.device.lock();
    let record = state.cm.records.get_mut(connection.0.key);
    let removed = record.and_then(|record| record.wakers.remove(waker));
    state.discard(removed);
}

impl State {
    /// The connection is established.
    pub(super) fn cm_up(&mut self, key: Key) {
        self.cm.records.disarm(key);
        if let Some(record) = self.cm.records.get_mut(key) {
            record.was_up = true;
        }
        self.cm_wake(key);
    }

    /// Whether `qp` can become this device's next connection.
    pub(super) fn cm_check_qp(&mut self, device: &Device, qp: &Qp) -> Result<(), CmErrorKind> {
        let refuse = |what: &str| Err(CmErrorKind::Qp(format!("{qp:?} {what}")));
        if !qp.device().same(device) {
            return refuse("belongs to another device");
        }
        if qp.ty() == QpType::Ud {
            return refuse("is a datagram queue pair: use resolve_udp");
        }
        let qpn = qp.qpn();
        let state = self.qps.get(qpn).map(|entry| entry.qp.state());
        if !matches!(state, Some(QpState::Reset | QpState::Init)) {
            return refuse("is neither in RESET nor in INIT");
        }
        let other = self.cm.records.of_qpn(qpn).and_then(|key| self.cm.records.get(key));
        if other.is_some_and(|record| record.end.is_none()) {
            return refuse("is being connected already");
        }
        if self.cm.holds_qpn(qpn) {
            return refuse(
                "was connected before and is in time-wait: take a new one, or wait until it has rested",
            );
        }
        Ok(())
    }

    /// RESET to INIT, with the remote access that Linux's rdma_cm gives; a queue pair in INIT keeps its own.
    pub(super) fn cm_to_init(&mut self, qp: &Qp, param: &ConnParam) -> Result<(), CmErrorKind> {
        let entry = self.qps.get(qp.qpn());
        if entry.map(|entry| entry.qp.state()) != Some(QpState::Reset) {
            return Ok(());
        }
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        if qp.ty() == QpType::Rc && param.responder_resources > 0 {
            access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        }
        let attr =
            QpAttr { pkey_index: Some(0), port: Some(1), access: Some(access), ..QpAttr::to(QpState::Init) };
        self.cm_modify(qp.qpn(), &attr)
    }

    /// INIT to RTR with what was negotiated.
    pub(super) fn cm_to_rtr(&mut self, key: Key, p: &QpParams) -> Result<(), CmErrorKind> {
        let limit = self.config.limits.max_qp_rd_atom;
        let src_port = self.config.source_port(p.flow_label);
        let Some(record) = self.cm.records.get_mut(key) else { return Ok(()) };
        let Some(qpn) = record.qpn else { return Ok(()) };
        record.moved_qp = true;
        let (rc, rnr_timer) = (record.ty == QpType::Rc, record.ours.min_rnr_timer.min(31));
        let path = Path {
            link: p.path.link,
            src: p.path.local,
            dst: p.path.remote,
            scope_id: p.path.scope_id,
            src_port,
            traffic_class: p.traffic_class,
            hop_limit: if p.hop_limit == 0 { 64 } else { p.hop_limit },
            flow_label: if has_flow_label(p.path.link, p.path.remote) { p.flow_label } else { 0 },
        };
        let attr = QpAttr {
            path: Some(path),
            path_mtu: Some(p.path_mtu),
            dest_qp: Some(p.dest_qpn),
            rq_psn: Some(p.rq_psn),
            max_dest_rd_atomic: rc.then_some(p.max_dest_rd_atomic.min(limit)),
            min_rnr_timer: rc.then_some(rnr_timer),
            ..QpAttr::to(QpState::Rtr)
        };
        self.cm_modify(qpn, &attr)
    }

    /// RTR to RTS with what was negotiated.
    pub(super) fn cm_to_rts(&mut self, key: Key, p: &QpParams) -> Result<(), CmErrorKind> {
        let limit = self.config.limits.max_qp_rd_atom;
        let Some(record) = self.cm.records.get(key) else { return Ok(()) };
        let Some(qpn) = record.qpn else { return Ok(()) };
        let rc = record.ty == QpType::Rc;
        let attr = QpAttr {
            sq_psn: Some(p.sq_psn),
            timeout: rc.then_some(p.ack_timeout),
            retry_cnt: rc.then_some(p.retry_count),
            rnr_retry: rc.then_some(p.rnr_retry_count),
            max_rd_atomic: rc.then_some(p.max_rd_atomic.min(limit)),
            ..QpAttr::to(QpState::Rts)
        };
        self.cm_modify(qpn, &attr)
    }

    /// To ERR: what was posted is flushed. Whom the program has taken back to RESET meanwhile is left alone: nothing is posted
    /// there, and it is to stay as the program wants it.
    pub(super) fn cm_fail_qp(&mut self, qpn: Option<Qpn>) {
        let Some(qpn) = qpn else { return };
        if self.qps.get(qpn).is_none_or(|entry| entry.qp.state() == QpState::Reset) {
            return;
        }
        // Every state leads to ERR, and a queue pair that is gone has nothing to flush.
        let _ = self.modify(qpn, &QpAttr::to(QpState::Err));
        // What it took it acknowledges ahead of the DREQ or DREP: a peer that hears of the end first takes its message for lost.
        if let Some(slot) = self.qps.slot(qpn) {
            self.keep_last_words(slot);
        }
    }

    fn cm_modify(&mut self, qpn: Qpn, attr: &QpAttr) -> Result<(), CmErrorKind> {
        match self.modify(qpn, attr) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(CmErrorKind::Qp(format!("QP {qpn}: {error}"))),
            None => Err(CmErrorKind::Qp(format!("QP {qpn} is gone"))),
        }
    }
}
