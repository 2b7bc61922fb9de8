//! MADs that this process itself sends from hosts' ports, for the subnet manager and the clients of ibsim.
//!
//! Subnet management has a lane of its own and is never refused. The others wait for room like all data; what waits is
//! bounded, since MADs may be lost (IBTA §13.4: their senders repeat them).

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use everywire_fabric::ib::mad_packet::MadRoute;
use everywire_fabric::ib::{PortId, Refusal, Subnet};
use everywire_wire::{Lid, Mad, PKey, Qpn};

/// MADs that wait for room at one port.
const MAX_BACKLOG: usize = 4096;

/// Where a MAD of QP1 goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct To {
    pub lid: Lid,
    pub sl: u8,
    pub pkey: PKey,
    pub qp: Qpn,
}

impl To {
    /// QP1 of this LID, in the default partition.
    pub(super) fn lid(lid: Lid) -> To {
        To { lid, sl: 0, pkey: PKey::DEFAULT, qp: Qpn::GSI }
    }
}

/// What waits for room.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    ports: BTreeMap<PortId, VecDeque<(u8, bytes::Bytes)>>,
    /// MADs that were lost: the port is not active, or too many wait.
    pub lost: u64,
}

impl Backlog {
    /// Sends a MAD of QP1 from a port.
    pub(super) fn send(&mut self, subnet: &mut Subnet, now: Instant, port: PortId, to: To, mad: &Mad) {
        let slid = subnet.port_values(port).map_or(Lid(0), |values| values.lid);
        let mut route = MadRoute::services(slid, to.lid, to.sl);
        (route.pkey, route.dest_qp) = (to.pkey, to.qp);
        self.offer(subnet, now, port, to.sl, route.packet(mad).into());
    }

    fn offer(&mut self, subnet: &mut Subnet, now: Instant, port: PortId, sl: u8, packet: bytes::Bytes) {
        match subnet.send(now, port, packet) {
            Ok(()) => {}
            Err(refused) if matches!(refused.reason, Refusal::Full(_)) => {
                let waiting = self.ports.entry(port).or_default();
                if waiting.len() < MAX_BACKLOG {
                    waiting.push_back((sl, refused.packet));
                } else {
                    self.lost += 1;
                }
            }
            Err(_) => self.lost += 1,
        }
    }

    /// A port has room again.
    pub(super) fn room(&mut self, subnet: &mut Subnet, now: Instant, port: PortId) {
        for (sl, packet) in self.ports.remove(&port).into_iter().flatten() {
            self.offer(subnet, now, port, sl, packet);
        }
    }
}
