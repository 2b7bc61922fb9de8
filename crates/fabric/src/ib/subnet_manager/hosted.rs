//! A subnet manager at a port of a simulated subnet: MADs between the two.
//!
//! The host of the port passes every event of the subnet through [`HostedSm::handle_event`] and calls [`HostedSm::drive`]
//! after that, and when [`HostedSm::poll_timeout`] is over. Packets to QP1 that ask subnet administration are taken; all
//! others are the host's own.

use std::collections::VecDeque;
use std::time::Instant;

use everywire_wire::mad::class;
use everywire_wire::smp::codes::port_state;
use everywire_wire::{Lid, QKey, Qpn};

use super::{Address, GsiAddress, Sm, SmMad};
use crate::ib::mad_packet::MadRoute;
use crate::ib::{Event, PortId, Refusal, Subnet};

/// A manager and its port.
#[derive(Debug)]
pub struct HostedSm {
    /// The manager.
    pub sm: Sm,
    port: PortId,
    /// The port's state as it was told last.
    state: u8,
    /// What found the port's queue full.
    waiting: VecDeque<SmMad>,
}

impl HostedSm {
    /// Puts a manager at a port, which says so from now on, and starts it.
    pub fn start(now: Instant, sm: Sm, port: PortId, subnet: &mut Subnet) -> HostedSm {
        let mut hosted = HostedSm { sm, port, state: subnet.state(port), waiting: VecDeque::new() };
        subnet.set_sm(now, port, true);
        hosted.sm.start(now);
        hosted.drive(now, subnet);
        hosted
    }

    /// Where it runs.
    pub fn port(&self) -> PortId {
        self.port
    }

    /// Takes an event that is the manager's; `false` for others. A buffer that a taken packet occupies is the host's to
    /// give back.
    pub fn handle_event(&mut self, now: Instant, event: &Event) -> bool {
        match event {
            Event::Smp { port, mad, slid, .. } if *port == self.port => {
                self.sm.handle_mad(now, SmMad { address: Address::Smi(*slid), mad: **mad });
                true
            }
            Event::Deliver { port, packet, .. } if *port == self.port => self.handle_packet(now, packet),
            Event::PortChanged { port, values } if *port == self.port => {
                self.port_changed(now, values.state);
                false
            }
            _ => false,
        }
    }

    /// The manager's own cable is back. Whatever changed while it was away is told by nobody: traps went nowhere, and the
    /// switch at the other end reports to the LID of a manager that it has no way to.
    fn port_changed(&mut self, now: Instant, state: u8) {
        let before = std::mem::replace(&mut self.state, state);
        if state == port_state::INIT && before != port_state::INIT {
            self.sm.sweep(now);
        }
    }

    fn handle_packet(&mut self, now: Instant, packet: &[u8]) -> bool {
        let Ok((route, mad)) = MadRoute::parse(packet) else { return false };
        if route.dest_qp != Qpn::GSI || mad[1] != class::SUBN_ADM || route.qkey != QKey::GSI {
            return false;
        }
        let gid = route.gids.map(|(source, _)| source);
        let from = GsiAddress { lid: route.slid, qpn: route.src_qp, sl: route.sl, pkey: route.pkey, gid };
        self.sm.handle_mad(now, SmMad { address: Address::Gsi(from), mad });
        true
    }

    /// Does what is due and sends what there is to send.
    pub fn drive(&mut self, now: Instant, subnet: &mut Subnet) {
        if self.sm.poll_timeout().is_some_and(|at| at <= now) {
            self.sm.handle_timeout(now);
        }
        while let Some(out) = self.waiting.pop_front().or_else(|| self.sm.poll_transmit(now)) {
            if !self.send(now, &out, subnet) {
                self.waiting.push_front(out);
                break;
            }
        }
    }

    /// `false` where the port's queue is full; what else stops a packet, a timeout finds out.
    fn send(&mut self, now: Instant, out: &SmMad, subnet: &mut Subnet) -> bool {
        let to = match out.address {
            Address::Smi(dlid) => {
                subnet.send_smp(now, self.port, dlid, &out.mad);
                return true;
            }
            Address::Gsi(to) => to,
        };
        let Some(values) = subnet.port_values(self.port) else { return true };
        let own = super::gid_of(values.gid_prefix, values.guids[0]);
        let route = MadRoute {
            dest_qp: to.qpn,
            pkey: to.pkey,
            gids: to.gid.map(|gid| (own, gid)),
            ..MadRoute::services(values.lid, to.lid, to.sl)
        };
        let full = |reason| matches!(reason, Refusal::Full(_));
        !subnet.send(now, self.port, route.packet(&out.mad)).is_err_and(|refused| full(refused.reason))
    }

    /// When to call [`HostedSm::drive`] at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.sm.poll_timeout()
    }

    /// The LID of subnet administration, 0 before the first sweep.
    pub fn lid(&self, subnet: &Subnet) -> Lid {
        subnet.port_values(self.port).map_or(Lid(0), |values| values.lid)
    }
}
