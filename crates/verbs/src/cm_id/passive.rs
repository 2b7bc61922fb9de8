//! Listeners, and the requests that wait on them. `request` has what a program does with one.
//!
//! Read IBTA vol. 1 §12.9.7.2 and annex A11 first. A request that its peer withdraws before a program has taken it is never
//! seen; one whose private data begin with no IP CM header is rejected on the program's behalf.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use everywire_transport::cm::ib::{ListenParams, ListenerId, Reject, Request, Transport};
use everywire_transport::ib::QpType;
use everywire_wire::ip_cm::{IpCmHeader, PortSpace, service_id, split_service_id};

use super::active::bound_addr;
use super::error::{CmError, CmErrorKind, CmStep};
use super::param::{ConnParam, ListenOptions};
use super::ports::Bound;
use super::record::{Key, Record, ends, scope_of, socket_addr};
use super::request::ConnectRequest;
use crate::command::Command;
use crate::config::Wire;
use crate::device::Device;
use crate::state::State;
use crate::stream::StreamListenerId;
use crate::waker::{WakerKey, WakerSet, Wakers};

/// Requests that wait for a program to take them.
pub(super) struct Queue {
    waiting: VecDeque<Key>,
    /// How many may wait.
    backlog: usize,
    /// It offers a service without RDMA/CM: requests have no IP CM header.
    plain: bool,
    wakers: WakerSet,
}

impl Queue {
    fn new(backlog: usize) -> Queue {
        Queue { waiting: VecDeque::new(), backlog, plain: false, wakers: WakerSet::default() }
    }

    /// Whether no more may wait.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= self.backlog
    }

    /// One more waits.
    pub(super) fn add(&mut self, key: Key, wakes: &mut Wakers) {
        self.waiting.push_back(key);
        self.wakers.drain_into(wakes);
    }
}

/// A listener. Cheap to clone; the last handle stops listening, and requests nobody has taken are rejected.
#[derive(Clone)]
pub struct Listener(Arc<ListenerInner>);

struct ListenerInner {
    device: Device,
    id: ListenerId,
    bound: Option<Bound>,
    local: SocketAddr,
}

impl Drop for ListenerInner {
    fn drop(&mut self) {
        let mut state = self.device.lock();
        match state.config.wire {
            Wire::Iwarp => state.command(Command::StreamUnlisten { listener: StreamListenerId(self.id.0) }),
            _ => state.cm.engine.unlisten(self.id),
        }
        if let Some(bound) = self.bound {
            state.cm.tcp.release(bound);
        }
        if let Some(mut queue) = state.cm.listeners.remove(&self.id) {
            for key in queue.waiting {
                state.cm_release(key);
            }
            queue.wakers.drain_into(&mut state.core.wakes);
        }
        drop(state);
        // Now, not when the driver comes: until then the system would go on accepting.
        if self.device.wire() == Wire::Iwarp {
            self.device.release_stream(self.local);
        }
    }
}

impl Device {
    /// Listens for connections. Port 0 takes a free one; an unspecified address means all of the device's.
    pub fn listen(&self, addr: SocketAddr, options: ListenOptions) -> Result<Listener, CmError> {
        let listened = match self.wire() {
            Wire::Iwarp => self.listen_stream(addr, options.backlog),
            _ => self.listen_service(addr, options.backlog),
        };
        match listened {
            Ok((id, bound)) => {
                let (local, bound) = (bound_addr(bound, scope_of(addr)), Some(bound));
                Ok(Listener(Arc::new(ListenerInner { device: self.clone(), id, bound, local })))
            }
            Err(kind) => Err(CmError::new(self.config(), CmStep::Listen, Some(addr), None, kind)),
        }
    }
}

impl Device {
    /// Offers a service of InfiniBand's connection manager without RDMA/CM. Requests show their ends as GIDs with port 0, and all
    /// of their private data.
    ///
    /// # Errors
    /// The wire has no such services, or somebody offers this one.
    pub fn listen_service_id(&self, service_id: u64, options: ListenOptions) -> Result<Listener, CmError> {
        let fail = |kind| Err(CmError::new(self.config(), CmStep::Listen, None, None, kind));
        if self.wire() == Wire::Iwarp {
            return fail(CmErrorKind::Qp("iWARP has no services without RDMA/CM".to_owned()));
        }
        let mut state = self.lock();
        let params = ListenParams { service_id, local: None, backlog: options.backlog };
        let listened = state.cm.engine.listen(&params);
        let id = match listened {
            Ok(id) => id,
            Err(error) => {
                drop(state);
                return fail(CmErrorKind::Refused(error));
            }
        };
        state.cm.listeners.insert(id, Queue { plain: true, ..Queue::new(options.backlog) });
        let ip = self.config().gids.first().map_or(IpAddr::from([0; 16]), |gid| gid.ip);
        drop(state);
        Ok(Listener(Arc::new(ListenerInner {
            device: self.clone(),
            id,
            bound: None,
            local: SocketAddr::new(ip, 0),
        })))
    }

    /// Listens for messages of InfiniBand's connection manager.
    fn listen_service(&self, addr: SocketAddr, backlog: usize) -> Result<(ListenerId, Bound), CmErrorKind> {
        let mut state = self.lock();
        let (id, bound) = state.cm_listen(addr, PortSpace::TCP, backlog)?;
        state.cm.listeners.insert(id, Queue::new(backlog));
        Ok((id, bound))
    }

    /// Binds a TCP socket of the driver, if it has sockets, and takes the port in the device's own table, where the driver
    /// is a simulator.
    fn listen_stream(&self, addr: SocketAddr, backlog: usize) -> Result<(ListenerId, Bound), CmErrorKind> {
        let ip = Some(addr.ip()).filter(|ip| !ip.is_unspecified());
        let socket = {
            let state = self.lock();
            if let Some(ip) = ip {
                state.cm_check_address(ip, scope_of(addr))?;
            }
            // A wildcard means the device's address: others of this host may be other devices'.
            let gid = state.config.gids.iter().find(|gid| gid.ip.is_ipv4() == addr.is_ipv4());
            let gid = gid.or(state.config.gids.first());
            let bind = ip.or(gid.map(|gid| gid.ip)).unwrap_or(addr.ip());
            let scope = gid.map_or(0, |gid| gid.scope_id).max(scope_of(addr));
            socket_addr(bind, addr.port(), scope)
        };
        let socket = self.reserve_stream(socket).map_err(CmErrorKind::from)?;
        let mut state = self.lock();
        let state: &mut State = &mut state;
        let Some(bound) = state.cm.tcp.bind(ip, socket.port(), &mut state.rng) else {
            self.release_stream(socket);
            return Err(CmErrorKind::AddressInUse);
        };
        let addr = socket_addr(socket.ip(), bound.port, scope_of(socket));
        state.cm.last_stream_listener += 1;
        let id = ListenerId(state.cm.last_stream_listener);
        state.cm.listeners.insert(id, Queue::new(backlog));
        state.command(Command::StreamListen { listener: StreamListenerId(id.0), addr, backlog });
        Ok((id, bound))
    }
}

impl Listener {
    /// The address and port listened on.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local
    }

    /// The next request, if one waits.
    pub fn try_next(&self) -> Option<ConnectRequest> {
        self.0.device.lock().cm_next_request(&self.0.device, self.0.id)
    }

    /// Waits for a request. Dropped before it is ready, it has taken none.
    pub fn next_request(&self) -> NextRequest {
        NextRequest { listener: self.clone(), waker: None }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({} on {})", self.0.device.name(), self.0.local)
    }
}

/// The future of [`Listener::next_request`].
pub struct NextRequest {
    listener: Listener,
    waker: Option<WakerKey>,
}

impl Future for NextRequest {
    type Output = Result<ConnectRequest, CmError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let inner = &this.listener.0;
        let mut state = inner.device.lock();
        if let Some(request) = state.cm_next_request(&inner.device, inner.id) {
            return Poll::Ready(Ok(request));
        }
        let Some(queue) = state.cm.listeners.get_mut(&inner.id) else { return Poll::Pending };
        let replaced = queue.wakers.register(&mut this.waker, cx.waker());
        state.discard(replaced);
        Poll::Pending
    }
}

impl Drop for NextRequest {
    fn drop(&mut self) {
        let Some(waker) = self.waker else { return };
        let mut state = self.listener.0.device.lock();
        let queue = state.cm.listeners.get_mut(&self.listener.0.id);
        let removed = queue.and_then(|queue| queue.wakers.remove(waker));
        state.discard(removed);
    }
}

impl State {
    /// Binds and listens in a port space.
    pub(super) fn cm_listen(
        &mut self,
        addr: SocketAddr,
        space: PortSpace,
        backlog: usize,
    ) -> Result<(ListenerId, Bound), CmErrorKind> {
        let local = Some(addr.ip()).filter(|ip| !ip.is_unspecified());
        if let Some(ip) = local {
            self.cm_check_address(ip, scope_of(addr))?;
        }
        let ports = if space == PortSpace::UDP { &mut self.cm.udp } else { &mut self.cm.tcp };
        let bound = ports.bind(local, addr.port(), &mut self.rng).ok_or(CmErrorKind::AddressInUse)?;
        let service_id = service_id(space, bound.port);
        // On InfiniBand a packet does not say to which name it goes: the port's number decides alone.
        let local = local.filter(|_| self.ib.is_none());
        match self.cm.engine.listen(&ListenParams { service_id, local, backlog }) {
            Ok(id) => Ok((id, bound)),
            Err(error) => {
                let ports = if space == PortSpace::UDP { &mut self.cm.udp } else { &mut self.cm.tcp };
                ports.release(bound);
                Err(CmErrorKind::Refused(error))
            }
        }
    }

    /// Whether an address to bind is one of ours, with its interface where it needs one.
    pub(super) fn cm_check_address(&self, ip: IpAddr, scope_id: u32) -> Result<(), CmErrorKind> {
        if self.ib.is_some() && self.is_our_address(ip) {
            return Ok(());
        }
        let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if link_local && scope_id == 0 {
            return Err(CmErrorKind::NoScope);
        }
        let mut gids = self.config.gids.iter();
        if !gids.any(|gid| gid.ip == ip && (!link_local || gid.scope_id == scope_id)) {
            return Err(CmErrorKind::NotOurAddress { device: self.config.name.clone() });
        }
        Ok(())
    }

    /// A REQ has come: it waits for a program, unless its private data are no IP CM header.
    pub(super) fn cm_request(&mut self, now: Instant, request: &Request) {
        let id = request.id;
        let plain = self.cm.listeners.get(&request.listener).is_some_and(|queue| queue.plain);
        let Some((local, remote, data)) = parse_request(request, plain) else {
            // As Linux: what the connection manager's consumer cannot read is rejected by the consumer.
            let _ = self.cm.engine.reject(now, id, &Reject::consumer(&[]));
            return;
        };
        let ty = match request.transport {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
        };
        let mut record = Record::new(CmStep::Accept, ty, local, remote);
        record.comm = Some(id);
        record.queued_on = Some(request.listener);
        record.peers = ConnParam {
            private_data: data,
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            min_rnr_timer: 0,
            ack_timeout: None,
            srq: request.srq,
            qp_num: request.peer_qpn,
        };
        let Some(queue) = self.cm.listeners.get_mut(&request.listener) else {
            // The listener has just gone.
            return self.cm.engine.abandon(now, id);
        };
        queue.add(self.cm.records.insert(record), &mut self.core.wakes);
    }

    fn cm_next_request(&mut self, device: &Device, id: ListenerId) -> Option<ConnectRequest> {
        let key = self.cm.listeners.get_mut(&id)?.waiting.pop_front()?;
        let record = self.cm.records.get_mut(key)?;
        record.queued_on = None;
        Some(ConnectRequest::new(device, key, record))
    }

    /// A request that no program had taken yet is off: the program never sees it.
    pub(super) fn cm_unqueue(&mut self, key: Key) -> bool {
        let Some(listener) = self.cm.records.get(key).and_then(|record| record.queued_on) else {
            return false;
        };
        if let Some(queue) = self.cm.listeners.get_mut(&listener) {
            queue.waiting.retain(|&waiting| waiting != key);
        }
        self.cm_release(key);
        true
    }
}

/// Our address, the peer's, and the program's private data of a request.
fn parse_request(request: &Request, plain: bool) -> Option<(SocketAddr, SocketAddr, Vec<u8>)> {
    if plain {
        let end = |ip| socket_addr(ip, 0, request.path.scope_id);
        return Some((end(request.path.local), end(request.path.remote), request.private_data.clone()));
    }
    let (_, local_port) = split_service_id(request.service_id)?;
    let header = IpCmHeader::parse(&request.private_data).ok().filter(IpCmHeader::is_supported)?;
    let (local, remote) = ends(&request.path, &header, local_port);
    Some((local, remote, request.private_data[IpCmHeader::LEN..].to_vec()))
}
