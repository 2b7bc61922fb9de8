//! Datagram services: asking for the queue pair behind an address and port, and offering one (SIDR).
//!
//! Read IBTA vol. 1 §12.11 and annex A11. The answer gives a queue pair and a Q_Key; together with an address handle they are
//! where datagrams go. Nothing is kept on either side afterwards.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use everywire_transport::cm::ib::{CommId, ListenerId, SidrAnswer, SidrParams};
use everywire_transport::ib::{QpType, UdDest};
use everywire_transport::mad::MadPath;
use everywire_wire::cm::SidrStatus;
use everywire_wire::ip_cm::{IpCmHeader, PortSpace, service_id};
use everywire_wire::{PKey, QKey, Qpn};

use super::active::{bound_addr, check_private, unspecified, with_header};
use super::error::{CmError, CmErrorKind, CmStep};
use super::param::ListenOptions;
use super::ports::Bound;
use super::record::{End, Key, Record, ends, scope_of, socket_addr};
use super::{Call, RESOLVE_PRIVATE_DATA, RESOLVED_PRIVATE_DATA};
use crate::ah::{Ah, AhAttr};
use crate::device::Device;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::state::State;
use crate::waker::{WakerKey, WakerSet};

/// A peer's request that waits for a program.
pub(super) struct Asking {
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

/// A datagram service that was found.
#[derive(Clone, Debug)]
pub struct DatagramService {
    /// The way there.
    pub ah: Ah,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The Q_Key to send with.
    pub qkey: QKey,
    /// The service's private data: 136 bytes, zeros at the end.
    pub private_data: Vec<u8>,
}

impl DatagramService {
    /// As the destination of work requests.
    pub fn dest(&self) -> UdDest {
        self.ah.dest(self.qpn, self.qkey)
    }
}

/// Which datagram service to find.
#[derive(Clone, Debug)]
pub struct ResolveOptions {
    /// Its address and port.
    pub dst: SocketAddr,
    /// The address and port to ask from; port 0 takes a free one.
    pub src: Option<SocketAddr>,
    /// For the service's program, at most 180 bytes.
    pub private_data: Vec<u8>,
    /// Gives up after this time; `None` leaves it to the retries.
    pub timeout: Option<Duration>,
}

impl ResolveOptions {
    /// `dst` with everything else at its default.
    pub fn new(dst: SocketAddr) -> ResolveOptions {
        ResolveOptions { dst, src: None, private_data: Vec::new(), timeout: None }
    }
}

impl Pd {
    /// Finds a datagram service: route, SIDR, address handle. Dropped before it is done, it leaves nothing behind.
    pub async fn resolve_udp(&self, options: ResolveOptions) -> Result<DatagramService, CmError> {
        let device = self.device();
        let ResolveOptions { dst, src, private_data, timeout } = options;
        let fail = |step, kind| CmError::new(device.config(), step, src, Some(dst), kind);
        check_private("service request", RESOLVE_PRIVATE_DATA, &private_data)
            .map_err(|kind| fail(CmStep::ResolveService, kind))?;
        let src_ip = src.map(|src| src.ip()).filter(|ip| !ip.is_unspecified());
        let route = device.resolve(dst.ip(), scope_of(dst), src_ip).await;
        let route = route.map_err(|error| fail(CmStep::ResolveRoute, CmErrorKind::Route(error)))?;
        let asked = device.lock().cm_ask_start(
            dst,
            SocketAddr::new(src_ip.unwrap_or(unspecified(dst.ip())), src.map_or(0, |src| src.port())),
            MadPath { local: route.src, remote: dst.ip(), scope_id: route.scope_id },
            &private_data,
            timeout,
        );
        let key = asked.map_err(|kind| fail(CmStep::ResolveService, kind))?;
        let answer = Resolved { device: device.clone(), key, waker: None }.await?;
        let attr = AhAttr { scope_id: route.scope_id, src: Some(route.src), ..AhAttr::new(dst.ip()) };
        let ah = self.ah_through(&attr, route);
        let ah = ah.map_err(|error| fail(CmStep::ResolveService, CmErrorKind::Verbs(error)))?;
        Ok(DatagramService { ah, qpn: answer.qpn, qkey: answer.qkey, private_data: answer.private_data })
    }
}

/// Waits for the answer.
struct Resolved {
    device: Device,
    key: Key,
    waker: Option<WakerKey>,
}

impl Future for Resolved {
    type Output = Result<SidrAnswer, CmError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut state = this.device.lock();
        let Some(record) = state.cm.records.get_mut(this.key) else { return Poll::Pending };
        if let Some(answer) = record.answer.take() {
            return Poll::Ready(Ok(*answer));
        }
        if let Some(End::Failed(kind)) = &record.end {
            let (kind, local, remote) = (kind.clone(), record.local, record.remote);
            let step = CmStep::ResolveService;
            return Poll::Ready(Err(CmError::new(&state.config, step, Some(local), Some(remote), kind)));
        }
        let replaced = record.wakers.register(&mut this.waker, cx.waker());
        state.discard(replaced);
        Poll::Pending
    }
}

impl Drop for Resolved {
    fn drop(&mut self) {
        self.device.lock().cm_release(self.key);
    }
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
    id: CommId,
    local: SocketAddr,
    peer: SocketAddr,
    private_data: Vec<u8>,
    answered: bool,
}

impl Drop for ResolveRequest {
    fn drop(&mut self) {
        if !self.answered {
            let mut state = self.device.lock();
            state.cm.asking.remove(&self.id);
            state.cm_call(Call::Abandon(self.id));
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
        state.cm.asking.remove(&self.id);
        state.work = true;
        // A peer that has stopped waiting needs no answer.
        let _ = state.cm.engine.sidr_reply(self.id, &answer);
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
    fn cm_ask_start(
        &mut self,
        dst: SocketAddr,
        src: SocketAddr,
        path: MadPath,
        private_data: &[u8],
        timeout: Option<Duration>,
    ) -> Result<Key, CmErrorKind> {
        let src_ip = Some(src.ip()).filter(|ip| !ip.is_unspecified());
        let bound = self.cm.udp.bind(src_ip, src.port(), &mut self.rng).ok_or(CmErrorKind::AddressInUse)?;
        let local = socket_addr(path.local, bound.port, path.scope_id);
        let mut record = Record::new(CmStep::ResolveService, QpType::Ud, local, dst);
        record.bound = Some(bound);
        record.millis = timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        let key = self.cm.records.insert(record);
        let params = SidrParams {
            path,
            service_id: service_id(PortSpace::UDP, dst.port()),
            pkey: PKey::DEFAULT,
            private_data: with_header(local, dst.ip(), private_data),
        };
        self.cm_call(Call::Start(key));
        self.cm_call(Call::Ask(key, params));
        Ok(key)
    }

    /// Sends SIDR_REQ.
    pub(super) fn cm_ask(&mut self, now: Instant, key: Key, params: &SidrParams) {
        if self.cm.records.get(key).is_none() {
            return; // dropped before the driver came
        }
        match self.cm.engine.sidr_request(now, params) {
            Ok(id) => self.cm.records.set_comm(key, id),
            Err(error) => self.cm_end(key, End::Failed(CmErrorKind::Refused(error))),
        }
    }

    /// SIDR_REP has come.
    pub(super) fn cm_answered(&mut self, id: CommId, answer: SidrAnswer) {
        let Some(key) = self.cm.records.of_comm(id) else { return };
        self.cm.records.take_comm(key);
        self.cm.records.disarm(key);
        if answer.status == SidrStatus::Valid {
            if let Some(record) = self.cm.records.get_mut(key) {
                record.answer = Some(Box::new(answer));
            }
            self.cm_wake(key);
        } else {
            let kind = CmErrorKind::NoService { status: answer.status, private_data: answer.private_data };
            self.cm_end(key, End::Failed(kind));
        }
    }

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
        let (local, peer) = ends(path, queue.port, header.src_port);
        queue.waiting.push_back(id);
        queue.wakers.drain_into(&mut self.core.wakes);
        let private_data = private[IpCmHeader::LEN..].to_vec();
        self.cm.asking.insert(id, Asking { listener, local, peer, private_data });
    }

    /// A request has run out of time, whether a program has it or not.
    pub(super) fn cm_ud_gone(&mut self, id: CommId) {
        let Some(asking) = self.cm.asking.remove(&id) else { return };
        if let Some(queue) = self.cm.ud_listeners.get_mut(&asking.listener) {
            queue.waiting.retain(|&waiting| waiting != id);
        }
    }

    fn cm_next_ud(&mut self, device: &Device, listener: ListenerId) -> Option<ResolveRequest> {
        let queue = self.cm.ud_listeners.get_mut(&listener)?;
        let id = queue.waiting.pop_front()?;
        let asking = self.cm.asking.remove(&id)?;
        Some(ResolveRequest {
            device: device.clone(),
            id,
            local: asking.local,
            peer: asking.peer,
            private_data: asking.private_data,
            answered: false,
        })
    }
}
