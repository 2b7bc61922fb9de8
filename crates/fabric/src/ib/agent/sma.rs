//! The subnet management agent: M_Key, methods, and which attribute goes where.
//!
//! Read IBTA §14.2.4 (M_Key) and §14.2.5 (attributes) first. Refusals are answers with a status of §13.4.7, but for a wrong
//! M_Key, which gets no answer: it is counted, and a trap tells the subnet manager. Attributes of a port are in
//! [`super::port_info`], tables in [`super::tables`].

use std::time::Duration;

use everywire_wire::Lid;
use everywire_wire::mad::{method, status};
use everywire_wire::notice::{Notice, TrapMKey, kind, trap};
use everywire_wire::smp::codes::node_type;
use everywire_wire::smp::{CLASS_VERSION, GuidInfo, LedInfo, NodeInfo, Smp, SwitchInfo, attribute};

use crate::clock::SimTime;
use crate::ib::config::PortId;
use crate::ib::node::Kind;
use crate::ib::port::{GUIDS, PKEYS};
use crate::ib::subnet::Subnet;

/// Version of the common header that is understood.
const BASE_VERSION: u8 = 1;
/// What the nodes of this subnet say they are: no vendor, since the OUI is nobody's.
const VENDOR_ID: u32 = 0;
const DEVICE_ID: u16 = 0x4557;
const REVISION: u32 = 1;

/// A status that refuses a request.
pub(super) type Refusal = u16;

/// A request about an attribute, and where it came in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub now: SimTime,
    /// The port that it came in by.
    pub index: u32,
    pub set: bool,
    pub modifier: u32,
    pub data: [u8; 64],
    /// The request showed the right M_Key, or needed none: it may read it.
    pub trusted: bool,
}

impl Subnet {
    /// The answer to a GET or SET; `None` where none is due.
    pub(super) fn answer_smp(&mut self, now: SimTime, index: u32, smp: &Smp, slid: Lid) -> Option<Smp> {
        if !self.node_of(index).powered {
            return None;
        }
        let set = smp.header.method == method::SET;
        let mut answer = *smp;
        answer.header.method = method::GET_RESP;
        answer.header.status = 0;
        if smp.header.base_version != BASE_VERSION || smp.header.class_version != CLASS_VERSION {
            answer.header.status = status::BAD_VERSION;
            return Some(answer);
        }
        let trusted = match self.check_m_key(now, index, smp, set) {
            Ok(trusted) => trusted,
            Err(()) => {
                self.m_key_violation(now, index, smp, slid);
                return None;
            }
        };
        let modifier = smp.header.attribute_modifier;
        let request = Request { now, index, set, modifier, data: smp.data, trusted };
        match self.attribute(smp.header.attribute_id, &request) {
            Ok(data) => answer.data = data,
            Err(refusal) => answer.header.status = refusal,
        }
        // The key is shown to nobody (IBTA §14.2.4.1).
        answer.m_key = 0;
        Some(answer)
    }

    /// What the agent of a port says of an attribute (IBTA §14.2.5), asked without a MAD: for pictures of the subnet, and for
    /// whoever stands in for the port's driver. `None` where the agent refuses.
    pub fn inspect(&mut self, port: PortId, attribute: u16, modifier: u32) -> Option<[u8; 64]> {
        let index = self.index(port)?;
        let now = self.clock.elapsed();
        self.attribute(attribute, &Request { now, index, set: false, modifier, data: [0; 64], trusted: true })
            .ok()
    }

    fn attribute(&mut self, id: u16, request: &Request) -> Result<[u8; 64], Refusal> {
        match id {
            attribute::NODE_DESCRIPTION => {
                read_only(request)?;
                Ok(self.node_of(request.index).agent.description.text)
            }
            attribute::NODE_INFO => {
                read_only(request)?;
                Ok(padded(|out| self.node_info(request.index).emit(out)))
            }
            attribute::SWITCH_INFO => self.switch_info(request),
            attribute::GUID_INFO => self.guid_info(request),
            attribute::PORT_INFO => self.port_info(request),
            attribute::PKEY_TABLE => self.pkey_table(request),
            attribute::SL_TO_VL => self.sl_to_vl(request),
            attribute::VL_ARBITRATION => self.vl_arbitration(request),
            attribute::LED_INFO => self.led_info(request),
            attribute::LINEAR_FORWARDING_TABLE => self.linear_table(request),
            attribute::MULTICAST_FORWARDING_TABLE => self.multicast_table(request),
            _ => Err(status::UNSUPPORTED_METHOD_ATTRIBUTE),
        }
    }

    /// Whether the request may pass, and if so whether it may see the key (IBTA §14.2.4.2).
    fn check_m_key(&mut self, now: SimTime, index: u32, smp: &Smp, set: bool) -> Result<bool, ()> {
        let own = self.management_port(index);
        let node = self.ports[own as usize].node as usize;
        let info = &mut self.ports[own as usize].info;
        let lease_ends = &mut self.nodes[node].agent.lease_ends;
        if lease_ends.is_some_and(|ends| ends <= now) {
            info.m_key_protect_bits = 0;
            *lease_ends = None;
        }
        if info.m_key == 0 || smp.m_key == info.m_key {
            *lease_ends = None;
            return Ok(true);
        }
        match (set, info.m_key_protect_bits) {
            (false, 0) => Ok(true),
            (false, 1) => Ok(false),
            _ => Err(()),
        }
    }

    /// TrapRepress is protected as a Set is (IBTA §14.2.4.2).
    pub(super) fn repressed(&mut self, now: SimTime, index: u32, smp: &Smp, slid: Lid) {
        match self.check_m_key(now, index, smp, true) {
            Ok(_) => self.repress_trap(index, smp),
            Err(()) => self.m_key_violation(now, index, smp, slid),
        }
    }

    fn m_key_violation(&mut self, now: SimTime, index: u32, smp: &Smp, slid: Lid) {
        let own = self.management_port(index);
        let port = &mut self.ports[own as usize];
        port.info.m_key_violations = port.info.m_key_violations.saturating_add(1);
        let lease = port.info.m_key_lease_period;
        let (node, lid) = (port.node as usize, port.info.lid);
        if lease > 0 {
            let ends = now.after(Duration::from_secs(lease.into()));
            self.nodes[node].agent.lease_ends.get_or_insert(ends);
        }
        let directed = smp.is_directed();
        let mut return_path = [0; 28];
        return_path.copy_from_slice(&smp.return_path[1..29]);
        let details = TrapMKey {
            lid,
            dr_slid: if directed { smp.dr_slid } else { slid },
            method: smp.header.method,
            attribute_id: smp.header.attribute_id,
            attribute_modifier: smp.header.attribute_modifier,
            m_key: smp.m_key,
            directed,
            truncated: directed && smp.hop_count() > 28,
            hop_count: if directed { smp.hop_count() } else { 0 },
            return_path,
            ..TrapMKey::default()
        };
        let mut notice = Notice::generic(kind::SECURITY, self.producer(index), trap::BAD_M_KEY, lid);
        details.emit(&mut notice.details);
        self.raise_trap(now, own, notice);
    }

    /// The port whose PortInfo holds what is the node's: port 0 of a switch, the port itself of an adapter.
    pub(in crate::ib) fn management_port(&self, index: u32) -> u32 {
        let node = self.node_of(index);
        if node.switch().is_some() { node.port(0) } else { index }
    }

    /// Node type, as notices have it.
    pub(super) fn producer(&self, index: u32) -> u32 {
        u32::from(self.node_type(index))
    }

    fn node_type(&self, index: u32) -> u8 {
        match self.node_of(index).kind {
            Kind::Switch(_) => node_type::SWITCH,
            Kind::Router(_) => node_type::ROUTER,
            Kind::Hca { .. } => node_type::CA,
        }
    }

    fn node_info(&self, index: u32) -> NodeInfo {
        let (node, port) = (self.node_of(index), &self.ports[index as usize]);
        NodeInfo {
            base_version: BASE_VERSION,
            class_version: CLASS_VERSION,
            node_type: self.node_type(index),
            num_ports: node.ports,
            system_image_guid: node.guid,
            node_guid: node.guid,
            port_guid: port.guids[0],
            partition_cap: PKEYS as u16,
            device_id: DEVICE_ID,
            revision: REVISION,
            local_port_num: port.number,
            vendor_id: VENDOR_ID,
        }
    }

    /// A port by number, as attribute modifiers name it; 0 of an adapter is the one that the request came in by.
    pub(super) fn port_by_modifier(&self, request: &Request, number: u32) -> Result<u32, Refusal> {
        let node = self.node_of(request.index);
        match number {
            0 if node.switch().is_none() => Ok(request.index),
            number if number <= u32::from(node.ports) => Ok(node.first_port + number),
            _ => Err(status::INVALID_FIELD),
        }
    }

    fn switch_info(&mut self, request: &Request) -> Result<[u8; 64], Refusal> {
        let node = self.ports[request.index as usize].node as usize;
        let switch = self.nodes[node].switch_mut().ok_or(status::UNSUPPORTED_METHOD_ATTRIBUTE)?;
        if request.set {
            let asked = SwitchInfo::parse(&request.data).map_err(|_| status::INVALID_FIELD)?;
            let info = &mut switch.info;
            if asked.linear_fdb_top >= info.linear_fdb_cap {
                return Err(status::INVALID_FIELD);
            }
            info.linear_fdb_top = asked.linear_fdb_top;
            info.default_port = asked.default_port;
            info.default_multicast_primary_port = asked.default_multicast_primary_port;
            info.default_multicast_not_primary_port = asked.default_multicast_not_primary_port;
            info.life_time_value = asked.life_time_value;
            info.multicast_fdb_top = asked.multicast_fdb_top;
            // Writing 1 clears it.
            info.port_state_change &= !asked.port_state_change;
        }
        let info = switch.info;
        Ok(padded(|out| info.emit(out)))
    }

    fn led_info(&mut self, request: &Request) -> Result<[u8; 64], Refusal> {
        let index = self.port_by_modifier(request, request.modifier & 0xff)?;
        let port = &mut self.ports[index as usize];
        if request.set {
            port.led = LedInfo::parse(&request.data).map_err(|_| status::INVALID_FIELD)?.on;
        }
        let info = LedInfo { on: port.led, ..LedInfo::default() };
        Ok(padded(|out| info.emit(out)))
    }

    fn guid_info(&mut self, request: &Request) -> Result<[u8; 64], Refusal> {
        if request.modifier as usize >= GUIDS.div_ceil(8) {
            return Err(status::INVALID_FIELD);
        }
        let own = self.management_port(request.index);
        let port = &mut self.ports[own as usize];
        if request.set {
            let asked = GuidInfo::parse(&request.data).map_err(|_| status::INVALID_FIELD)?;
            // The first is the port's for ever.
            port.guids[1..].copy_from_slice(&asked.guids[1..]);
        }
        let guids = port.guids;
        if request.set {
            self.tell_values(own);
        }
        Ok(padded(|out| GuidInfo { guids }.emit(out)))
    }
}

pub(super) fn read_only(request: &Request) -> Result<(), Refusal> {
    if request.set { Err(status::UNSUPPORTED_METHOD_ATTRIBUTE) } else { Ok(()) }
}

/// An attribute and zeros after it.
pub(super) fn padded(emit: impl FnOnce(&mut [u8])) -> [u8; 64] {
    let mut data = [0; 64];
    emit(&mut data);
    data
}
