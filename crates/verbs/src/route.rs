//! Asking the driver for routes: which source address, interface and MTU lead to a destination.
//!
//! A request is a command for the driver and a token; the answer wakes the future that waits for it, or goes to the
//! connection manager. A future dropped early withdraws its request, and a late answer finds nothing.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::state::State;

/// Requests that may be open at once.
pub const MAX_PENDING_ROUTES: usize = 1 << 16;

/// How long a driver may take to answer.
pub(crate) const ROUTE_TIMEOUT: Duration = Duration::from_secs(5);

/// Names one request for a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteToken(pub u64);

/// How to reach a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The source address to use; one of the device's.
    pub src: IpAddr,
    /// Interface index where the destination is link-local; 0 otherwise.
    pub scope_id: u32,
    /// MTU of the IP path, in bytes.
    pub mtu: usize,
}

/// Why there is no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// No route to the destination.
    #[error("no route to the destination")]
    NoRoute,
    /// The source address asked for, or the one the route would use, is not the device's.
    #[error("the route's source address is not one of the device's")]
    NotOurSource,
    /// A link-local destination without an interface.
    #[error("a link-local address needs an interface (address%interface)")]
    NoScope,
    /// Another address family than the device's.
    #[error("the device has no address of that family")]
    Family,
    /// The MTU does not even fit packets of 256 bytes.
    #[error("the path's MTU of {0} bytes is too small")]
    MtuTooSmall(usize),
    /// The driver gave no answer in time.
    #[error("the driver did not answer in time")]
    NoAnswer,
    /// Too many requests are open.
    #[error("{MAX_PENDING_ROUTES} route requests are open")]
    TooMany,
    /// The system's answer, as an errno.
    #[error("the system answered with errno {0}")]
    System(i32),
}

/// Something for the driver to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Find a route and answer with [`Drive::resolved`](crate::Drive::resolved).
    ResolveRoute {
        /// To be given back.
        token: RouteToken,
        /// Destination.
        dst: IpAddr,
        /// Its interface index if it is link-local, or 0.
        scope_id: u32,
        /// The source to use; the driver chooses one of the device's otherwise.
        src: Option<IpAddr>,
    },
    /// Receive datagrams sent to a multicast group.
    JoinGroup {
        /// The group's address.
        group: IpAddr,
        /// Interface index, or 0.
        scope_id: u32,
    },
    /// Stop receiving them.
    LeaveGroup {
        /// The group's address.
        group: IpAddr,
        /// Interface index, or 0.
        scope_id: u32,
    },
}

impl Command {
    /// Whether doing `earlier` and then this is doing nothing.
    pub(crate) fn undoes(&self, earlier: &Command) -> bool {
        use Command::{JoinGroup, LeaveGroup};
        match (earlier, self) {
            (JoinGroup { group: a, scope_id: x }, LeaveGroup { group: b, scope_id: y })
            | (LeaveGroup { group: a, scope_id: x }, JoinGroup { group: b, scope_id: y }) => a == b && x == y,
            _ => false,
        }
    }
}

/// Who asked.
enum Asker {
    /// A [`Resolving`].
    Future {
        answer: Option<Result<Route, RouteError>>,
        waker: Option<Waker>,
        /// How long the driver may take, and until when that is once it has the request.
        limit: Duration,
        due: Option<Instant>,
    },
    /// The connection manager, which has a clock of its own.
    Cm,
}

/// Open requests.
#[derive(Default)]
pub(crate) struct Routes {
    next: u64,
    open: HashMap<u64, Asker>,
    timers: BTreeSet<(Instant, u64)>,
}

impl Routes {
    /// Forgets a request; its waker, if any, is to be dropped without the lock.
    pub(crate) fn withdraw(&mut self, token: RouteToken) -> Option<Waker> {
        match self.open.remove(&token.0) {
            Some(Asker::Future { waker, due, .. }) => {
                due.map(|at| self.timers.remove(&(at, token.0)));
                waker
            }
            _ => None,
        }
    }

    /// The driver has taken the request: its time begins.
    fn begin(&mut self, now: Instant, token: RouteToken) {
        if let Some(Asker::Future { due, limit, .. }) = self.open.get_mut(&token.0) {
            let at = now + *limit;
            *due = Some(at);
            self.timers.insert((at, token.0));
        }
    }

    /// When the next request runs out of time.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// The answer for a future; gives its waker.
    fn answer(&mut self, token: u64, with: Result<Route, RouteError>) -> Option<Waker> {
        let Some(Asker::Future { answer, waker, due, .. }) = self.open.get_mut(&token) else { return None };
        if let Some(at) = due.take() {
            self.timers.remove(&(at, token));
        }
        answer.get_or_insert(with);
        waker.take()
    }
}

impl State {
    /// Asks for a route on behalf of the connection manager, which hears of the answer in `cm_route_resolved`.
    pub(crate) fn resolve_for_cm(
        &mut self,
        dst: IpAddr,
        scope_id: u32,
        src: Option<IpAddr>,
    ) -> Result<RouteToken, RouteError> {
        self.ask_route(Asker::Cm, dst, scope_id, src)
    }

    fn ask_route(
        &mut self,
        asker: Asker,
        dst: IpAddr,
        scope_id: u32,
        src: Option<IpAddr>,
    ) -> Result<RouteToken, RouteError> {
        if self.routes.open.len() >= MAX_PENDING_ROUTES {
            return Err(RouteError::TooMany);
        }
        if matches!(dst, IpAddr::V6(v6) if v6.is_unicast_link_local()) && scope_id == 0 {
            return Err(RouteError::NoScope);
        }
        if src.is_some_and(|src| !self.is_our_address(src)) {
            return Err(RouteError::NotOurSource);
        }
        if !self.config.gids.iter().any(|gid| gid.ip.is_ipv4() == dst.is_ipv4()) {
            return Err(RouteError::Family);
        }
        self.routes.next += 1;
        let token = RouteToken(self.routes.next);
        self.routes.open.insert(token.0, asker);
        self.command(Command::ResolveRoute { token, dst, scope_id, src });
        Ok(token)
    }

    /// The driver's answer.
    pub(crate) fn route_resolved(
        &mut self,
        now: Instant,
        token: RouteToken,
        answer: Result<Route, RouteError>,
    ) {
        let answer = match answer {
            Ok(route) if !self.is_our_address(route.src) => Err(RouteError::NotOurSource),
            answer => answer,
        };
        match self.routes.open.get_mut(&token.0) {
            None => {}
            Some(Asker::Cm) => {
                self.routes.open.remove(&token.0);
                self.cm_route_resolved(now, token, answer);
            }
            Some(Asker::Future { .. }) => {
                let waker = self.routes.answer(token.0, answer);
                self.core.wakes.extend(waker);
            }
        }
    }

    /// The driver has taken a request for a route.
    pub(crate) fn route_asked(&mut self, token: RouteToken) {
        if let Some(now) = self.now {
            self.routes.begin(now, token);
        }
    }

    /// Requests whose time is over are answered here.
    pub(crate) fn expire_routes(&mut self, now: Instant) {
        while let Some(&(at, token)) = self.routes.timers.first()
            && at <= now
        {
            let waker = self.routes.answer(token, Err(RouteError::NoAnswer));
            self.core.wakes.extend(waker);
        }
    }
}

/// Waits for a route. Dropped early, it withdraws the request.
pub(crate) struct Resolving {
    device: Device,
    token: Result<RouteToken, RouteError>,
}

impl Device {
    /// Asks for a route; the driver may take `limit` to answer, and never longer than [`ROUTE_TIMEOUT`].
    pub(crate) fn resolve(
        &self,
        dst: IpAddr,
        scope_id: u32,
        src: Option<IpAddr>,
        limit: Option<Duration>,
    ) -> Resolving {
        let limit = limit.map_or(ROUTE_TIMEOUT, |limit| limit.min(ROUTE_TIMEOUT));
        let asker = Asker::Future { answer: None, waker: None, limit, due: None };
        let token = self.lock().ask_route(asker, dst, scope_id, src);
        Resolving { device: self.clone(), token }
    }
}

impl Future for Resolving {
    type Output = Result<Route, RouteError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let token = match self.token {
            Ok(token) => token,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let mut state = self.device.lock();
        match state.routes.open.get_mut(&token.0) {
            Some(Asker::Future { answer: Some(answer), .. }) => {
                let answer = *answer;
                state.routes.open.remove(&token.0);
                Poll::Ready(answer)
            }
            Some(Asker::Future { waker, .. }) => {
                let replaced = waker.replace(cx.waker().clone());
                state.discard(replaced);
                Poll::Pending
            }
            _ => Poll::Pending, // polled again after it was ready
        }
    }
}

impl Drop for Resolving {
    fn drop(&mut self) {
        if let Ok(token) = self.token {
            self.device.lock().withdraw_route(token);
        }
    }
}
