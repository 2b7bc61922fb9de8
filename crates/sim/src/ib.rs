//! The InfiniBand side of a world: two switches, a port for every InfiniBand host, and a subnet manager with a port of its own;
//! or a fat tree over the two; or two subnets, each a switch and a manager, with a router between them.
//!
//! Hosts sit on the switches in turn, so that packets of neighbours cross both. A port that has no room keeps its host's
//! packets waiting, and nothing is ever lost for want of a buffer; killing a host leaves its port in the subnet, as when a
//! machine's processes die. What a device is told of its port comes from the port's agent, as the subnet manager set it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use everywire_fabric::ib::subnet_manager::{HostedSm, Partition, Sm, SmConfig};
use everywire_fabric::ib::{
    Event, HcaConfig, IbPort as Values, LinkId, LinkParams, NodeId, PortId, RouterConfig, Subnet,
    SubnetOptions, SwitchConfig, Violation,
};
use everywire_verbs::{Gid, Guid, IbPort};
use everywire_wire::smp::codes::port_state;

use crate::world::HostId;

/// Ports of each switch.
const SWITCH_PORTS: u8 = 36;
/// Links between the two switches.
pub(crate) const TRUNKS: u8 = 2;
/// Node GUID of the first host's adapter; the others' follow.
const FIRST_GUID: u64 = 0x0002_c903_0000_1000;
/// From one GUID to the next.
const GUID_STEP: u64 = 0x10;
/// The subnet manager looks round when it is told that something changed, and besides so seldom that a world can be idle.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);
/// GID prefixes of two subnets: site-local, since link-local GIDs do not cross routers (IBTA §4.1.1).
const ROUTED_PREFIXES: [u64; 2] = [0xfec0_0000_0000_0001, 0xfec0_0000_0000_0002];
/// Why building cannot fail.
const MADE: &str = "an empty subnet has room for switches, managers and a router";

/// What an InfiniBand subnet is like; the default is two switches with two links between them.
#[derive(Debug, Clone, Default)]
pub struct IbShape {
    /// Two subnets with a router between them, rather than one.
    pub routed: bool,
    /// Switches above the two, each with a link to both, instead of links between the two; at most [`MAX_SPINES`]. Not with
    /// `routed`.
    pub spines: u8,
    /// Each host's port gets 2^LMC LIDs.
    pub lmc: u8,
    /// Service level of the default partition.
    pub sl: u8,
    /// Partitions besides the default one.
    pub partitions: Vec<Partition>,
}

/// Spines of a fat tree.
pub const MAX_SPINES: u8 = 8;

/// A host's port.
#[derive(Debug)]
struct Attached {
    host: HostId,
    port: PortId,
    link: LinkId,
    /// The switch that it is at, and with two subnets the subnet.
    side: usize,
    /// Packets that the port had no room for.
    waiting: VecDeque<Vec<u8>>,
}

/// What a host hears.
pub(crate) enum News {
    /// A packet, LRH to VCRC.
    Packet(HostId, Vec<u8>),
    /// New values of its port.
    Port(HostId, IbPort),
    /// Its port has room again.
    Room(HostId),
}

/// The subnet.
pub(crate) struct IbFabric {
    pub subnet: Subnet,
    managers: Vec<HostedSm>,
    shape: IbShape,
    /// One subnet, or one for each switch.
    prefixes: [u64; 2],
    switches: [NodeId; 2],
    used: [u8; 2],
    trunks: Vec<LinkId>,
    attached: Vec<Attached>,
}

impl IbFabric {
    /// A subnet without hosts, or two and a router, whose managers begin to work at `now`.
    pub fn new(now: Instant, seed: u64, shape: IbShape) -> IbFabric {
        let (routed, spines) = (shape.routed, shape.spines.min(MAX_SPINES));
        let options = SubnetOptions { audit: true, ..SubnetOptions::default() };
        let mut subnet = Subnet::new(now, seed, options);
        let mut switch = |n: u64| {
            let config = SwitchConfig::new(Guid(FIRST_GUID - (n + 1) * GUID_STEP), SWITCH_PORTS, "switch");
            subnet.add_switch(config).expect(MADE)
        };
        let switches = [switch(0), switch(1)];
        let mut fabric = IbFabric {
            subnet,
            managers: Vec::new(),
            shape,
            prefixes: if routed { ROUTED_PREFIXES } else { [Gid::DEFAULT_PREFIX; 2] },
            switches,
            used: [TRUNKS.max(spines) + 1, TRUNKS.max(spines)],
            trunks: Vec::new(),
            attached: Vec::new(),
        };
        if routed {
            let guid = Guid(FIRST_GUID - 6 * GUID_STEP);
            let router = fabric.subnet.add_router(RouterConfig::new(guid, 2, "router")).expect(MADE);
            for (number, switch) in (1..).zip(switches) {
                let ends = [PortId { node: router, port: number }, PortId { node: switch, port: 1 }];
                fabric.subnet.connect(ends[0], ends[1], LinkParams::DEFAULT).expect(MADE);
            }
            fabric.used[1] += 1;
            fabric.seat_manager(now, seed ^ 1, 1);
        } else if spines > 0 {
            fabric.add_spines(spines);
        } else {
            for port in 1..=TRUNKS {
                let [a, b] = switches.map(|node| PortId { node, port });
                let trunk = fabric.subnet.connect(a, b, LinkParams::DEFAULT).expect(MADE);
                fabric.trunks.push(trunk);
            }
        }
        fabric.seat_manager(now, seed, 0);
        fabric
    }

    /// Spines, after the two switches in the order of nodes: port n of either switch leads to the n-th, which has a port for
    /// each.
    fn add_spines(&mut self, spines: u8) {
        for number in 1..=spines {
            let guid = Guid(FIRST_GUID - (6 + u64::from(number)) * GUID_STEP);
            let spine = self.subnet.add_switch(SwitchConfig::new(guid, 2, "spine")).expect(MADE);
            for (port, switch) in (1..).zip(self.switches) {
                let ends = [PortId { node: spine, port }, PortId { node: switch, port: number }];
                let trunk = self.subnet.connect(ends[0], ends[1], LinkParams::DEFAULT).expect(MADE);
                self.trunks.push(trunk);
            }
        }
    }

    /// A manager at a port of its own, after the links between switches.
    fn seat_manager(&mut self, now: Instant, seed: u64, side: usize) {
        let guid = Guid(FIRST_GUID - (3 + side as u64) * GUID_STEP);
        let node = self.subnet.add_hca(HcaConfig::new(guid, "manager")).expect(MADE);
        let port = PortId { node, port: 1 };
        let at = PortId { node: self.switches[side], port: TRUNKS.max(self.shape.spines) + 1 };
        self.subnet.connect(port, at, LinkParams::DEFAULT).expect(MADE);
        let default = Partition { sl: self.shape.sl, ..Partition::default_for_all() };
        let config = SmConfig {
            sweep_interval: SWEEP_INTERVAL,
            gid_prefix: self.prefixes[side],
            lmc: self.shape.lmc,
            partitions: std::iter::once(default).chain(self.shape.partitions.iter().cloned()).collect(),
            ..SmConfig::new(Guid(guid.0 + 1))
        };
        self.managers.push(HostedSm::start(now, Sm::new(config, seed), port, &mut self.subnet));
    }

    /// GUID of the port that a host gets.
    pub fn port_guid(host: HostId) -> Guid {
        Guid(FIRST_GUID + host.0 as u64 * GUID_STEP + 1)
    }

    /// Gives a host a port.
    ///
    /// # Panics
    /// When the switches are full.
    pub fn attach(&mut self, host: HostId, name: &str) {
        let side = self.attached.len() % 2;
        self.used[side] += 1;
        assert!(self.used[side] <= SWITCH_PORTS, "the switches have no port for another host");
        let guid = Guid(IbFabric::port_guid(host).0 - 1);
        let made = "the GUID is new and the ports are free";
        let node = self.subnet.add_hca(HcaConfig::new(guid, name)).expect(made);
        let port = PortId { node, port: 1 };
        let at = PortId { node: self.switches[side], port: self.used[side] };
        let link = self.subnet.connect(port, at, LinkParams::DEFAULT).expect(made);
        self.attached.push(Attached { host, port, link, side, waiting: VecDeque::new() });
    }

    fn of_host(&mut self, host: HostId) -> Option<&mut Attached> {
        self.attached.iter_mut().find(|attached| attached.host == host)
    }

    fn of_port(&self, port: PortId) -> Option<HostId> {
        self.attached.iter().find(|attached| attached.port == port).map(|attached| attached.host)
    }

    /// What a host's port has been told so far.
    pub fn values(&mut self, host: HostId) -> Option<IbPort> {
        let port = self.of_host(host)?.port;
        self.subnet.port_values(port).map(|values| told(&values))
    }

    /// The GID of the host that has an IP address.
    pub fn gid_of(&self, host: HostId) -> Gid {
        let side = self.attached.iter().find(|attached| attached.host == host).map_or(0, |of| of.side);
        let gid = u128::from(self.prefixes[side]) << 64 | u128::from(IbFabric::port_guid(host).0);
        Gid(gid.to_be_bytes())
    }

    /// Pulls a host's cable, or plugs it in again.
    pub fn set_cut(&mut self, now: Instant, host: HostId, cut: bool) {
        let Some(link) = self.of_host(host).map(|attached| attached.link) else { return };
        self.set_link_cut(now, link, cut);
    }

    /// The same of a cable between the switches.
    pub fn set_trunk_cut(&mut self, now: Instant, trunk: u8, cut: bool) {
        if let Some(&link) = self.trunks.get(usize::from(trunk)) {
            self.set_link_cut(now, link, cut);
        }
    }

    fn set_link_cut(&mut self, now: Instant, link: LinkId, cut: bool) {
        let changed = if cut { self.subnet.link_down(now, link) } else { self.subnet.link_up(now, link) };
        debug_assert!(changed.is_ok(), "the link was made with the subnet or a port");
    }

    /// A host's device has dropped a packet for its key.
    pub fn report(&mut self, now: Instant, host: HostId, is_qkey: bool, head: &[u8]) {
        let port = self.of_host(host).map(|attached| attached.port);
        if let (Some(port), Ok(violation)) = (port, Violation::of_dropped(is_qkey, head)) {
            self.subnet.report_violation(now, port, &violation);
        }
    }

    /// A host died: what it had not sent yet is gone.
    pub fn forget(&mut self, host: HostId) {
        if let Some(attached) = self.of_host(host) {
            attached.waiting.clear();
        }
    }

    /// Whether a host's port takes packets now.
    pub fn has_room(&mut self, host: HostId) -> bool {
        self.of_host(host).is_some_and(|attached| attached.waiting.is_empty())
    }

    /// Sends a packet of a host, or keeps it until there is room.
    pub fn send(&mut self, now: Instant, host: HostId, packet: Vec<u8>) {
        if let Some(attached) = self.of_host(host) {
            attached.waiting.push_back(packet);
        }
        self.flush(now, host);
    }

    fn flush(&mut self, now: Instant, host: HostId) {
        let Some(index) = self.attached.iter().position(|attached| attached.host == host) else { return };
        while let Some(packet) = self.attached[index].waiting.pop_front() {
            let port = self.attached[index].port;
            let Err(refused) = self.subnet.send(now, port, packet) else { continue };
            if matches!(refused.reason, everywire_fabric::ib::Refusal::Full(_)) {
                self.attached[index].waiting.push_front(refused.packet.to_vec());
                break;
            }
            // Nothing else is worth keeping: a port that is down, or a lane that does not exist.
        }
    }

    /// The next thing that a host hears.
    pub fn poll(&mut self, now: Instant) -> Option<News> {
        self.managers.iter_mut().for_each(|manager| manager.drive(now, &mut self.subnet));
        while let Some(event) = self.subnet.poll(now) {
            let taken = self.managers.iter_mut().any(|manager| manager.handle_event(now, &event));
            self.managers.iter_mut().for_each(|manager| manager.drive(now, &mut self.subnet));
            if taken {
                continue;
            }
            match event {
                Event::Deliver { port, packet, .. } => {
                    if let Some(host) = self.of_port(port) {
                        return Some(News::Packet(host, packet.to_vec()));
                    }
                }
                Event::PortChanged { port, values } => {
                    if let Some(host) = self.of_port(port) {
                        return Some(News::Port(host, told(&values)));
                    }
                }
                Event::Room { port, .. } => {
                    if let Some(host) = self.of_port(port) {
                        self.flush(now, host);
                        return Some(News::Room(host));
                    }
                }
                Event::Smp { .. } => {}
            }
        }
        None
    }

    /// When to call [`IbFabric::poll`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let managers = self.managers.iter().filter_map(HostedSm::poll_timeout);
        self.subnet.poll_timeout().into_iter().chain(managers).min()
    }

    /// The host that an address belongs to, by what hosts say of themselves.
    pub fn resolve(&self, ip: IpAddr, names: &[(HostId, Vec<IpAddr>)]) -> Option<Gid> {
        let host = names.iter().find(|(_, ips)| ips.contains(&ip))?.0;
        self.attached.iter().any(|attached| attached.host == host).then(|| self.gid_of(host))
    }
}

/// A port's values as its device is told them.
fn told(values: &Values) -> IbPort {
    IbPort {
        active: values.state == port_state::ACTIVE,
        unplugged: values.state == port_state::DOWN,
        lid: values.lid,
        lmc: values.lmc,
        sm_lid: values.sm_lid,
        sm_sl: values.sm_sl,
        gid_prefix: values.gid_prefix,
        pkeys: values.pkeys.clone(),
        mtu: values.mtu,
        client_reregister: values.client_reregister,
    }
}
