//! PortInfo: read, and judged before it is written.
//!
//! Read IBTA §14.2.5.6 first. A SET is judged as a whole and then applied as a whole: one field that is not allowed, and
//! nothing changes ([`super::set_port`] applies). Fields that only an adapter or a switch's port 0 has are ignored for the
//! external ports of a switch.

use everywire_wire::Mtu;
use everywire_wire::mad::status;
use everywire_wire::smp::PortInfo;
use everywire_wire::smp::codes::{physical_state, port_state, vls};

use super::sma::{Refusal, Request, padded};
use crate::ib::port::Port;
use crate::ib::subnet::Subnet;

/// In LinkWidthEnabled: all that is supported.
pub(super) const ALL_WIDTHS: u8 = 255;
/// In LinkSpeedEnabled: all that is supported.
pub(super) const ALL_SPEEDS: u8 = 15;
/// In LinkSpeedExtEnabled: none.
pub(super) const NO_EXTENDED_SPEEDS: u8 = 30;
/// In LinkSpeedExtEnabled: all that is supported.
pub(super) const ALL_EXTENDED_SPEEDS: u8 = 31;

impl Subnet {
    pub(super) fn port_info(&mut self, request: &Request) -> Result<[u8; 64], Refusal> {
        // The high half of the modifier asks for things beyond this attribute's port number.
        let index = self.port_by_modifier(request, request.modifier & 0xff)?;
        if request.set {
            let asked = PortInfo::parse(&request.data).map_err(|_| status::INVALID_FIELD)?;
            judge(&self.ports[index as usize], &asked)?;
            self.set_port(request.now, index, &asked);
        }
        let port = &self.ports[index as usize];
        let mut info = port.info;
        info.local_port_num = self.ports[request.index as usize].number;
        if !request.trusted {
            info.m_key = 0;
        }
        Ok(padded(|out| info.emit(out)))
    }
}

/// Whether all of what is asked is allowed.
fn judge(port: &Port, asked: &PortInfo) -> Result<(), Refusal> {
    let info = &port.info;
    let endport = !port.in_switch || port.number == 0;
    let bits = |asked: u8, supported: u8, all: u8| asked == 0 || asked == all || asked & !supported == 0;
    let speed_ext = asked.link_speed_ext_enabled;
    let rules = [
        judge_state(port, asked.port_state),
        asked.port_physical_state <= physical_state::DISABLED,
        asked.port_physical_state == physical_state::NO_CHANGE
            || matches!(asked.port_state, port_state::NO_CHANGE | port_state::DOWN),
        asked.link_down_default_state <= physical_state::POLLING,
        !endport || asked.lid.0 == 0 || asked.lid.is_unicast(),
        // The base LID of a range is a multiple of its length (IBTA §4.1.3).
        !endport || asked.lid.0 & ((1 << asked.lmc) - 1) == 0,
        !endport || asked.master_sm_lid.0 == 0 || asked.master_sm_lid.is_unicast(),
        asked.neighbor_mtu == 0
            || Mtu::from_code(asked.neighbor_mtu).is_some_and(|mtu| mtu.code() <= info.mtu_cap),
        asked.operational_vls == 0
            || (vls::count(asked.operational_vls) > 0
                && vls::count(asked.operational_vls) <= vls::count(info.vl_cap)),
        bits(asked.link_width_enabled, info.link_width_supported, ALL_WIDTHS),
        bits(asked.link_speed_enabled, info.link_speed_supported, ALL_SPEEDS),
        speed_ext == NO_EXTENDED_SPEEDS
            || bits(speed_ext, info.link_speed_ext_supported, ALL_EXTENDED_SPEEDS),
    ];
    if rules.into_iter().all(|allowed| allowed) { Ok(()) } else { Err(status::INVALID_FIELD) }
}

/// The steps that the subnet manager may command (IBTA §14.2.5.6, PortState).
fn judge_state(port: &Port, asked: u8) -> bool {
    match asked {
        port_state::NO_CHANGE | port_state::DOWN => true,
        port_state::ARMED => matches!(port.state, port_state::INIT | port_state::ARMED),
        port_state::ACTIVE => matches!(port.state, port_state::ARMED | port_state::ACTIVE),
        _ => false,
    }
}
