//! A connection request in a program's hand: accepting and rejecting it.
//!
//! Read IBTA vol. 1 §12.9.7.2. A request is its handle: dropped without an answer it is rejected with reason 28, "consumer
//! reject". Accepting takes the queue pair to RTR before REP leaves, and to RTS when the peer's RTU or its first packet has
//! come.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use everywire_transport::cm::ib::{AcceptParams, CmCallError};
use everywire_transport::ib::QpType;
use everywire_wire::cm::RejReason;

use super::active::{Handshake, check_private};
use super::error::{CmError, CmErrorKind, CmStep};
use super::param::ConnParam;
use super::record::{End, Key, Record};
use super::{ACCEPT_PRIVATE_DATA, Call, Connection, REJECT_PRIVATE_DATA};
use crate::device::Device;
use crate::qp::Qp;
use crate::state::State;

/// A peer that wants to connect.
pub struct ConnectRequest {
    device: Device,
    pub(super) key: Key,
    local: SocketAddr,
    peer: SocketAddr,
    ty: QpType,
    param: ConnParam,
    answered: bool,
}

impl Drop for ConnectRequest {
    fn drop(&mut self) {
        if !self.answered {
            self.device.lock().cm_release(self.key);
        }
    }
}

impl ConnectRequest {
    /// The handle of a record that has come from a listener's queue.
    pub(super) fn new(device: &Device, key: Key, record: &Record) -> ConnectRequest {
        ConnectRequest {
            device: device.clone(),
            key,
            local: record.local,
            peer: record.remote,
            ty: record.ty,
            param: record.peers.clone(),
            answered: false,
        }
    }

    /// Who asks.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address and port it asked for.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The transport service it asks for: the type of the queue pair to accept with.
    pub fn ty(&self) -> QpType {
        self.ty
    }

    /// The peer program's private data: 56 bytes, zeros at the end; over iWARP exactly what it gave.
    pub fn private_data(&self) -> &[u8] {
        &self.param.private_data
    }

    /// What the peer offers and asks for. Its `responder_resources` is the most our `initiator_depth` can be, and the
    /// reverse; accepting with more lowers it.
    pub fn param(&self) -> &ConnParam {
        &self.param
    }

    /// Accepts with a queue pair in RESET or INIT. The future ends when the connection is established or has failed for
    /// good; dropped before, it disconnects.
    pub fn accept(mut self, qp: &Qp, param: ConnParam) -> Accepting {
        self.answered = true;
        let mut state = self.device.lock();
        let accepted = state.cm_take_on(&self.device, self.key, qp, param);
        let started = match accepted {
            Ok(()) => Ok(self.key),
            Err(kind) => {
                state.cm_release(self.key);
                let (local, peer) = (Some(self.local), Some(self.peer));
                Err(CmError::new(&state.config, CmStep::Accept, local, peer, kind))
            }
        };
        drop(state);
        Accepting(Handshake::new(&self.device, qp.clone(), started))
    }

    /// Rejects with reason 28, "consumer reject", and at most 148 bytes for the peer program. Rejecting a peer that has
    /// gone meanwhile is no error.
    pub fn reject(self, private_data: &[u8]) -> Result<(), CmError> {
        self.reject_with(RejReason::ConsumerReject, private_data)
    }

    /// Rejects with one of the standard's reasons. Over iWARP there is only one: the peer sees reason 28.
    pub fn reject_with(mut self, reason: RejReason, private_data: &[u8]) -> Result<(), CmError> {
        let limit = self.device.lock().private_limit(REJECT_PRIVATE_DATA);
        if let Err(kind) = check_private("rejection", limit, private_data) {
            // Dropped, and so rejected without the data.
            let (local, peer) = (Some(self.local), Some(self.peer));
            return Err(CmError::new(self.device.config(), CmStep::Accept, local, peer, kind));
        }
        self.answered = true;
        let mut state = self.device.lock();
        // Without an id the peer has gone, and nobody is there to be rejected.
        if let Some(comm) = state.cm.records.take_comm(self.key) {
            state.cm_call(Call::Reject { comm, reason, private_data: private_data.to_vec() });
        }
        let conn = state.cm.records.get_mut(self.key).and_then(|record| record.conn.take());
        if let Some(conn) = conn {
            state.cm_call(Call::RejectStream { conn, private_data: private_data.to_vec() });
        }
        state.cm_release(self.key);
        Ok(())
    }
}

impl fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectRequest({} from {} on {})", self.ty.name(), self.peer, self.local)
    }
}

/// The future of [`ConnectRequest::accept`].
#[must_use = "dropped, it disconnects"]
pub struct Accepting(Handshake);

impl Future for Accepting {
    type Output = Result<Connection, CmError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

impl State {
    /// Brings the queue pair to RTR and notes the acceptance.
    fn cm_take_on(
        &mut self,
        device: &Device,
        key: Key,
        qp: &Qp,
        param: ConnParam,
    ) -> Result<(), CmErrorKind> {
        check_private("acceptance", self.private_limit(ACCEPT_PRIVATE_DATA), &param.private_data)?;
        let record = self.cm.records.get(key).ok_or(CmErrorKind::NotAnsweredInTime)?;
        if let Some(end) = &record.end {
            return Err(match end {
                End::Failed(kind) => kind.clone(),
                End::Closed(reason) => CmErrorKind::Closed(*reason),
            });
        }
        if record.ty != qp.ty() {
            let what = format!("{qp:?} cannot accept a request for {}", record.ty.name());
            return Err(CmErrorKind::Qp(what));
        }
        let (comm, stream) = (record.comm, record.conn.is_some());
        self.cm_check_qp(device, qp)?;
        let ours = ConnParam { srq: qp.srq().is_some(), ..param.limited(self.config.limits.max_qp_rd_atom) };
        if stream {
            self.cm_to_init(qp, &ours)?;
            self.cm.records.set_qpn(key, qp.qpn());
            if let Some(record) = self.cm.records.get_mut(key) {
                record.ours = ours;
            }
            self.cm_call(Call::AcceptStream(key));
            return Ok(());
        }
        let comm = comm.ok_or(CmErrorKind::NotAnsweredInTime)?;
        let accept = AcceptParams {
            qpn: qp.qpn(),
            responder_resources: ours.responder_resources,
            initiator_depth: ours.initiator_depth,
            flow_control: false, // no end-to-end credits are kept (IBTA §9.7.7.2)
            rnr_retry_count: ours.rnr_retry_count,
            srq: ours.srq,
            private_data: ours.private_data.clone(),
        };
        let negotiated = self.cm.engine.accept_params(comm, &accept).map_err(|error| match error {
            CmCallError::UnknownId(_) => CmErrorKind::NotAnsweredInTime,
            other => CmErrorKind::Refused(other),
        })?;
        self.cm_to_init(qp, &ours)?;
        self.cm.records.set_qpn(key, qp.qpn());
        if let Some(record) = self.cm.records.get_mut(key) {
            record.peers.ack_timeout = Some(negotiated.ack_timeout);
            record.ours = ours;
        }
        self.cm_to_rtr(key, &negotiated)?;
        self.cm_call(Call::Accept(key, accept));
        Ok(())
    }

    /// Sends REP.
    pub(super) fn cm_accept(&mut self, now: Instant, key: Key, params: &AcceptParams) {
        let Some(comm) = self.cm.records.get(key).and_then(|record| record.comm) else { return };
        if let Err(error) = self.cm.engine.accept(now, comm, params) {
            // What happened to the request since is told by its own event; without one it has just run out.
            let kind = match error {
                CmCallError::UnknownId(_) => CmErrorKind::NotAnsweredInTime,
                other => CmErrorKind::Refused(other),
            };
            self.cm_end(key, End::Failed(kind));
        }
    }
}
