//! Directed routes: how an SMP finds its way by port numbers before any LID is given.
//!
//! Read IBTA §14.2.2 first (C14-9 to C14-13: what each node does with the hop pointer, out and back). A route may have a
//! LID-routed part before (DrSLID) and after (DrDLID) the directed one; the permissive LID stands for none.

use everywire_wire::mad::method;
use everywire_wire::smp::{DIRECTION, MAX_HOPS, Smp};
use everywire_wire::{Lid, Mad};

use crate::clock::SimTime;
use crate::ib::mad_packet::MadRoute;
use crate::ib::subnet::Subnet;

impl Subnet {
    /// A directed-route SMP has come in by the port `index`.
    pub(super) fn directed(&mut self, now: SimTime, index: u32, smp: Smp, slid: Lid) {
        if usize::from(smp.hop_count()) > MAX_HOPS {
            return self.drop_smp(index);
        }
        if smp.is_returning() {
            self.directed_back(now, index, smp, slid);
        } else {
            self.directed_out(now, index, smp, slid);
        }
    }

    fn directed_out(&mut self, now: SimTime, index: u32, mut smp: Smp, slid: Lid) {
        let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
        let number = self.ports[index as usize].number;
        if count > 0 && pointer == 0 {
            // Only its origin sees it so, and where a LID-routed part ends, the node where the directed one begins. C14-9.
            if smp.dr_slid == Lid::PERMISSIVE {
                return self.drop_smp(index);
            }
            smp.set_hop_pointer(1);
            self.pass_on(now, index, smp.initial_path[1], &smp);
        } else if pointer < count {
            smp.return_path[usize::from(pointer)] = number;
            smp.set_hop_pointer(pointer + 1);
            self.pass_on(now, index, smp.initial_path[usize::from(pointer) + 1], &smp);
        } else if pointer == count {
            if count > 0 {
                smp.return_path[usize::from(pointer)] = number;
            }
            smp.set_hop_pointer(pointer + 1);
            if smp.dr_dlid == Lid::PERMISSIVE {
                self.local_smp(now, index, smp, slid);
            } else {
                self.leave_directed_part(now, index, smp, smp.dr_dlid);
            }
        } else if pointer == count + 1 {
            // The LID-routed part after the directed one ends here.
            self.local_smp(now, index, smp, slid);
        } else {
            self.drop_smp(index);
        }
    }

    fn directed_back(&mut self, now: SimTime, index: u32, mut smp: Smp, slid: Lid) {
        let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
        if (2..=count + 1).contains(&pointer) {
            smp.set_hop_pointer(pointer - 1);
            self.pass_on(now, index, smp.return_path[usize::from(pointer) - 1], &smp);
        } else if pointer == 1 {
            smp.set_hop_pointer(0);
            if smp.dr_slid == Lid::PERMISSIVE || !self.ports[index as usize].in_switch {
                self.local_smp(now, index, smp, slid);
            } else {
                self.leave_directed_part(now, index, smp, smp.dr_slid);
            }
        } else if pointer == 0 {
            self.local_smp(now, index, smp, slid);
        } else {
            self.drop_smp(index);
        }
    }

    /// A switch sends it on by a port of the path. An adapter has nothing to pass on (C14-9).
    fn pass_on(&mut self, now: SimTime, index: u32, number: u8, smp: &Smp) {
        let node = self.node_of(index);
        if node.switch().is_none() || number == 0 || number > node.ports {
            return self.drop_smp(index);
        }
        let out = node.port(number);
        let route = MadRoute::management(Lid::PERMISSIVE, Lid::PERMISSIVE);
        self.send_on_vl15(now, out, route, &smp.to_mad());
    }

    /// The rest of the way is by LID.
    fn leave_directed_part(&mut self, now: SimTime, index: u32, smp: Smp, dlid: Lid) {
        let node = self.node_of(index);
        let own = if node.switch().is_some() { node.port(0) } else { index };
        let port = &self.ports[own as usize];
        if port.has_lid(dlid) {
            return self.local_smp(now, index, smp, Lid::PERMISSIVE);
        }
        let route = MadRoute::management(port.info.lid, dlid);
        self.send_on_vl15(now, index, route, &smp.to_mad());
    }

    /// An answer, whose request came in by the port `index`: along the return path.
    pub(super) fn answer_directed(&mut self, now: SimTime, index: u32, mut smp: Smp, slid: Lid) {
        smp.header.status |= DIRECTION;
        let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
        if count == 0 && slid == Lid::PERMISSIVE {
            smp.set_hop_pointer(0);
            return self.local_smp(now, index, smp, slid);
        }
        if smp.dr_dlid != Lid::PERMISSIVE || count == 0 {
            // C14-13: the LID-routed part first.
            let node = self.node_of(index);
            let own = if node.switch().is_some() { node.port(0) } else { index };
            let route = MadRoute::management(self.ports[own as usize].info.lid, slid);
            self.send_on_vl15(now, index, route, &smp.to_mad());
            return;
        }
        if pointer == 0 || usize::from(pointer) > MAX_HOPS + 1 {
            return self.drop_smp(index);
        }
        smp.set_hop_pointer(pointer - 1);
        let number = smp.return_path[usize::from(pointer) - 1];
        let node = self.node_of(index);
        if number == 0 || number > node.ports {
            return self.drop_smp(index);
        }
        let out = node.port(number);
        let dlid = if count == 1 && smp.dr_slid != Lid::PERMISSIVE { smp.dr_slid } else { Lid::PERMISSIVE };
        let slid = if dlid == Lid::PERMISSIVE { dlid } else { smp.dr_dlid };
        self.send_on_vl15(now, out, MadRoute::management(slid, dlid), &smp.to_mad());
    }

    /// A MAD that a subnet manager, or a tool, sends from the QP0 of an adapter's port or of a switch. False if it goes nowhere.
    pub(in crate::ib) fn originate_smp(&mut self, now: SimTime, index: u32, dlid: Lid, mad: &Mad) -> bool {
        let Ok(mut smp) = Smp::from_mad(mad) else { return false };
        let lid = self.ports[index as usize].info.lid;
        if !smp.is_directed() {
            if self.ports[index as usize].has_lid(dlid) {
                self.local_smp(now, index, smp, lid);
                return true;
            }
            return self.send_on_vl15(now, index, MadRoute::management(lid, dlid), mad);
        }
        if usize::from(smp.hop_count()) > MAX_HOPS {
            return false;
        }
        if smp.is_returning() || smp.header.method & method::RESPONSE_BIT != 0 {
            smp.header.status &= !DIRECTION;
            self.answer_directed(now, index, smp, dlid);
            return true;
        }
        if smp.dr_slid != Lid::PERMISSIVE {
            // A LID-routed part comes first.
            return self.send_on_vl15(now, index, MadRoute::management(lid, dlid), mad);
        }
        if smp.hop_pointer() != 0 {
            return false;
        }
        if smp.hop_count() == 0 {
            self.directed_out(now, index, smp, Lid::PERMISSIVE);
            return true;
        }
        let number = smp.initial_path[1];
        let node = self.node_of(index);
        if number == 0 || number > node.ports {
            return false;
        }
        let out = node.port(number);
        smp.set_hop_pointer(1);
        let route = MadRoute::management(Lid::PERMISSIVE, Lid::PERMISSIVE);
        self.send_on_vl15(now, out, route, &smp.to_mad())
    }

    fn drop_smp(&mut self, index: u32) {
        self.ports[index as usize].counters.vl15_dropped += 1;
    }
}
