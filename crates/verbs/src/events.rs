//! Asynchronous events: what happened to an object that no completion tells of.
//!
//! Read IBTA vol. 1 §11.6.3. Events wait in a bounded queue per device until they are fetched; those of an object that is
//! destroyed meanwhile are never delivered. Fetching one needs no acknowledgement: an event is a value and holds nothing.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use everywire_transport::ib::{CqId, QpEvent, SrqId};
use everywire_wire::Qpn;

use crate::config::PortState;
use crate::counters::DeviceCounter;
use crate::device::Device;
use crate::state::State;
use crate::waker::{WakerKey, WakerSet, Wakers};

/// Events that wait; later ones are lost and counted.
pub const MAX_EVENTS: usize = 4096;

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncEvent {
    /// Of a queue pair.
    Qp {
        /// Which one.
        qpn: Qpn,
        /// What happened.
        event: QpEvent,
    },
    /// A completion queue overflowed and is lost (IBV_EVENT_CQ_ERR).
    CqError(CqId),
    /// A shared receive queue fell below its limit (IBV_EVENT_SRQ_LIMIT_REACHED).
    SrqLimitReached(SrqId),
    /// The port came up (IBV_EVENT_PORT_ACTIVE).
    PortActive,
    /// The port went down (IBV_EVENT_PORT_ERR).
    PortError,
    /// The port's LID is another (IBV_EVENT_LID_CHANGE).
    LidChange,
    /// The subnet manager is another (IBV_EVENT_SM_CHANGE).
    SmChange,
    /// The port's GIDs are others (IBV_EVENT_GID_CHANGE).
    GidChange,
    /// The partition table is another (IBV_EVENT_PKEY_CHANGE).
    PkeyChange,
    /// The subnet manager asked for everything to be registered anew, which was done for groups
    /// (IBV_EVENT_CLIENT_REREGISTER).
    ClientReregister,
    /// The network did not let the device join a multicast group; nobody here is a member of it any more
    /// (RDMA_CM_EVENT_MULTICAST_ERROR).
    GroupError(IpAddr),
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AsyncEvent::Qp { qpn, event } => write!(f, "QP {qpn}: {}", qp_event_name(*event)),
            AsyncEvent::CqError(cq) => write!(f, "CQ {}: CQ_ERR", cq.0),
            AsyncEvent::SrqLimitReached(srq) => write!(f, "SRQ {}: SRQ_LIMIT_REACHED", srq.0),
            AsyncEvent::PortActive => f.write_str("PORT_ACTIVE"),
            AsyncEvent::PortError => f.write_str("PORT_ERR"),
            AsyncEvent::LidChange => f.write_str("LID_CHANGE"),
            AsyncEvent::SmChange => f.write_str("SM_CHANGE"),
            AsyncEvent::GidChange => f.write_str("GID_CHANGE"),
            AsyncEvent::PkeyChange => f.write_str("PKEY_CHANGE"),
            AsyncEvent::ClientReregister => f.write_str("CLIENT_REREGISTER"),
            AsyncEvent::GroupError(group) => write!(f, "group {group}: MULTICAST_ERROR"),
        }
    }
}

/// The event's name in libibverbs, without its prefix.
fn qp_event_name(event: QpEvent) -> &'static str {
    match event {
        QpEvent::CommEstablished => "COMM_EST",
        QpEvent::SqDrained => "SQ_DRAINED",
        QpEvent::LastWqeReached => "QP_LAST_WQE_REACHED",
        QpEvent::Fatal => "QP_FATAL",
        QpEvent::RequestError => "QP_REQ_ERR",
        QpEvent::AccessError => "QP_ACCESS_ERR",
    }
}

impl State {
    /// The port has come up or gone down.
    pub(crate) fn set_port_state(&mut self, port: PortState) {
        if std::mem::replace(&mut self.port, port) == port {
            return;
        }
        match port {
            PortState::Active => self.core.raise(AsyncEvent::PortActive),
            PortState::Down => {
                self.core.counters.add_device(DeviceCounter::LinkDowned, 1);
                self.core.raise(AsyncEvent::PortError);
            }
        }
    }
}

/// Events nobody has fetched.
#[derive(Default)]
pub(crate) struct EventQueue {
    queue: VecDeque<AsyncEvent>,
    pub(crate) wakers: WakerSet,
    /// How often the port has come up, and who waits for the next time.
    ups: u64,
    waiting_for_port: WakerSet,
}

impl EventQueue {
    /// Queues an event; false if there is no room. One that waits already is not queued twice.
    pub(crate) fn push(&mut self, event: AsyncEvent, wakes: &mut Wakers) -> bool {
        self.wakers.drain_into(wakes);
        if event == AsyncEvent::PortActive {
            self.ups += 1;
            self.waiting_for_port.drain_into(wakes);
        }
        if self.queue.contains(&event) {
            return true;
        }
        if self.queue.len() >= MAX_EVENTS {
            return false;
        }
        self.queue.push_back(event);
        true
    }

    /// The oldest event.
    pub(crate) fn pop(&mut self) -> Option<AsyncEvent> {
        self.queue.pop_front()
    }

    /// Drops events about something that is gone.
    pub(crate) fn forget(&mut self, gone: impl Fn(&AsyncEvent) -> bool) {
        self.queue.retain(|event| !gone(event));
    }
}

/// The event queue of a device. Several readers share it: each event goes to one of them.
#[derive(Clone)]
pub struct AsyncEvents {
    pub(crate) device: Device,
}

impl AsyncEvents {
    /// The oldest event, if there is one.
    pub fn try_next(&self) -> Option<AsyncEvent> {
        self.device.lock().core.events.pop()
    }

    /// Waits for an event.
    pub fn next(&self) -> NextAsyncEvent {
        NextAsyncEvent { device: self.device.clone(), key: None }
    }
}

impl fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncEvents({})", self.device.name())
    }
}

/// The future of [`AsyncEvents::next`]. Dropped before it is ready, it has taken no event.
pub struct NextAsyncEvent {
    device: Device,
    key: Option<WakerKey>,
}

impl Future for NextAsyncEvent {
    type Output = AsyncEvent;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<AsyncEvent> {
        let this = &mut *self;
        let mut state = this.device.lock();
        if let Some(event) = state.core.events.pop() {
            return Poll::Ready(event);
        }
        let replaced = state.core.events.wakers.register(&mut this.key, cx.waker());
        state.discard(replaced);
        Poll::Pending
    }
}

impl Drop for NextAsyncEvent {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let mut state = self.device.lock();
            let removed = state.core.events.wakers.remove(key);
            state.discard(removed);
        }
    }
}

/// Each time the port comes up, a future that is ready once, from [`Device::port_comes_up`]. It takes no event from the queue.
pub struct PortComesUp {
    device: Device,
    seen: u64,
    key: Option<WakerKey>,
}

impl PortComesUp {
    pub(crate) fn new(device: Device) -> PortComesUp {
        let seen = device.lock().core.events.ups;
        PortComesUp { device, seen, key: None }
    }
}

impl Future for PortComesUp {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.device.lock();
        let ups = state.core.events.ups;
        if std::mem::replace(&mut this.seen, ups) != ups {
            return Poll::Ready(());
        }
        let replaced = state.core.events.waiting_for_port.register(&mut this.key, cx.waker());
        state.discard(replaced);
        Poll::Pending
    }
}

impl Drop for PortComesUp {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let mut state = self.device.lock();
            let removed = state.core.events.waiting_for_port.remove(key);
            state.discard(removed);
        }
    }
}
