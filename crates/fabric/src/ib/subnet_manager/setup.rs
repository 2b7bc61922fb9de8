//! Making it so: from what is there and what should be, the writes that are still missing.
//!
//! Read IBTA §14.4.3 (what a master configures) and §14.2.5 (the attributes) first. Every node has a [`Shadow`] of what was
//! written to it, so that a sweep after a small change writes little; a node or port that was reset loses it. Attributes and
//! tables come first, then all links go to ARMED, then all to ACTIVE.

use std::collections::BTreeMap;
use std::time::Instant;

use everywire_wire::smp::codes::{capability, port_state};
use everywire_wire::smp::{MulticastForwardingTable, PKeyTable, PortInfo, Smp, SwitchInfo, attribute};
use everywire_wire::{Guid, Lid, PKey};

use super::inventory::{Map, Port};
use super::requests::{Path, Purpose, Request};
use super::routing::{self, NO_PATH};
use super::sweep::Phase;
use super::{Sm, SmEvent};

/// LIDs of a block of a linear table.
const LFT_BLOCK: usize = 64;
/// LIDs of a block of a multicast table.
const MFT_BLOCK: usize = 32;
/// Keys of a block of a P_Key table.
const PKEY_BLOCK: usize = 32;
/// Ports of a position of a multicast table.
const MFT_PORTS: usize = 16;
/// The first multicast LID.
pub(super) const FIRST_MLID: u16 = 0xc000;
/// HOQLife of switch ports: a second, as OpenSM sets it.
const HOQ_LIFE: u8 = 18;
/// Drops in sequence until a lane counts as stalled.
const VL_STALL_COUNT: u8 = 7;
/// Thresholds of error traps.
const ERROR_THRESHOLD: u8 = 8;
/// LinkDownDefaultState: polling.
const POLLING: u8 = 2;

/// What was written to a node: by port, attribute and modifier.
#[derive(Debug, Clone, Default)]
pub(super) struct Shadow {
    values: BTreeMap<(u8, u16, u32), [u8; 64]>,
}

impl Sm {
    /// Everything that follows from a new inventory.
    pub(super) fn configure(&mut self, now: Instant) {
        self.phase = Phase::Configure;
        self.must_retry = false;
        self.take_over_inventory();
        for guid in super::lids::assign(&self.known, &mut self.lids, self.config.lmc) {
            self.warn(format!("no LID is left for port {guid}"));
        }
        self.map = Map::new(&self.known, &self.lids, self.config.lmc);
        self.route();
        self.forget_what_was_reset();
        self.subnet_changed(now);
        let nodes: Vec<Guid> = self.known.nodes.keys().copied().collect();
        for guid in &nodes {
            self.set_ports(*guid);
        }
        for (index, guid) in self.map.switch_guids.clone().into_iter().enumerate() {
            self.set_linear_table(guid, index);
        }
        self.set_multicast_tables(None);
    }

    fn route(&mut self) {
        let routed = routing::route(&self.map.graph, &self.config.engine);
        (self.tables, self.engine) = (routed.tables, routed.engine);
        for message in routed.messages {
            self.warn(message);
        }
        if let Some(cycle) = routing::credit_loops(&self.map.graph, &self.tables) {
            self.tell(SmEvent::CreditLoop(cycle.to_string()));
        }
    }

    /// A switch without our LID or table top has been reset, and so has a port in INIT.
    fn forget_what_was_reset(&mut self) {
        self.shadows.retain(|guid, _| self.known.nodes.contains_key(guid));
        for (guid, node) in &self.known.nodes {
            let Some(shadow) = self.shadows.get_mut(guid) else { continue };
            let top_is_gone = node.switch.is_some_and(|info| info.linear_fdb_top == 0);
            let lid = |port: &Port| self.lids.get(&port.guid) == Some(&port.info.lid);
            if node.is_switch() && (top_is_gone || !node.ports.first().is_some_and(lid)) {
                shadow.values.clear();
            }
            for (number, port) in node.ports.iter().enumerate() {
                if port.info.port_state <= port_state::INIT && number > 0 {
                    let keys = attribute::SL_TO_VL;
                    let of_port = |(n, a, modifier): &(u8, u16, u32)| {
                        usize::from(*n) == number || *a == keys && (modifier >> 8) as usize == number
                    };
                    shadow.values.retain(|key, _| !of_port(key));
                }
            }
        }
    }

    /// Writes an attribute, unless it was written before.
    pub(super) fn put(
        &mut self,
        node: Guid,
        port: u8,
        path: &Path,
        attribute: u16,
        modifier: u32,
        data: [u8; 64],
    ) {
        let shadow = self.shadows.entry(node).or_default();
        if shadow.values.get(&(port, attribute, modifier)) != Some(&data) {
            self.requests.push(Request::set(path, attribute, modifier, data, Purpose::Set(node, port)));
        }
    }

    /// A write was done.
    pub(super) fn settled(&mut self, request: Request, smp: &Smp) {
        let (node, port) = match request.purpose {
            Purpose::Set(node, port) | Purpose::State(node, port, _) => (node, port),
            _ => return,
        };
        if request.attribute == attribute::PORT_INFO {
            if let (Some(port), Ok(info)) = (self.known.port_mut(node, port), PortInfo::parse(&smp.data)) {
                port.info = PortInfo { client_reregister: false, ..info };
            }
        } else if request.attribute == attribute::SWITCH_INFO {
            if let (Some(node), Ok(info)) = (self.known.nodes.get_mut(&node), SwitchInfo::parse(&smp.data)) {
                node.switch = Some(info);
            }
        } else if let Some(data) = request.data {
            let key = (port, request.attribute, request.modifier);
            self.shadows.entry(node).or_default().values.insert(key, *data);
        }
    }

    fn set_ports(&mut self, guid: Guid) {
        let Some(node) = self.known.nodes.get(&guid) else { return };
        let ports: Vec<(u8, Port)> = (0..).zip(node.ports.iter().cloned()).filter(|(_, p)| p.known).collect();
        let (is_switch, partition_cap) = (node.is_switch(), node.info.partition_cap);
        for (number, port) in &ports {
            let guards = self.guarded_adapter(guid, *number);
            let mut want = self.port_info(node_is(is_switch, *number), port);
            if let Some(want) = want.as_mut().filter(|_| is_switch && *number > 0) {
                want.partition_enforcement_inbound = guards.is_some();
                want.partition_enforcement_outbound = guards.is_some();
            }
            if want.is_some_and(|want| differs(&want, &port.info)) {
                let mut data = [0; 64];
                want.unwrap_or_default().emit(&mut data);
                let purpose = Purpose::Set(guid, *number);
                let modifier = u32::from(*number);
                self.requests.push(Request::set(&port.path, attribute::PORT_INFO, modifier, data, purpose));
            }
            if let Some((adapter, cap)) = guards {
                self.set_pkeys(guid, *number, &port.path, adapter, cap, u32::from(*number) << 16);
            } else if (*number == 0) == is_switch {
                self.set_pkeys(guid, *number, &port.path, port.guid, partition_cap, 0);
            }
        }
        if self.config.qos {
            for (number, port) in ports.iter().filter(|(n, p)| *n > 0 && p.is_linked()) {
                let inputs = ports.iter().filter(|(n, p)| *n == 0 || p.is_linked()).map(|(n, _)| *n);
                let inputs: Vec<u8> = if is_switch { inputs.collect() } else { vec![0] };
                self.set_lanes(guid, *number, port, &inputs);
            }
        }
    }

    /// What a port should have; `None` where nothing is to be set.
    fn port_info(&self, kind: PortKind, port: &Port) -> Option<PortInfo> {
        let mut want = PortInfo {
            port_state: port_state::NO_CHANGE,
            port_physical_state: 0,
            link_down_default_state: POLLING,
            client_reregister: false,
            ..port.info
        };
        if kind.is_end_port {
            let sm_lid = self.lids.get(&self.config.guid).copied().unwrap_or_default();
            want.lid = self.lids.get(&port.guid).copied()?;
            want.lmc = if kind.is_external { self.config.lmc } else { 0 };
            (want.master_sm_lid, want.master_sm_sl) = (sm_lid, 0);
            want.gid_prefix = self.config.gid_prefix;
            (want.m_key, want.m_key_protect_bits) = (self.config.m_key, self.config.m_key_protect);
            want.m_key_lease_period = 0;
            want.subnet_timeout = self.config.subnet_timeout;
            let news = port.info.lid != want.lid || port.info.master_sm_lid != sm_lid;
            let hears = port.info.capability_mask & capability::CLIENT_REREGISTRATION != 0;
            want.client_reregister = hears && (news || self.reregister);
        }
        if kind.is_external && port.is_linked() {
            let peer = port.peer.and_then(|(node, number)| self.known.port(node, number));
            let peer = peer.filter(|peer| peer.known).map_or(&port.info, |peer| &peer.info);
            want.neighbor_mtu = port.info.mtu_cap.min(peer.mtu_cap).max(1);
            want.operational_vls = port.info.vl_cap.min(peer.vl_cap).max(1);
            want.local_phy_errors = ERROR_THRESHOLD;
            want.overrun_errors = ERROR_THRESHOLD;
            if let Some(tables) = &self.config.lanes {
                want.vl_high_limit = tables.high_limit;
            }
            if !kind.is_end_port {
                (want.hoq_life, want.vl_stall_count) = (HOQ_LIFE, VL_STALL_COUNT);
            }
        }
        (kind.is_end_port || port.is_linked()).then_some(want)
    }

    /// The adapter behind a switch's port whose packets the switch is to check, and how many P_Keys it can check by.
    fn guarded_adapter(&self, node: Guid, number: u8) -> Option<(Guid, u16)> {
        let switch = self.known.nodes.get(&node)?.switch?;
        let able = switch.inbound_enforcement_cap && switch.outbound_enforcement_cap;
        let port = self.known.port(node, number).filter(|port| number > 0 && port.is_linked())?;
        let (peer, peer_port) = port.peer?;
        let is_adapter = !self.known.nodes.get(&peer)?.is_switch();
        let guid = self.known.port(peer, peer_port)?.guid;
        let cap = switch.partition_enforcement_cap;
        (self.config.enforce_partitions && able && is_adapter && cap > 0).then_some((guid, cap))
    }

    /// The partitions of an end port, into its own table or that of the switch's port before it.
    fn set_pkeys(&mut self, node: Guid, number: u8, path: &Path, of: Guid, cap: u16, modifier: u32) {
        let mut keys: Vec<PKey> = self.config.partitions.iter().filter_map(|p| p.key_of(of)).collect();
        if modifier != 0 {
            // A switch lets pass what either kind of member sends; who is limited, the adapter sees to.
            keys.iter_mut().for_each(|key| key.0 |= 0x8000);
        }
        if keys.len() > usize::from(cap) {
            self.warn(format!(
                "port {number} of {node} takes {cap} P_Keys; {of} is in {} partitions",
                keys.len()
            ));
        }
        let keys = &keys[..keys.len().min(usize::from(cap))];
        for block in 0..usize::from(cap).div_ceil(PKEY_BLOCK) {
            let modifier = modifier | block as u32;
            let at = (number, attribute::PKEY_TABLE, modifier);
            let mut table = PKeyTable { keys: [PKey(0); PKEY_BLOCK] };
            let here = keys.iter().skip(PKEY_BLOCK * block);
            table.keys.iter_mut().zip(here).for_each(|(entry, key)| *entry = *key);
            let written = self.shadows.get(&node).is_some_and(|shadow| shadow.values.contains_key(&at));
            if block > 0 && keys.len() <= PKEY_BLOCK * block && !written {
                break;
            }
            let mut data = [0; 64];
            table.emit(&mut data);
            self.put(node, number, path, attribute::PKEY_TABLE, modifier, data);
        }
    }

    fn set_linear_table(&mut self, guid: Guid, index: usize) {
        let Some(node) = self.known.nodes.get(&guid) else { return };
        let (path, name) = (node.path.clone(), node.name());
        let Some(info) = node.switch else { return };
        let lft = std::mem::take(&mut self.tables.lfts[index]);
        let top = lft.len().saturating_sub(1) as u16;
        if top >= info.linear_fdb_cap {
            let cap = info.linear_fdb_cap;
            self.warn(format!("switch {name} ({guid}) has {cap} entries, and LID {top} is in use"));
        }
        let want = SwitchInfo {
            linear_fdb_top: top.min(info.linear_fdb_cap.saturating_sub(1)),
            life_time_value: self.config.subnet_timeout,
            ..info
        };
        if want != info || info.port_state_change {
            let mut data = [0; 64];
            want.emit(&mut data);
            self.requests.push(Request::set(&path, attribute::SWITCH_INFO, 0, data, Purpose::Set(guid, 0)));
        }
        for (block, ports) in lft.chunks(LFT_BLOCK).enumerate() {
            if block * LFT_BLOCK >= usize::from(info.linear_fdb_cap) {
                break;
            }
            let mut data = [NO_PATH; LFT_BLOCK];
            data[..ports.len()].copy_from_slice(ports);
            self.put(guid, 0, &path, attribute::LINEAR_FORWARDING_TABLE, block as u32, data);
        }
        self.tables.lfts[index] = lft;
    }

    /// The multicast tables of all switches, or only the block of one multicast LID.
    pub(super) fn set_multicast_tables(&mut self, only: Option<Lid>) {
        let block_of = |mlid: u16| usize::from(mlid - FIRST_MLID) / MFT_BLOCK;
        let only = only.map(|mlid| block_of(mlid.0));
        let mut want: BTreeMap<(Guid, usize, usize), [u16; MFT_BLOCK]> = BTreeMap::new();
        for (mlid, tree) in
            self.sa.trees().filter(|(mlid, _)| only.is_none_or(|block| block == block_of(mlid.0)))
        {
            let block = block_of(mlid.0);
            for (switch, ports) in &tree.ports {
                let Some(&guid) = self.map.switch_guids.get(*switch as usize) else { continue };
                for &port in ports {
                    let position = usize::from(port) / MFT_PORTS;
                    let masks = want.entry((guid, block, position)).or_insert([0; MFT_BLOCK]);
                    masks[usize::from(mlid.0 - FIRST_MLID) % MFT_BLOCK] |= 1 << (port % MFT_PORTS as u8);
                }
            }
        }
        // Blocks that were written before and have become empty.
        for (guid, shadow) in &self.shadows {
            let key = |modifier| (0, attribute::MULTICAST_FORWARDING_TABLE, modifier);
            for ((.., modifier), _) in shadow.values.range(key(0)..=key(u32::MAX)) {
                let (block, position) = ((modifier & 0x1ff) as usize, (modifier >> 28) as usize);
                if only.is_none_or(|b| b == block) {
                    want.entry((*guid, block, position)).or_insert([0; MFT_BLOCK]);
                }
            }
        }
        for ((guid, block, position), masks) in want {
            let Some(node) = self.known.nodes.get(&guid) else { continue };
            let path = node.path.clone();
            let mut data = [0; 64];
            MulticastForwardingTable { masks }.emit(&mut data);
            let modifier = (position as u32) << 28 | block as u32;
            self.put(guid, 0, &path, attribute::MULTICAST_FORWARDING_TABLE, modifier, data);
        }
    }

    pub(super) fn arm(&mut self) {
        self.phase = Phase::Arm;
        self.move_ports(port_state::INIT, port_state::ARMED);
    }

    pub(super) fn activate(&mut self) {
        self.phase = Phase::Activate;
        self.move_ports(port_state::ARMED, port_state::ACTIVE);
    }

    /// All ports with a working link from one state to the next.
    fn move_ports(&mut self, from: u8, to: u8) {
        for (guid, node) in &self.known.nodes {
            for (number, port) in node.ports.iter().enumerate().skip(1) {
                if !port.is_linked() || port.info.port_state != from {
                    continue;
                }
                let info = PortInfo { port_state: to, port_physical_state: 0, ..port.info };
                let mut data = [0; 64];
                info.emit(&mut data);
                let purpose = Purpose::State(*guid, number as u8, to);
                let modifier = number as u32;
                self.requests.push(Request::set(&port.path, attribute::PORT_INFO, modifier, data, purpose));
            }
        }
    }

    /// All that was written of an attribute: node, port, modifier, data.
    pub(super) fn all_written(&self, attribute: u16) -> impl Iterator<Item = (Guid, u8, u32, &[u8; 64])> {
        self.shadows.iter().flat_map(move |(guid, shadow)| {
            let of = shadow.values.iter().filter(move |((_, a, _), _)| *a == attribute);
            of.map(|((port, _, modifier), data)| (*guid, *port, *modifier, data))
        })
    }
}

/// Where a port is.
#[derive(Debug, Clone, Copy)]
struct PortKind {
    is_end_port: bool,
    is_external: bool,
}

fn node_is(switch: bool, number: u8) -> PortKind {
    PortKind { is_end_port: (number == 0) == switch, is_external: number > 0 }
}

/// Whether a port has to be told, states apart.
fn differs(want: &PortInfo, has: &PortInfo) -> bool {
    let has = PortInfo {
        port_state: want.port_state,
        port_physical_state: want.port_physical_state,
        client_reregister: false,
        ..*has
    };
    *want != has
}
