//! Asking the driver for routes: which source address, interface and MTU lead to a destination.
//!
//! A request is a command for the driver and a token; the answer wakes the future that waits for it, or goes to the
//! connection manager. A future dropped early withdraws its request, and a late answer finds nothing.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::task::Waker;
use std::time::{Duration, Instant};

use everywire_transport::ib::PathLink;
use everywire_wire::{Gid, Mtu};

use crate::command::Command;
use crate::config::{GidType, PortState};
use crate::ib_group::mgid_of;
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

/// The InfiniBand port that has an IP address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Neighbour {
    /// Its GID.
    pub gid: Gid,
    /// The port in words, for errors, where the driver knows it by a name.
    pub port: Option<String>,
}

impl From<Gid> for Neighbour {
    fn from(gid: Gid) -> Neighbour {
        Neighbour { gid, port: None }
    }
}

/// A way to a destination, ready to become a path: what the driver's route comes to on the wire at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// Our address, or our GID.
    pub(crate) src: IpAddr,
    /// The destination's address, or its GID.
    pub(crate) dst: IpAddr,
    /// Interface index where the destination is link-local; 0 otherwise.
    pub(crate) scope_id: u32,
    /// The largest path MTU.
    pub(crate) mtu: Mtu,
    /// What packets have before their BTH.
    pub(crate) link: PathLink,
    /// How long a packet lives on it, 4.096 µs · 2^n, where the subnet administrator has said so.
    pub(crate) life_time: Option<u8>,
}

/// Why there is no route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
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
    /// RoCE v1 stays in its broadcast domain (IBTA annex A16).
    #[error("RoCE v1 crosses no router, and the way leads through {0}: the peer cannot be reached")]
    Router(IpAddr),
    /// The InfiniBand port is not active.
    #[error("the port is not active: no subnet manager has brought it up")]
    PortDown,
    /// The InfiniBand port, which is named, has no link.
    #[error("port {0} has no link: its cable is pulled, or the other end is off")]
    NoLink(String),
    /// More path bits than the port has LIDs for (IBTA §4.1.3).
    #[error("path bits {asked}: the port has LMC {lmc}, that is path bits 0 to {}", (1u16 << lmc) - 1)]
    PathBits {
        /// Asked for.
        asked: u8,
        /// The port's.
        lmc: u8,
    },
    /// Path bits on a wire without LIDs.
    #[error("path bits choose among an InfiniBand port's LIDs, and this wire has none")]
    NoPathBits,
    /// No path begins at our LID with these path bits.
    #[error("the subnet administrator names no path from our LID with path bits {0}")]
    NoSuchPath(u8),
    /// The InfiniBand port is gone: the driver has none any more.
    #[error("the port is gone")]
    PortLost,
    /// No program is at the port that has this address: which port, in words.
    #[error("no program is attached to {0}")]
    NoProgram(String),
    /// The subnet administrator, which the subnet manager has with it, did not answer.
    #[error("the subnet manager does not answer")]
    NoAdministrator,
    /// The subnet administrator has no path to this GID (IBTA §15.2.3.1: no records, or an invalid GID, with this status).
    #[error(
        "no path in this subnet to {} with GID {to}: it is not up, or no cable leads there, says the subnet administrator \
         (status {status:#06x})",
        port.as_deref().unwrap_or("the port")
    )]
    NoPath {
        /// The peer's.
        to: Gid,
        /// The port in words, where the driver knows it by a name.
        port: Option<String>,
        /// What it said.
        status: u16,
    },
    /// There is no group to send to: nobody in the subnet has joined it (IBTA §15.2.5.17: who only sends makes none).
    #[error("the group has no member in this subnet")]
    NoMember,
    /// The subnet administrator refused, with this status (IBTA §15.2.3.1).
    #[error("the subnet administrator refused with status {0:#06x}")]
    Administrator(u16),
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

impl RouteError {
    /// Whether the request itself is wrong, on this device: no time and no peer can help it.
    pub fn is_wrong_request(&self) -> bool {
        matches!(
            self,
            RouteError::NoScope
                | RouteError::NotOurSource
                | RouteError::Family
                | RouteError::PathBits { .. }
                | RouteError::NoPathBits
        )
    }
}

/// A request for a route.
pub(crate) struct Asked {
    pub(crate) asker: Asker,
    pub(crate) dst: IpAddr,
    /// The type of GID to go out from; the first of the route's source otherwise.
    pub(crate) gid_type: Option<GidType>,
    /// Which of our LIDs to go out from, on InfiniBand.
    pub(crate) path_bits: u8,
    /// What the driver calls the InfiniBand port, once it has said.
    pub(crate) port: Option<String>,
}

/// Who asked.
pub(crate) enum Asker {
    /// A [`Resolving`].
    Future {
        answer: Option<Result<Way, RouteError>>,
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
    pub(crate) open: HashMap<u64, Asked>,
    timers: BTreeSet<(Instant, u64)>,
}

impl Routes {
    /// Forgets a request; its waker, if any, is to be dropped without the lock.
    pub(crate) fn withdraw(&mut self, token: RouteToken) -> Option<Waker> {
        match self.open.remove(&token.0).map(|asked| asked.asker) {
            Some(Asker::Future { waker, due, .. }) => {
                due.map(|at| self.timers.remove(&(at, token.0)));
                waker
            }
            _ => None,
        }
    }

    pub(crate) fn asker(&mut self, token: u64) -> Option<&mut Asker> {
        self.open.get_mut(&token).map(|asked| &mut asked.asker)
    }

    /// The driver has taken the request: its time begins.
    fn begin(&mut self, now: Instant, token: RouteToken) {
        if let Some(Asker::Future { due, limit, .. }) = self.asker(token.0) {
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
    fn answer(&mut self, token: u64, with: Result<Way, RouteError>) -> Option<Waker> {
        let Some(Asker::Future { answer, waker, due, .. }) =
            self.open.get_mut(&token).map(|asked| &mut asked.asker)
        else {
            return None;
        };
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
        path_bits: Option<u8>,
    ) -> Result<RouteToken, RouteError> {
        let path_bits = self.path_bits(path_bits)?;
        self.ask_route(Asked { asker: Asker::Cm, dst, gid_type: None, path_bits, port: None }, scope_id, src)
    }

    pub(crate) fn ask_route(
        &mut self,
        asked: Asked,
        scope_id: u32,
        src: Option<IpAddr>,
    ) -> Result<RouteToken, RouteError> {
        let dst = asked.dst;
        if self.routes.open.len() >= MAX_PENDING_ROUTES {
            return Err(RouteError::TooMany);
        }
        if self.ib.is_some() {
            return self.ask_ib_way(asked, src);
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
        self.routes.open.insert(token.0, asked);
        self.command(Command::ResolveRoute { token, dst, scope_id, src });
        Ok(token)
    }

    fn ask_ib_way(&mut self, asked: Asked, src: Option<IpAddr>) -> Result<RouteToken, RouteError> {
        if src.is_some_and(|src| !self.is_our_address(src)) {
            return Err(RouteError::NotOurSource);
        }
        if self.port != PortState::Active {
            let unplugged = self.ib.as_ref().is_some_and(|ib| ib.port.unplugged);
            return Err(match unplugged {
                true => RouteError::NoLink(self.config.name.clone()),
                false => RouteError::PortDown,
            });
        }
        self.routes.next += 1;
        let (token, dst) = (RouteToken(self.routes.next), asked.dst);
        self.routes.open.insert(token.0, asked);
        match dst.is_multicast() {
            true => self.ib_find_group(token, mgid_of(dst)),
            false => self.ib_find_way(token, dst),
        }
        Ok(token)
    }

    /// The driver's answer.
    pub(crate) fn route_resolved(
        &mut self,
        now: Instant,
        token: RouteToken,
        answer: Result<Route, RouteError>,
    ) {
        let Some(asked) = self.routes.open.get(&token.0) else { return };
        let (dst, gid_type) = (asked.dst, asked.gid_type);
        let answer = answer.and_then(|route| self.way(dst, &route, gid_type));
        self.way_found(now, token, answer);
    }

    /// A request has its answer.
    pub(crate) fn way_found(&mut self, now: Instant, token: RouteToken, answer: Result<Way, RouteError>) {
        match self.routes.asker(token.0) {
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

    /// What a driver's route comes to: frames by the type of the GID it leaves from.
    pub(crate) fn way(
        &self,
        dst: IpAddr,
        route: &Route,
        gid_type: Option<GidType>,
    ) -> Result<Way, RouteError> {
        let mut gids = self.config.gids.iter().filter(|gid| gid.ip == route.src);
        let gid = gids.find(|gid| gid_type.is_none_or(|ty| ty == gid.ty));
        let link = match gid.ok_or(RouteError::NotOurSource)?.ty {
            GidType::RoceV1 => PathLink::Grh,
            GidType::RoceV2 | GidType::Ib => PathLink::Udp,
        };
        let mtu = Mtu::largest_in(route.mtu).ok_or(RouteError::MtuTooSmall(route.mtu))?;
        Ok(Way { src: route.src, dst, scope_id: route.scope_id, mtu, link, life_time: None })
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
            let error = self.ib_silence(RouteToken(token));
            let waker = self.routes.answer(token, Err(error));
            self.core.wakes.extend(waker);
        }
    }
}
