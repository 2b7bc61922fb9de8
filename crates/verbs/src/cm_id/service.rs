//! Offering a datagram queue pair under an address and port (SIDR). `datagram` has the side that asks.
//!
//! Read IBTA vol. 1 §12.11 and annex A11. A request is its handle: dropped without an answer it is refused. After the answer
//! nothing is kept; a peer that lost it asks again.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use everywire_transport::cm::ib::{CommId, ListenerId, SidrAnswer};
use everywire_transport::ib::QpType;
use everywire_transport::mad::MadPath;
use everywire_wire::QKey;
use everywire_wire::cm::SidrStatus;
use everywire_wire::ip_cm::{IpCmHeader, PortSpace};

use super::active::{bound_addr, check_private};
use super::error::{CmError, CmErrorKind, CmStep};
use super::param::ListenOptions;
use super::ports::Bound;
use super::record::{ends, scope_of};
use super::{Call, RESOLVED_PRIVATE_DATA};
use crate::device::Device;
use crate::qp::Qp;
use crate::state::State;
use crate::waker::{WakerKey, WakerSet};
use crate::wire_kind::WireFeature;

/// A peer's request until a program has answered it, or its time is over.
pub(super) struct Asking {
    /// Tells it from a later one with the same id.
    serial: u64,
    listener: ListenerId,
    local: SocketAddr,
    peer: SocketAddr,
    private_data: Vec<u8>,
}

/// Requests of one listener that no program has taken.
pub(super) struct UdQueue {
    port: u16,
    waiting: VecDeque<CommId>,
    wakers: WakerSet,
}

/// Offers a datagram service. Cheap to clone; the last handle stops it.
#[derive(Clone)]
pub struct UdListener(Arc<UdListenerInner>);

struct UdListenerInner {
    device: Device,
    id: ListenerId,
    bound: Bound,
    local: SocketAddr,
}

impl Drop for UdListenerInner {
    fn drop(&mut self) {
        let mut state = self.device.lock();
        state.cm.engine.unlisten(self.id);
        state.cm.udp.release(self.bound);
        if let Some(mut queue) = state.cm.ud_listeners.remove(&self.id) {
            for id in queue.waiting {
                state.cm.asking.remove(&id);
                state.cm_call(Call::Abandon(id));
            }
            queue.wakers.drain_into(&mut state.core.wakes);
        }
    }
}

impl Device {
    /// Offers a datagram service. Port 0 takes a free one; an unspecified address means all of the device's.
    pub fn listen_udp(&self, addr: SocketAddr, options: ListenOptions) -> Result<UdListener, CmError> {
        if let Err(error) = self.config().needs(WireFeature::Ud) {
            return Err(CmError::new(self.config(), CmStep::Listen, Some(addr), None, error.into()));
        }
        let mut state = self.lock();
        match state.cm_listen(addr, PortSpace::UDP, options.backlog) {
            Ok((id, bound)) => {
                let queue =
                    UdQueue { port: bound.port, waiting: VecDeque::new(), wakers: WakerSet::default() };
                state.cm.ud_listeners.insert(id, queue);
                drop(state);
                let local = bound_addr(bound, scope_of(addr));
                Ok(UdListener(Arc::new(UdListenerInner { device: self.clone(), id, bound, local })))
            }
            Err(kind) => {
                drop(state);
                Err(CmError::new(self.config(), CmStep::Listen, Some(addr), None, kind))
            }
        }
    }
}

impl UdListener {
    /// The address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local
    }

    /// The next request, if one waits.
    pub fn try_next(&self) -> Option<ResolveRequest> {
        self.0.device.lock().cm_next_ud(&self.0.device, self.0.id)
    }

    /// Waits for a request. Dropped before it is ready, it has taken none.
    pub fn next_request(&self) -> NextResolve {
        NextResolve { listener: self.clone(), waker: None }
    }
}

impl fmt::Debug for UdListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UdListener({} on {})", self.0.device.name(), self.0.local)
    }
}

/// The future of [`UdListener::next_request`].
pub struct NextResolve {
    listener: UdListener,
    waker: Option<WakerKey>,
}

impl Future for NextResolve {
    type Output = ResolveRequest;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ResolveRequest> {
        let this = &mut *self;
        let inner = &this.listener.0;
        let mut state = inner.device.lock();
        if let Some(request) = state.cm_next_ud(&inner.device, inner.id) {
            return Poll::Ready(request);
        }
        let Some(queue) = state.cm.ud_listeners.get_mut(&inner.id) else { return Poll::Pending };
        let replaced = queue.wakers.register(&mut this.waker, cx.waker());
        state.discard(replaced);
        Poll::Pending
    }
}

impl Drop for NextResolve {
    fn drop(&mut self) {
        let Some(waker) = self.waker else { return };
        let mut state = self.listener.0.device.lock();
        let queue = state.cm.ud_listeners.get_mut(&self.listener.0.id);
        let removed = queue.and_then(|queue| queue.wakers.remove(waker));
        state.discard(removed);
    }
}

/// A peer that asks for the service's queue pair. Dropped without an answer it is refused.
pub struct ResolveRequest {
    device: Device,
    pub(super) id: CommId,
    serial: u64,
    local: SocketAddr,
    peer: SocketAddr,
    private_data: Vec<u8>,
    answered: bool,
}

impl Drop for ResolveRequest {
    fn drop(&mut self) {
        if !self.answered {
            let mut state = self.device.lock();
            if state.cm_ud_take(self.id, self.serial) {
                state.cm_call(Call::Abandon(self.id));
            }
        }
    }
}

impl ResolveRequest {
    /// Who asks.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address and port it asked for.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The peer program's private data: 180 bytes, zeros at the end.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Answers with a datagram queue pair and its Q_Key.
    pub fn accept(self, qp: &Qp, qkey: QKey, private_data: &[u8]) -> Result<(), CmError> {
        if qp.ty() != QpType::Ud || !qp.device().same(&self.device) {
            let kind = CmErrorKind::Qp(format!("{qp:?} is no datagram queue pair of this device"));
            return Err(self.error(kind));
        }
        let private_data = private_data.to_vec();
        self.answer(SidrAnswer { status: SidrStatus::Valid, qpn: qp.qpn(), qkey, private_data })
    }

    /// Refuses.
    pub fn reject(self, private_data: &[u8]) -> Result<(), CmError> {
        let private_data = private_data.to_vec();
        self.answer(SidrAnswer { private_data, ..SidrAnswer::refusal(SidrStatus::Rejected) })
    }

    fn answer(mut self, answer: SidrAnswer) -> Result<(), CmError> {
        if let Err(kind) = check_private("service answer", RESOLVED_PRIVATE_DATA, &answer.private_data) {
            return Err(self.error(kind));
        }
        self.answered = true;
        let mut state = self.device.lock();
        // A peer that has stopped waiting needs no answer.
        if state.cm_ud_take(self.id, self.serial) {
            state.work = true;
            let _ = state.cm.engine.sidr_reply(self.id, &answer);
        }
        Ok(())
    }

    fn error(&self, kind: CmErrorKind) -> CmError {
        CmError::new(self.device.config(), CmStep::Accept, Some(self.local), Some(self.peer), kind)
    }
}

impl fmt::Debug for ResolveRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResolveRequest({} on {})", self.peer, self.local)
    }
}

impl State {
    /// SIDR_REQ has come.
    pub(super) fn cm_ud_request(
        &mut self,
        id: CommId,
        listener: ListenerId,
        path: &MadPath,
        private: Vec<u8>,
    ) {
        let header = IpCmHeader::parse(&private).ok().filter(IpCmHeader::is_supported);
        let queue = self.cm.ud_listeners.get_mut(&listener);
        let (Some(header), Some(queue)) = (header, queue) else {
            return self.cm_call(Call::Abandon(id));
        };
        let (local, peer) = ends(path, &header, queue.port);
        queue.waiting.push_back(id);
        queue.wakers.drain_into(&mut self.core.wakes);
        let private_data = private[IpCmHeader::LEN..].to_vec();
        self.cm.asked += 1;
        self.cm.asking.insert(id, Asking { serial: self.cm.asked, listener, local, peer, private_data });
    }

    /// A request has run out of time, whether a program has it or not.
    pub(super) fn cm_ud_gone(&mut self, id: CommId) {
        let Some(asking) = self.cm.asking.remove(&id) else { return };
        if let Some(queue) = self.cm.ud_listeners.get_mut(&asking.listener) {
            queue.waiting.retain(|&waiting| waiting != id);
        }
    }

    /// Whether this request still waits for an answer; it does not any more.
    fn cm_ud_take(&mut self, id: CommId, serial: u64) -> bool {
        let waits = self.cm.asking.get(&id).is_some_and(|asking| asking.serial == serial);
        if waits {
            self.cm.asking.remove(&id);
        }
        waits
    }

    fn cm_next_ud(&mut self, device: &Device, listener: ListenerId) -> Option<ResolveRequest> {
        let queue = self.cm.ud_listeners.get_mut(&listener)?;
        let id = queue.waiting.pop_front()?;
        let asking = self.cm.asking.get_mut(&id)?;
        Some(ResolveRequest {
            device: device.clone(),
            id,
            serial: asking.serial,
            local: asking.local,
            peer: asking.peer,
            private_data: std::mem::take(&mut asking.private_data),
            answered: false,
        })
    }
}
