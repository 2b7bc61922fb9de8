//! Routers: packets with a GRH from one subnet into another.
//!
//! Read IBTA chapter 19 (routers), §8.2.1 and §8.3 (GRH) first. A packet for a router's LID whose destination GID is not the port's
//! own goes out by the port whose subnet has the GID's prefix, or by a configured way to another router; it gets a new LRH
//! and VCRC and one hop less, and keeps its ICRC. LIDs come from the administrator of the next subnet ([`resolve`]). Multicast
//! stays in its subnet here, and partitions are the two ends' own affair.

mod resolve;

use everywire_wire::grh::NEXT_HEADER_IBA;
use everywire_wire::smp::codes::port_state;
use everywire_wire::{Gid, Lid};

use super::config::{NodeId, PrefixRoute};
use super::port::VL15;
use super::subnet::Subnet;
use crate::clock::SimTime;
use resolve::Ways;

/// IP version in a GRH (IBTA §8.3).
const GRH_VERSION: u8 = 6;

/// What a router has counted since it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouterCounters {
    /// Packets that went into another subnet.
    pub forwarded: u64,
    /// Dropped: the hop limit was 0 or 1.
    pub hop_limit: u64,
    /// Dropped: no GRH, so that nobody knows where they would go beyond the subnet.
    pub no_grh: u64,
    /// Dropped: a GRH of another IP version or next header.
    pub malformed: u64,
    /// Dropped: link-local GIDs and multicast do not leave their subnet.
    pub not_to_leave: u64,
    /// Dropped: no port, or no router that is known, leads to the destination's prefix.
    pub no_route: u64,
    /// Dropped: the next subnet's administrator knows no such port, or does not answer.
    pub unresolved: u64,
    /// Dropped: the way out is down, its MTU too small, or its service level without a lane.
    pub no_way_out: u64,
    /// Dropped: too many wait for an administrator.
    pub too_many: u64,
}

/// What a router has beside its ports.
#[derive(Debug)]
pub(super) struct Router {
    latency_ns: u64,
    routes: Vec<PrefixRoute>,
    ways: Ways,
    counters: RouterCounters,
}

/// Where a packet goes in the next subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    dlid: Lid,
    sl: u8,
}

impl Router {
    pub fn new(latency_ns: u64, routes: Vec<PrefixRoute>) -> Router {
        Router { latency_ns, routes, ways: Ways::default(), counters: RouterCounters::default() }
    }

    /// The power was off: what was known is gone, and so is what waited.
    pub fn forget(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ways).waiting()
    }
}

impl Subnet {
    /// What a router has counted; `None` for other nodes.
    pub fn router_counters(&self, node: NodeId) -> Option<RouterCounters> {
        Some(self.nodes.get(node.0 as usize)?.router()?.counters)
    }

    fn router_at(&mut self, port: u32) -> Option<&mut Router> {
        let node = self.ports[port as usize].node;
        self.nodes[node as usize].router_mut()
    }

    /// A packet with a GRH that was sent to a router's LID.
    pub(super) fn route_packet(&mut self, now: SimTime, input: u32, id: u32) {
        let Some(grh) = self.packets.get(id).grh() else {
            return self.drop_routed(now, input, id, |c| &mut c.malformed);
        };
        if self.is_gid_of(input, grh.dgid) {
            return self.receive_own(now, input, id);
        }
        if grh.ip_version != GRH_VERSION || grh.next_header != NEXT_HEADER_IBA {
            return self.drop_routed(now, input, id, |c| &mut c.malformed);
        }
        if grh.dgid.is_multicast() || grh.dgid.is_link_local() || grh.sgid.is_link_local() {
            return self.drop_routed(now, input, id, |c| &mut c.not_to_leave);
        }
        // IBTA §8.3.7: a router lowers it, and passes nothing on that has no hop left.
        if grh.hop_limit <= 1 {
            return self.drop_routed(now, input, id, |c| &mut c.hop_limit);
        }
        let Some((out, next)) = self.next_hop(input, grh.dgid) else {
            return self.drop_routed(now, input, id, |c| &mut c.no_route);
        };
        match self.known_way(now, out, next) {
            Some(way) => self.send_routed(now, input, out, id, way),
            None => self.await_way(now, out, next, id),
        }
    }

    /// A packet for a router's own port that none of its agents has taken.
    pub(super) fn receive_at_router(&mut self, now: SimTime, input: u32, id: u32) {
        if self.take_way(now, input, id) {
            return self.discard(now, id);
        }
        self.drop_routed(now, input, id, |c| &mut c.no_grh);
    }

    fn drop_routed(
        &mut self,
        now: SimTime,
        port: u32,
        id: u32,
        counter: impl FnOnce(&mut RouterCounters) -> &mut u64,
    ) {
        if let Some(router) = self.router_at(port) {
            *counter(&mut router.counters) += 1;
        }
        self.discard(now, id);
    }

    /// Whether a GID is a port's own, by its subnet's prefix or the link-local one.
    fn is_gid_of(&self, port: u32, gid: Gid) -> bool {
        let port = &self.ports[port as usize];
        let own_prefix = gid.subnet_prefix() == port.info.gid_prefix || gid.is_link_local();
        own_prefix && port.guids.iter().any(|guid| guid.0 != 0 && *guid == gid.interface_id())
    }

    /// The port by which a GID is reached, and the GID to go to in that port's subnet.
    fn next_hop(&self, input: u32, dgid: Gid) -> Option<(u32, Gid)> {
        let (node, prefix) = (self.node_of(input), dgid.subnet_prefix());
        let direct = node.numbers().map(|number| node.port(number)).find(|&port| {
            let port = &self.ports[port as usize];
            port.info.gid_prefix == prefix && port.info.lid.0 != 0
        });
        let by_router = || {
            let route = node.router()?.routes.iter().find(|route| route.prefix == prefix)?;
            Some((node.port(route.port), route.next))
        };
        // Back into the subnet that it came from would be a circle.
        direct.map(|port| (port, dgid)).or_else(by_router).filter(|(port, _)| *port != input)
    }

    /// Gives a packet its new headers and queues it at the way out; it leaves its input buffer when its last bit has left.
    fn send_routed(&mut self, now: SimTime, input: u32, out: u32, id: u32, way: Way) {
        let port = &self.ports[out as usize];
        let vl = port.lane(0, way.sl);
        let (slid, longest) = (port.info.lid, port.longest);
        let packet = self.packets.get_mut(id);
        let fits = packet.len() <= longest && vl != VL15 && port.lanes & 1 << vl != 0;
        let hops_left = packet.grh().map_or(0, |grh| grh.hop_limit).saturating_sub(1);
        if port.state != port_state::ACTIVE || !fits || hops_left == 0 {
            return self.drop_routed(now, input, id, |c| &mut c.no_way_out);
        }
        packet.reroute(slid, way.dlid, way.sl, hops_left);
        packet.set_vl(vl);
        packet.hops = packet.hops.saturating_add(1);
        let latency = self.router_at(input).map_or(0, |router| {
            router.counters.forwarded += 1;
            router.latency_ns
        });
        let packet = self.packets.get_mut(id);
        packet.ready_at = SimTime::from_nanos(now.as_nanos() + latency);
        self.forwarded += 1;
        self.enqueue(now, out, vl, id);
        self.transmit(now, out);
    }
}
