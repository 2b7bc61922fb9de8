//! Management datagrams of other classes than connection management, for programs: device management, vendors' own.
//!
//! Read IBTA vol. 1 §13.4 (MADs) and §13.5 (their flow) first. A program takes a class on QP1, as the side that is asked or the one
//! that asks, and gets the datagrams of that side; nothing is sent again, and no transaction is known, for it. Datagrams of
//! classes that nobody took go to the connection manager, which drops what is not its own.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use everywire_transport::mad::{MAD_LEN, MadPath};
use everywire_wire::mad::{class, method};

use crate::device::Device;
use crate::error::{ErrorKind, VerbsError};
use crate::state::State;
use crate::waker::{WakerKey, WakerSet};
use crate::wire_kind::WireFeature;

/// Datagrams that may wait for a program; more are dropped, as any datagram may be.
const MAX_WAITING: usize = 64;
/// Datagrams that may wait for the driver; more are dropped.
const MAX_OUT: usize = 256;

/// Which datagrams of a class a program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MadSide {
    /// Those that ask: it is the class's agent here.
    Agent,
    /// Those that answer.
    Manager,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(MadPath, [u8; MAD_LEN])>,
    wakers: WakerSet,
}

/// Who takes which datagrams, and what is to go out.
#[derive(Default)]
pub(crate) struct Gmps {
    queues: HashMap<(u8, MadSide), Queue>,
    out: VecDeque<(MadPath, [u8; MAD_LEN])>,
}

/// A class on QP1, taken by a program. Cheap to clone; the last handle gives it back.
#[derive(Clone)]
pub struct MadAgent(Arc<Inner>);

struct Inner {
    device: Device,
    class: u8,
    side: MadSide,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut state = self.device.lock();
        if let Some(mut queue) = state.gmps.queues.remove(&(self.class, self.side)) {
            queue.wakers.drain_into(&mut state.core.wakes);
        }
    }
}

impl Device {
    /// Takes one side of a management class on QP1.
    ///
    /// # Errors
    /// The wire has no QP1, the class is one of the device's own (subnets, their administration, connections), or taken.
    pub fn mad_agent(&self, class: u8, side: MadSide) -> Result<MadAgent, VerbsError> {
        let refuse = |kind, why: String| Err(VerbsError::new(kind, self.name(), why));
        self.config().needs(WireFeature::Ud)?;
        let own = [class::SUBN_LID_ROUTED, class::SUBN_DIRECTED_ROUTE, class::SUBN_ADM, class::COM_MGT];
        if own.contains(&class) {
            return refuse(ErrorKind::InvalidArgument, format!("class {class:#04x} is the device's own"));
        }
        let mut state = self.lock();
        if state.gmps.queues.contains_key(&(class, side)) {
            drop(state);
            return refuse(ErrorKind::OutOfResources, format!("class {class:#04x} is taken ({side:?})"));
        }
        state.gmps.queues.insert((class, side), Queue::default());
        drop(state);
        Ok(MadAgent(Arc::new(Inner { device: self.clone(), class, side })))
    }
}

impl MadAgent {
    /// The way to QP1 of another port.
    ///
    /// # Errors
    /// There is none.
    pub async fn way(&self, dst: IpAddr, scope_id: u32) -> Result<MadPath, VerbsError> {
        let device = &self.0.device;
        let way = device.resolve(dst, scope_id, None, None, None, None).await.map_err(|error| {
            VerbsError::new(ErrorKind::Unreachable, device.name(), format!("no way to {dst}: {error}"))
        })?;
        Ok(MadPath::on(way.link, way.src, way.dst, way.scope_id))
    }

    /// Sends a datagram; it may be lost, like any.
    pub fn send(&self, to: MadPath, mad: &[u8; MAD_LEN]) {
        let mut state = self.0.device.lock();
        if state.gmps.out.len() < MAX_OUT {
            state.gmps.out.push_back((to, *mad));
            state.work = true;
        }
    }

    /// Waits for a datagram, and gives the way back too. Dropped before it is ready, it has taken none.
    pub fn recv(&self) -> NextMad {
        NextMad { agent: self.clone(), waker: None }
    }
}

impl fmt::Debug for MadAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MadAgent(class {:#04x} on {}, {:?})", self.0.class, self.0.device.name(), self.0.side)
    }
}

/// The future of [`MadAgent::recv`].
pub struct NextMad {
    agent: MadAgent,
    waker: Option<WakerKey>,
}

impl Future for NextMad {
    type Output = (MadPath, [u8; MAD_LEN]);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let inner = &this.agent.0;
        let mut state = inner.device.lock();
        let Some(queue) = state.gmps.queues.get_mut(&(inner.class, inner.side)) else { return Poll::Pending };
        if let Some(mad) = queue.waiting.pop_front() {
            return Poll::Ready(mad);
        }
        let replaced = queue.wakers.register(&mut this.waker, cx.waker());
        state.discard(replaced);
        Poll::Pending
    }
}

impl Drop for NextMad {
    fn drop(&mut self) {
        let Some(waker) = self.waker else { return };
        let inner = &self.agent.0;
        let mut state = inner.device.lock();
        let queue = state.gmps.queues.get_mut(&(inner.class, inner.side));
        let removed = queue.and_then(|queue| queue.wakers.remove(waker));
        state.discard(removed);
    }
}

impl State {
    /// Gives a datagram to the program that took its class; whether there is one.
    pub(crate) fn gmp_deliver(&mut self, path: &MadPath, mad: &[u8; MAD_LEN]) -> bool {
        let side = if mad[3] & method::RESPONSE_BIT == 0 { MadSide::Agent } else { MadSide::Manager };
        let Some(queue) = self.gmps.queues.get_mut(&(mad[1], side)) else { return false };
        if queue.waiting.len() < MAX_WAITING {
            queue.waiting.push_back((*path, *mad));
            queue.wakers.drain_into(&mut self.core.wakes);
        }
        true
    }

    /// The next datagram of a program's.
    pub(crate) fn gmp_poll_transmit(&mut self) -> Option<(MadPath, [u8; MAD_LEN])> {
        self.gmps.out.pop_front()
    }
}
