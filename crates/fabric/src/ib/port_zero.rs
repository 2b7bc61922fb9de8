//! Port 0 of a switch as the seat of a subnet manager: it sends by the switch's own table, and gets what is for the manager.
//!
//! Read IBTA §18.2.4.1 (port 0 has no link; a base port 0 serves management only) first. A switch with a manager has two queue
//! pairs with a host behind them, QP0 and QP1, and QP1 for subnet administration alone: there are no others.

use bytes::Bytes;
use everywire_wire::mad::class;
use everywire_wire::smp::codes::port_state;
use everywire_wire::vcrc::check_length;

use super::config::PortId;
use super::hca::{Refusal, Refused, Way};
use super::mad_packet::MadRoute;
use super::packet::Packet;
use super::port::VL15;
use super::subnet::Subnet;
use crate::clock::SimTime;

impl Subnet {
    /// A port that has a LID: an adapter's, or port 0 of a switch.
    pub(super) fn end_port(&self, port: PortId) -> Option<u32> {
        let index = self.index(port)?;
        let record = &self.ports[index as usize];
        (!record.in_switch || record.number == 0).then_some(index)
    }

    /// Sends a packet of the manager's QP1 from port 0 of a switch. Errors are those of [`Subnet::send`].
    #[cold]
    pub(super) fn send_from_switch(&mut self, now: SimTime, own: u32, packet: Bytes) -> Result<(), Refused> {
        let (way, lrh) = match self.way_from_switch(own, &packet) {
            Ok(found) => found,
            Err(reason) => return Err(Refused { packet, reason }),
        };
        self.put(now, own, way, Packet::new(packet, lrh, now));
        Ok(())
    }

    fn way_from_switch(&mut self, own: u32, packet: &[u8]) -> Result<(Way, everywire_wire::Lrh), Refusal> {
        let lrh = check_length(packet)?;
        if lrh.vl == VL15 {
            return Err(Refusal::ManagementLane);
        }
        let port = &self.ports[own as usize];
        if !port.has_lid(lrh.slid) {
            return Err(Refusal::ForeignSource(lrh.slid));
        }
        if port.has_lid(lrh.dlid) {
            return Ok((None, lrh));
        }
        let node = self.node_of(own);
        let number = node.switch().map_or(0, |switch| switch.unicast(lrh.dlid));
        if !(1..=node.ports).contains(&number) {
            return Err(Refusal::NoRoute(lrh.dlid));
        }
        let out = node.port(number);
        let port = &mut self.ports[out as usize];
        if port.state != port_state::ACTIVE {
            return Err(Refusal::NotActive(port.state));
        }
        let vl = port.lane_with_room(lrh.sl, packet.len());
        if let Err(Refusal::Full(sl)) = vl {
            port.refused |= 1 << sl;
        }
        Ok((Some((out, vl?)), lrh))
    }

    /// A data packet for a switch's own LID that is for the administrator of a manager there. False if it is not.
    pub(super) fn give_to_administrator(&mut self, now: SimTime, input: u32, id: u32) -> bool {
        let own = self.management_port(input);
        let packet = self.packets.get(id);
        if !self.ports[own as usize].is_sm() || !super::hca::is_for_gsi(packet) {
            return false;
        }
        let is_for_it =
            MadRoute::parse(&packet.clone().into_bytes()).is_ok_and(|(_, mad)| mad[1] == class::SUBN_ADM);
        if !is_for_it {
            return false;
        }
        if packet.pkey_bits().is_some_and(|pkey| !self.ports[own as usize].admits(pkey)) {
            self.refuse_partition(now, own, id);
            self.discard(now, id);
        } else {
            self.deliver(now, own, id);
        }
        true
    }
}
