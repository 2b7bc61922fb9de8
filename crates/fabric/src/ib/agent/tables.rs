//! The tables of a port and of a switch: P_Keys, lanes, arbitration, forwarding.
//!
//! Read IBTA §14.2.5.7 to §14.2.5.12 first. Each is read and written in blocks, which the attribute modifier names; a block
//! beyond the end is refused.

use everywire_wire::mad::status;
use everywire_wire::smp::{
    LinearForwardingTable, MulticastForwardingTable, PKeyTable, SlToVl, VlArbitration,
};

use super::sma::{Refusal, Request, padded};
use crate::ib::arbiter::ENTRIES;
use crate::ib::node::{LINEAR_ENTRIES, MULTICAST_ENTRIES, PORTS_A_POSITION};
use crate::ib::port::PKEYS;
use crate::ib::subnet::Subnet;

/// Entries of a block of P_Keys.
const PKEY_BLOCK: usize = 32;
/// Entries of half an arbitration table.
const ARBITRATION_BLOCK: usize = 32;
/// LIDs of a block of the linear table.
const LINEAR_BLOCK: usize = 64;
/// LIDs of a block of the multicast table.
const MULTICAST_BLOCK: usize = 32;

impl Subnet {
    /// The output port that a modifier names in a switch, the receiving port in an adapter.
    fn table_port(&self, request: &Request, number: u32) -> Result<u32, Refusal> {
        let in_switch = self.ports[request.index as usize].in_switch;
        if in_switch { self.port_by_modifier(request, number) } else { Ok(request.index) }
    }

    pub(super) fn pkey_table(&mut self, request: &Request) -> Result<[u8; 64], Refusal> {
        let index = self.table_port(request, request.modifier >> 16)?;
        let first = (request.modifier & 0xffff) as usize * PKEY_BLOCK;
        if first >= PKEYS {
            return Err(status::INVALID_FIELD);
        }
        let own = &mut self.ports[index as usize].pkeys[first..first + PKEY_BLOCK];
        let mut changed = false;
        if request.set {
            let asked = PKeyTable::parse(&request.data).map_err(|_| status::INVALID_FIELD)?;
            changed = own != asked.keys;
            own.copy_from_slice(&asked.keys);
        }
        let mut keys = PKeyTable::default();
        keys.keys.copy_from_slice(own);
        if changed {
            self.tell_values(index);
        }
        Ok(padded(|out| keys.emit(out)))
    }

    pub(super) fn sl_to_vl(&mut self, request: &Request) -> Result<[u8; 64], Refusal> {
        let (input, output) = (request.modifier >> 8 & 0xff, request.modifier & 0xff);
        let index = self.table_port(request, output)?;
        let port = &mut self.ports[index as usize];
        let input = if port.in_switch { input as u8 } else { 0 };
        let lanes = port.lane_of.get_mut(usize::from(input)).ok_or(status::INVALID_FIELD)?;
        if request.set {
            let asked = SlToVl::parse(&request.data).map_err(|_| status::INVALID_FIELD)?;
            *lanes = std::array::from_fn(|sl| asked.vl(sl as u8));
        }
        let table = port.sl_to_vl(input).ok_or(status::INVALID_FIELD)?;
        Ok(padded(|out| table.emit(out)))
    }

    pub(super) fn vl_arbitration(&mut self, request: &Request) -> Result<[u8; 64], Refusal> {
        let index = self.table_port(request, request.modifier & 0xffff)?;
        // 1 and 2: low priority, 3 and 4: high priority; lower and upper half.
        let (high, first) = match request.modifier >> 16 {
            1 => (false, 0),
            2 => (false, ARBITRATION_BLOCK),
            3 => (true, 0),
            4 => (true, ARBITRATION_BLOCK),
            _ => return Err(status::INVALID_FIELD),
        };
        debug_assert!(first + ARBITRATION_BLOCK <= ENTRIES);
        let arbiter = &mut self.ports[index as usize].arbiter;
        if request.set {
            let asked = VlArbitration::parse(&request.data).map_err(|_| status::INVALID_FIELD)?;
            arbiter.write(high, first, &asked.entries);
        }
        let mut table = VlArbitration::default();
        table.entries.copy_from_slice(&arbiter.entries(high)[first..first + ARBITRATION_BLOCK]);
        if request.set {
            self.transmit(request.now, index);
        }
        Ok(padded(|out| table.emit(out)))
    }

    pub(super) fn linear_table(&mut self, request: &Request) -> Result<[u8; 64], Refusal> {
        let node = self.ports[request.index as usize].node as usize;
        let switch = self.nodes[node].switch_mut().ok_or(status::UNSUPPORTED_METHOD_ATTRIBUTE)?;
        let first = request.modifier as usize * LINEAR_BLOCK;
        if request.modifier as usize >= LINEAR_ENTRIES / LINEAR_BLOCK {
            return Err(status::INVALID_FIELD);
        }
        let own = &mut switch.linear[first..first + LINEAR_BLOCK];
        if request.set {
            let asked = LinearForwardingTable::parse(&request.data).map_err(|_| status::INVALID_FIELD)?;
            own.copy_from_slice(&asked.ports);
        }
        let mut table = LinearForwardingTable::default();
        table.ports.copy_from_slice(own);
        Ok(padded(|out| table.emit(out)))
    }

    pub(super) fn multicast_table(&mut self, request: &Request) -> Result<[u8; 64], Refusal> {
        let node = self.ports[request.index as usize].node as usize;
        let ports = usize::from(self.nodes[node].ports);
        let switch = self.nodes[node].switch_mut().ok_or(status::UNSUPPORTED_METHOD_ATTRIBUTE)?;
        let (position, block) = (request.modifier >> 28, (request.modifier & 0x1ff) as usize);
        let shift = position as usize * PORTS_A_POSITION;
        if shift > ports || block >= MULTICAST_ENTRIES / MULTICAST_BLOCK {
            return Err(status::INVALID_FIELD);
        }
        let own = &mut switch.multicast[block * MULTICAST_BLOCK..(block + 1) * MULTICAST_BLOCK];
        if request.set {
            let asked = MulticastForwardingTable::parse(&request.data).map_err(|_| status::INVALID_FIELD)?;
            for (to, mask) in own.iter_mut().zip(asked.masks) {
                *to = *to & !(0xffff << shift) | u128::from(mask) << shift;
            }
        }
        let mut table = MulticastForwardingTable::default();
        for (to, from) in table.masks.iter_mut().zip(own) {
            *to = (*from >> shift) as u16;
        }
        Ok(padded(|out| table.emit(out)))
    }
}
