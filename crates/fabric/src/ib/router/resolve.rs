//! The LIDs that a router needs in the next subnet: asked of its administrator, believed for a while.
//!
//! Read IBTA §15.2.5.16 (PathRecord) first. Packets wait meanwhile in the router's own memory and have given their input buffers
//! back: the answer has to come in by such a buffer. How many wait is bounded, by destination and in all; more are dropped and
//! counted. Answers are taken from the port's own subnet manager only.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use everywire_wire::mad::{class, method, status};
use everywire_wire::sa::{PathRecord, Record, SaMad};
use everywire_wire::smp::codes::port_state;
use everywire_wire::{Gid, Lrh, QKey, Qpn};

use super::Way;
use crate::clock::SimTime;
use crate::ib::events::Next;
use crate::ib::mad_packet::MadRoute;
use crate::ib::packet::{Hold, Packet};
use crate::ib::port::VL15;
use crate::ib::subnet::Subnet;

/// Ways that are remembered, and asked for, at most.
const MAX_WAYS: usize = 4096;
/// Packets that wait for one way.
const MAX_WAITING: usize = 64;
/// Packets that wait in all.
const MAX_WAITING_IN_ALL: usize = 1024;
/// How long a way is believed.
const BELIEVED: Duration = Duration::from_secs(10);
/// How long it is believed that there is none.
const DISBELIEVED: Duration = Duration::from_secs(1);
/// Until a question is asked again.
const PATIENCE: Duration = Duration::from_millis(200);
/// How often a question is asked.
const TRIES: u32 = 6;

/// A destination: the port's number and a GID in its subnet.
type Destination = (u8, Gid);

#[derive(Debug)]
enum State {
    /// The administrator was asked under this transaction.
    Asked { transaction: u64, tries: u32, again_at: SimTime, waiting: VecDeque<u32> },
    /// What it has said, `None` for "nobody", and until when that holds.
    Told { way: Option<Way>, until: SimTime },
}

/// What a router knows of the subnets of its ports.
#[derive(Debug, Default)]
pub(super) struct Ways {
    by_destination: BTreeMap<Destination, State>,
    waiting: usize,
    last_transaction: u64,
}

impl Ways {
    /// Packets that wait.
    pub fn waiting(self) -> Vec<u32> {
        let all = self.by_destination.into_values();
        all.flat_map(|state| match state {
            State::Asked { waiting, .. } => waiting,
            State::Told { .. } => VecDeque::new(),
        })
        .collect()
    }

    /// Makes room for one more; `false` where everything is in use.
    fn has_room(&mut self, now: SimTime) -> bool {
        if self.by_destination.len() >= MAX_WAYS {
            self.by_destination.retain(
                |_, state| !matches!(state, State::Told { way, until } if way.is_none() || *until <= now),
            );
        }
        self.by_destination.len() < MAX_WAYS
    }
}

impl Subnet {
    /// A way that has been told and is still believed. One that nobody knows is none.
    pub(super) fn known_way(&mut self, now: SimTime, out: u32, gid: Gid) -> Option<Way> {
        let number = self.ports[out as usize].number;
        match self.router_at(out)?.ways.by_destination.get(&(number, gid))? {
            State::Told { way, until } if *until > now => *way,
            _ => None,
        }
    }

    /// Lets a packet wait for its way, which is asked for unless it is already.
    pub(super) fn await_way(&mut self, now: SimTime, out: u32, gid: Gid, id: u32) {
        let number = self.ports[out as usize].number;
        let Some(router) = self.router_at(out) else { return self.discard(now, id) };
        let ways = &mut router.ways;
        let denied = |state: &State| matches!(state, State::Told { way: None, until } if *until > now);
        if ways.by_destination.get(&(number, gid)).is_some_and(denied) {
            return self.drop_routed(now, out, id, |c| &mut c.unresolved);
        }
        let full = ways.waiting >= MAX_WAITING_IN_ALL
            || match ways.by_destination.get(&(number, gid)) {
                Some(State::Asked { waiting, .. }) => waiting.len() >= MAX_WAITING,
                Some(State::Told { .. }) => false,
                None => !ways.has_room(now),
            };
        if full {
            return self.drop_routed(now, out, id, |c| &mut c.too_many);
        }
        ways.waiting += 1;
        if let Some(State::Asked { waiting, .. }) = ways.by_destination.get_mut(&(number, gid)) {
            waiting.push_back(id);
        } else {
            ways.last_transaction += 1;
            let state = State::Asked {
                transaction: ways.last_transaction,
                tries: 0,
                again_at: now,
                waiting: VecDeque::from([id]),
            };
            ways.by_destination.insert((number, gid), state);
        }
        let hold = std::mem::replace(&mut self.packets.get_mut(id).hold, Hold::NOTHING);
        self.release(now, hold);
        let node = self.ports[out as usize].node;
        self.router_timeout(now, node);
    }

    /// Asks what is to be asked (again), gives up what nobody answers.
    pub(in crate::ib) fn router_timeout(&mut self, now: SimTime, node: u32) {
        let Some(router) = self.nodes[node as usize].router_mut() else { return };
        let (mut ask, mut give_up, mut next) = (Vec::new(), Vec::new(), None);
        for (destination, state) in &mut router.ways.by_destination {
            let State::Asked { transaction, tries, again_at, .. } = state else { continue };
            if *again_at <= now {
                if *tries >= TRIES {
                    give_up.push(*destination);
                    continue;
                }
                *tries += 1;
                *again_at = now.after(PATIENCE);
                ask.push((*destination, *transaction));
            }
            next = Some(next.map_or(*again_at, |at: SimTime| at.min(*again_at)));
        }
        if !ask.is_empty()
            && let Some(at) = next
        {
            self.events.push(at, Next::Router { node });
        }
        for destination in give_up {
            self.settle_way(now, node, destination, None);
        }
        for (destination, transaction) in ask {
            self.ask_way(now, node, destination, transaction);
        }
    }

    fn ask_way(&mut self, now: SimTime, node: u32, (number, dgid): Destination, transaction: u64) {
        let index = self.nodes[node as usize].port(number);
        let port = &self.ports[index as usize];
        let info = &port.info;
        let sgid = u128::from(info.gid_prefix) << 64 | u128::from(port.guids[0].0);
        let want = PathRecord {
            sgid: Gid(sgid.to_be_bytes()),
            dgid,
            reversible: true,
            numb_path: 1,
            ..PathRecord::default()
        };
        let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::REVERSIBLE | PathRecord::NUMB_PATH;
        let mad = SaMad::with_record(method::GET, &want, mask, transaction).to_mad();
        let route = MadRoute::services(info.lid, info.master_sm_lid, info.master_sm_sl);
        let vl = port.lane(0, info.master_sm_sl);
        let ready = port.state == port_state::ACTIVE && info.master_sm_lid.0 != 0;
        if !ready || vl == VL15 || port.queues[usize::from(vl)].len() >= crate::ib::SEND_QUEUE {
            return; // asked again in time
        }
        let bytes = route.packet(&mad);
        let Ok(lrh) = Lrh::parse(&bytes) else { return };
        let mut packet = Packet::new(bytes.into(), lrh, now);
        packet.set_vl(vl);
        let packet = self.packets.insert(packet);
        self.enqueue(now, index, vl, packet);
        self.transmit(now, index);
    }

    /// Whether a packet is an administrator's answer to a router.
    pub(super) fn take_way(&mut self, now: SimTime, input: u32, id: u32) -> bool {
        let Ok((route, mad)) = MadRoute::parse(&self.packets.get(id).clone().into_bytes()) else {
            return false;
        };
        let port = &self.ports[input as usize];
        let (number, node) = (port.number, port.node);
        let to_us = route.dest_qp == Qpn::GSI && route.qkey == QKey::GSI && mad[1] == class::SUBN_ADM;
        if !to_us || route.slid != port.info.master_sm_lid {
            return false;
        }
        let Ok(answer) = SaMad::from_mad(&mad) else { return false };
        let header = answer.header;
        if header.method != method::GET_RESP || header.attribute_id != PathRecord::ATTRIBUTE {
            return false;
        }
        if header.status == status::BUSY {
            return true; // asked again in time (IBTA §13.4.7)
        }
        let asked = |state: &State| matches!(state, State::Asked { transaction, .. } if *transaction == header.transaction_id);
        let Some(router) = self.router_at(input) else { return false };
        let mut all = router.ways.by_destination.iter();
        let found =
            all.find(|((of, _), state)| *of == number && asked(state)).map(|(destination, _)| *destination);
        let Some(destination) = found else { return true };
        let path = PathRecord::parse(&answer.data).ok();
        let path = path.filter(|path| header.status == 0 && path.dlid.is_unicast());
        let way = path.map(|path| Way { dlid: path.dlid, sl: path.sl & 15 });
        self.settle_way(now, node, destination, way);
        true
    }

    /// The administrator has spoken, or never will: what waited goes on, or is dropped.
    fn settle_way(&mut self, now: SimTime, node: u32, destination: Destination, way: Option<Way>) {
        let out = self.nodes[node as usize].port(destination.0);
        let Some(router) = self.router_at(out) else { return };
        let until = now.after(if way.is_some() { BELIEVED } else { DISBELIEVED });
        let before = router.ways.by_destination.insert(destination, State::Told { way, until });
        let Some(State::Asked { waiting, .. }) = before else { return };
        router.ways.waiting -= waiting.len();
        for id in waiting {
            match way {
                Some(way) => self.send_routed(now, out, out, id, way),
                None => self.drop_routed(now, out, id, |c| &mut c.unresolved),
            }
        }
    }

    /// Something about a router's port has changed: what it was told of that subnet is asked anew when it is needed.
    pub(in crate::ib) fn forget_ways(&mut self, index: u32) {
        let number = self.ports[index as usize].number;
        self.ports[index as usize].info.client_reregister = false;
        if let Some(router) = self.router_at(index) {
            let told = |of: u8, state: &State| of == number && matches!(state, State::Told { .. });
            router.ways.by_destination.retain(|(of, _), state| !told(*of, state));
        }
    }
}
