//! What the network says of paths and of the interface, in the device's words: routes, unreachable peers, narrow paths, the
//! state of the port.

use std::net::IpAddr;
use std::time::Instant;

use everywire_verbs::{Device, Drive, PortState, Route, RouteError, Unreachable, Wire};

use crate::link::Link;
use crate::rarely::Rarely;
use crate::raw;
use crate::route;
use crate::udp::PathEvent;

/// Tells the device how its interface is.
pub(super) fn tell_port_state(device: &Device, link: &Link) {
    let state = if link.is_running() { PortState::Active } else { PortState::Down };
    device.drive().port_state(Instant::now(), state);
}

/// Warns of paths that have become too narrow, but not of every packet.
#[derive(Debug)]
pub(super) struct NarrowPaths {
    pub(super) local: IpAddr,
    pub(super) warned: Rarely,
}

impl NarrowPaths {
    fn warn(&mut self, now: Instant, dst: IpAddr, mtu: usize) {
        if self.warned.note(now, 1).is_none() {
            return;
        }
        tracing::warn!(
            local = %self.local, %dst, mtu,
            "the path takes smaller packets than its connections have agreed on, which will fail; connect anew, or open \
             the device with a smaller MTU"
        );
    }
}

pub(super) fn path_event(drive: &mut Drive<'_>, now: Instant, event: &PathEvent, narrow: &mut NarrowPaths) {
    match event {
        PathEvent::Mtu { dst, mtu } => {
            narrow.warn(now, *dst, *mtu);
            drive.unreachable(now, *dst, Unreachable::TooBig(*mtu));
        }
        PathEvent::Unreachable { dst, errno, why } => {
            tracing::debug!(%dst, why, "unreachable");
            let what = match *errno {
                libc::ECONNREFUSED => Unreachable::Port,
                libc::ENETUNREACH => Unreachable::Network,
                libc::EACCES | libc::EPERM => Unreachable::Prohibited,
                _ => Unreachable::Host,
            };
            drive.unreachable(now, *dst, what);
        }
    }
}

/// The way of a device to `dst`: of RoCE v1 only where it leads through no router.
pub(super) fn resolve_for(
    device: &Device,
    dst: IpAddr,
    src: IpAddr,
    scope_id: u32,
) -> Result<Route, RouteError> {
    let route = resolve(dst, src, scope_id)?;
    match device.wire() {
        Wire::RoceV1 if !dst.is_multicast() => {
            raw::router_to(dst).map_or(Ok(route), |ip| Err(RouteError::Router(ip)))
        }
        _ => Ok(route),
    }
}

pub(super) fn resolve(dst: IpAddr, src: IpAddr, scope_id: u32) -> Result<Route, RouteError> {
    match route::resolve(dst, Some(src), scope_id) {
        Ok(path) => Ok(Route { src: path.src, scope_id: path.scope_id, mtu: path.mtu }),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => RouteError::NoRoute,
            Some(libc::EADDRNOTAVAIL) => RouteError::NotOurSource,
            errno => RouteError::System(errno.unwrap_or(0)),
        }),
    }
}
