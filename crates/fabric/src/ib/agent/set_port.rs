//! A SET of PortInfo that has been found allowed: what it changes, and what follows from it.

use everywire_wire::smp::PortInfo;
use everywire_wire::smp::codes::{physical_state, port_state};

use super::port_info::{ALL_EXTENDED_SPEEDS, ALL_SPEEDS, ALL_WIDTHS, NO_EXTENDED_SPEEDS};
use crate::clock::SimTime;
use crate::ib::config::LinkId;
use crate::ib::port::Port;
use crate::ib::subnet::Subnet;

impl Subnet {
    pub(super) fn set_port(&mut self, now: SimTime, index: u32, asked: &PortInfo) {
        let port = &mut self.ports[index as usize];
        let before = port.values();
        let endport = !port.in_switch || port.number == 0;
        if endport {
            set_endport(&mut port.info, asked);
        }
        set_link(port, asked);
        port.refresh();
        self.set_link_state(now, index, asked);
        if self.ports[index as usize].values() != before {
            self.tell_values(index);
        }
        // Lanes or state may have opened for what is queued.
        self.transmit(now, index);
    }

    fn set_link_state(&mut self, now: SimTime, index: u32, asked: &PortInfo) {
        let port = &mut self.ports[index as usize];
        if port.in_switch && port.number == 0 {
            return;
        }
        match asked.port_state {
            port_state::ARMED | port_state::ACTIVE => self.set_state(index, asked.port_state),
            _ => {}
        }
        let Some(link) = self.ports[index as usize].cable.map(|cable| LinkId(cable.link)) else { return };
        let physical = asked.port_physical_state;
        let goes_down = asked.port_state == port_state::DOWN || physical != physical_state::NO_CHANGE;
        if !goes_down {
            return;
        }
        if physical == physical_state::DISABLED {
            self.ports[index as usize].info.port_physical_state = physical_state::DISABLED;
            return self.lower_link(now, link);
        }
        let info = &mut self.ports[index as usize].info;
        if info.port_physical_state == physical_state::DISABLED && physical == physical_state::NO_CHANGE {
            return;
        }
        self.lower_link(now, link);
        self.ports[index as usize].info.port_physical_state = physical_state::POLLING;
        // Sleep and polling both wake up when the neighbour calls, which takes no time here.
        self.raise_link(now, link);
    }
}

/// What is the node's or the endport's.
fn set_endport(info: &mut PortInfo, asked: &PortInfo) {
    info.m_key = asked.m_key;
    info.gid_prefix = asked.gid_prefix;
    info.lid = asked.lid;
    info.lmc = asked.lmc;
    info.master_sm_lid = asked.master_sm_lid;
    info.master_sm_sl = asked.master_sm_sl;
    info.m_key_lease_period = asked.m_key_lease_period;
    info.m_key_protect_bits = asked.m_key_protect_bits;
    info.m_key_violations = asked.m_key_violations;
    info.q_key_violations = asked.q_key_violations;
    info.subnet_timeout = asked.subnet_timeout;
    info.client_reregister = asked.client_reregister;
    info.mcast_pkey_trap_suppression = asked.mcast_pkey_trap_suppression;
}

/// What every port has.
fn set_link(port: &mut Port, asked: &PortInfo) {
    let (in_switch, info) = (port.in_switch, &mut port.info);
    info.p_key_violations = asked.p_key_violations;
    info.vl_high_limit = asked.vl_high_limit;
    info.init_type_reply = asked.init_type_reply;
    info.vl_stall_count = asked.vl_stall_count;
    info.local_phy_errors = asked.local_phy_errors;
    info.overrun_errors = asked.overrun_errors;
    if in_switch {
        info.hoq_life = asked.hoq_life;
        info.partition_enforcement_inbound = asked.partition_enforcement_inbound;
        info.partition_enforcement_outbound = asked.partition_enforcement_outbound;
        info.filter_raw_inbound = asked.filter_raw_inbound;
        info.filter_raw_outbound = asked.filter_raw_outbound;
    }
    let unless_zero = |to: &mut u8, from: u8| *to = if from == 0 { *to } else { from };
    unless_zero(&mut info.neighbor_mtu, asked.neighbor_mtu);
    unless_zero(&mut info.operational_vls, asked.operational_vls);
    unless_zero(&mut info.link_down_default_state, asked.link_down_default_state);
    let bits = |to: &mut u8, from: u8, supported: u8, all: u8| {
        *to = match from {
            0 => *to,
            from if from == all => supported,
            from => from,
        }
    };
    bits(&mut info.link_width_enabled, asked.link_width_enabled, info.link_width_supported, ALL_WIDTHS);
    bits(&mut info.link_speed_enabled, asked.link_speed_enabled, info.link_speed_supported, ALL_SPEEDS);
    let extended = asked.link_speed_ext_enabled;
    if extended == NO_EXTENDED_SPEEDS {
        info.link_speed_ext_enabled = 0;
    } else {
        let supported = info.link_speed_ext_supported;
        bits(&mut info.link_speed_ext_enabled, extended, supported, ALL_EXTENDED_SPEEDS);
    }
}
