//! The engine: what comes in at the doors goes into the subnet, and what the subnet has to say goes to whom it is for.
//!
//! One thread runs everything. A turn drains the subnet, lets the subnet manager and the doors send what they have, and then
//! waits for whatever comes first: a message, or the subnet's next event. Virtual time is the wall clock's: a turn that comes
//! late works off what has happened meanwhile, in order.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use everywire_fabric::ib::mad_packet::MadRoute;
use everywire_fabric::ib::{Credit, Event, PortId};
use everywire_wire::mad::{MadHeader, RmppHeader, class, rmpp};
use everywire_wire::smp::codes::port_state;
use everywire_wire::{Bth, Lnh, Lrh, MAD_LEN, Mad, Qpn, grh::Grh};

use super::FabricEvent;
use super::built::Built;
use super::control::{self, Cable, Request};
use super::door::{Door, DoorEvent};
use super::ibsim::{Ibsim, IbsimEvent};
use super::mads::{Backlog, To};
use super::ready::Ready;
use super::seat::Seat;
use super::snapshot;
use super::ways::Ways;
use crate::event::Signal;
use crate::fabric_port::message::PortValues;

/// Most events of the subnet that are handled before the doors get a turn.
const EVENTS: usize = 256;
/// Segments that may follow an acknowledged one.
const SINK_WINDOW: u32 = 64;
/// Where in a MAD the header of subnet administration is, after the one of RMPP.
const SA_HEADER: std::ops::Range<usize> = 36..56;

/// Everything that runs.
pub(super) struct Engine {
    pub built: Built,
    pub door: Option<Door>,
    pub control: Option<control::Server>,
    pub ibsim: Option<Ibsim>,
    /// Our subnet managers, one a subnet.
    pub seats: Vec<Seat>,
    pub backlog: Backlog,
    pub stop: Arc<Signal>,
    pub tell: Box<dyn FnMut(FabricEvent) + Send>,
    /// Whether it has been told that the fabric is up.
    pub ready: bool,
    /// Which hosts the subnet manager cannot reach.
    pub ways: Ways,
}

impl Engine {
    /// Runs until it is told to stop.
    pub(super) fn run(&mut self) {
        let mut ready = Ready::default();
        while !self.stop.is_set() {
            let moved = self.turn(&ready);
            let deadline = if moved { Some(Instant::now()) } else { self.deadline() };
            ready = Ready::wait(self.fds(), deadline);
        }
        if let Some(door) = &mut self.door {
            door.close();
        }
    }

    /// Whether anything happened.
    fn turn(&mut self, ready: &Ready) -> bool {
        let now = Instant::now();
        let mut moved = false;
        if !ready.is_empty() {
            moved |= self.hear(ready, now);
        }
        if let Some(ibsim) = &mut self.ibsim {
            moved |= ibsim.turn(ready, &mut self.built, &mut self.backlog, now);
        }
        for seat in &mut self.seats {
            moved |= seat.turn(&mut self.built, now);
        }
        moved |= self.drain(now);
        if moved && !self.ready {
            self.look_whether_up();
        }
        if let Some(door) = &mut self.door {
            moved |= door.flush(ready, &mut self.built, now);
        }
        if let Some(ibsim) = &mut self.ibsim {
            moved |= ibsim.flush_all(ready, &mut self.built, now);
        }
        self.tell_all(now);
        moved
    }

    fn hear(&mut self, ready: &Ready, now: Instant) -> bool {
        let mut moved = false;
        if let Some(door) = &mut self.door {
            moved |= door.receive(ready, &mut self.built, now);
        }
        // It has few users, who are answered from everything else.
        if let Some(mut control) = self.control.take() {
            moved |= control.turn(|request| self.answer(request, now));
            self.control = Some(control);
        }
        moved
    }

    fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let stop = self.stop.fd().map(|fd| (fd, false));
        let door = self.door.iter().flat_map(Door::fds);
        let control = self.control.iter().flat_map(control::Server::fds);
        let ibsim = self.ibsim.iter().flat_map(Ibsim::fds);
        stop.into_iter().chain(door).chain(control).chain(ibsim)
    }

    fn deadline(&self) -> Option<Instant> {
        let door = self.door.as_ref().and_then(Door::timeout);
        let ibsim = self.ibsim.as_ref().and_then(Ibsim::timeout);
        let seat = self.seats.iter().filter_map(Seat::timeout);
        let ways = self.ways.timeout();
        self.built.subnet.poll_timeout().into_iter().chain(door).chain(ibsim).chain(seat).chain(ways).min()
    }

    /// Hands out what has happened in the subnet; whether anything did.
    fn drain(&mut self, now: Instant) -> bool {
        for count in 0..EVENTS {
            let Some(event) = self.built.subnet.poll(now) else { return count > 0 };
            match event {
                Event::Deliver { port, packet, credit, .. } => {
                    if is_for_gsi(&packet) && self.take_gmp(port, &packet, now) {
                        credit.into_iter().for_each(|credit| self.built.subnet.consume(now, credit));
                    } else {
                        self.deliver(port, packet, credit, now);
                    }
                }
                Event::Smp { port, ref mad, slid, .. } => {
                    let taken = self.ibsim.as_mut().is_some_and(|ibsim| ibsim.smp(port, slid, mad));
                    if !taken {
                        self.seats.iter_mut().any(|seat| seat.handle(now, &event));
                    }
                }
                Event::PortChanged { port, ref values } => {
                    self.seats.iter_mut().for_each(|seat| {
                        seat.handle(now, &event);
                    });
                    if let Some(client) = self.door.as_mut().and_then(|door| door.client(port)) {
                        client.tell_port(PortValues::of(values));
                    }
                }
                Event::Room { port, sl } => {
                    if let Some(client) = self.door.as_mut().and_then(|door| door.client(port)) {
                        client.room(&mut self.built.subnet, now, port, sl);
                    }
                    self.backlog.room(&mut self.built.subnet, now, port);
                }
            }
        }
        true
    }

    /// A packet for the program at a port; without one it is nobody's.
    fn deliver(&mut self, port: PortId, packet: Bytes, credit: Option<Credit>, now: Instant) {
        match self.door.as_mut().and_then(|door| door.client(port)) {
            Some(client) => client.deliver(packet, credit),
            None => credit.into_iter().for_each(|credit| self.built.subnet.consume(now, credit)),
        }
    }

    /// A MAD of QP1: for our subnet manager's administration, or for a client of ibsim. False if it is for neither.
    fn take_gmp(&mut self, port: PortId, packet: &Bytes, now: Instant) -> bool {
        let Ok((route, mad)) = MadRoute::parse(packet) else { return false };
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.port() == port && seat.wants(&mad)) {
            let (at, packet) = (now, packet.clone());
            return seat.handle(now, &Event::Deliver { port, at, packet, hops: 0, credit: None });
        }
        let Some(ibsim) = &mut self.ibsim else { return false };
        if let Some(ack) = acknowledgement(&mad).filter(|_| ibsim.is_for_client(port, &mad)) {
            // libumad2sim knows nothing of further segments; whoever sends them is to think that they have arrived.
            let to = To { sl: route.sl, pkey: route.pkey, qp: route.src_qp, ..To::lid(route.slid) };
            self.backlog.send(&mut self.built.subnet, now, port, to, &ack);
        }
        ibsim.gmp(port, &route, &mad)
    }

    /// Tells once that every link carries data.
    fn look_whether_up(&mut self) {
        let active = |port| self.built.subnet.state(port) == port_state::ACTIVE;
        let links = self.built.links.iter().zip(&self.built.plugged).filter(|(_, plugged)| **plugged);
        let up = links.filter_map(|(link, _)| self.built.subnet.ends(*link)).flatten().all(active);
        if up {
            self.ready = true;
            (self.tell)(FabricEvent::Ready);
        }
    }

    fn tell_all(&mut self, now: Instant) {
        for event in self.door.as_mut().map(Door::events).unwrap_or_default() {
            let event = match event {
                DoorEvent::Attached { port, pid } => {
                    FabricEvent::Attached { port: self.built.name(port), pid }
                }
                DoorEvent::Left { port, pid, why, link } => {
                    FabricEvent::Left { port: self.built.name(port), pid, why: format!("{why}{link}") }
                }
            };
            (self.tell)(event);
        }
        for event in self.ibsim.as_mut().map(Ibsim::events).unwrap_or_default() {
            let (port, what) = match event {
                IbsimEvent::Connected { pid, port } => (port, format!("process {pid} is connected")),
                IbsimEvent::Left { pid, port } => (port, format!("process {pid} has left")),
                IbsimEvent::IsSm { pid, port, is_sm: true } => {
                    (port, format!("process {pid} is a subnet manager"))
                }
                IbsimEvent::IsSm { pid, port, is_sm: false } => {
                    (port, format!("process {pid} is no longer a subnet manager"))
                }
            };
            (self.tell)(FabricEvent::Ibsim { port: self.built.name(port), what });
        }
        for event in self.seats.iter_mut().flat_map(Seat::events) {
            self.ways.want(now);
            (self.tell)(event);
        }
        // Another's manager knows itself whom it cannot reach.
        if let Some(ports) = self.ways.look(&self.built, now).filter(|_| !self.seats.is_empty()) {
            (self.tell)(FabricEvent::NoWay { ports });
        }
    }

    fn answer(&mut self, request: Request, now: Instant) -> Result<String, String> {
        match request {
            Request::Show => {
                let process = |port| self.door.as_ref().and_then(|door| door.process(port));
                let snapshot = snapshot::running::take(&mut self.built, process, &self.seats);
                serde_json::to_string(&snapshot).map_err(|e| e.to_string())
            }
            Request::Link { up, cable } => self
                .set_link(&cable, up, now)
                .map(|news| if news { "" } else { control::AS_IT_WAS }.to_owned()),
        }
    }

    /// Pulls a cable or puts it back; false if it was so already.
    fn set_link(&mut self, cable: &Cable, up: bool, now: Instant) -> Result<bool, String> {
        let plan = &self.built.plan;
        let port = plan.port(&cable.port)?;
        let peer = cable.peer.as_deref().map(|peer| plan.port(peer)).transpose()?;
        let name = |port| plan.port_name(port);
        let (link, far) = plan.peer(port).ok_or_else(|| format!("{} has no cable", name(port)))?;
        if let Some(peer) = peer.filter(|peer| *peer != far) {
            let (port, peer, far) = (name(port), name(peer), name(far));
            return Err(format!("no cable from {port} to {peer}; that of {port} goes to {far}"));
        }
        let news = self.built.plugged[link] != up;
        self.built.plugged[link] = up;
        let id = self.built.links[link];
        let done = match up {
            true => self.built.subnet.link_up(now, id),
            false => self.built.subnet.link_down(now, id),
        };
        self.ways.want(now);
        if news {
            (self.tell)(FabricEvent::Link { port: self.built.plan.port_name(port), up });
        }
        done.map(|_| news).map_err(|e| e.to_string())
    }
}

/// Whether a packet goes to QP1.
pub(super) fn is_for_gsi(packet: &[u8]) -> bool {
    let at = match Lrh::parse(packet).map(|lrh| lrh.lnh) {
        Ok(Lnh::IbaLocal) => Lrh::LEN,
        Ok(Lnh::IbaGlobal) => Lrh::LEN + Grh::LEN,
        _ => return false,
    };
    packet.get(at..).and_then(|rest| Bth::parse(rest).ok()).is_some_and(|bth| bth.dest_qp == Qpn::GSI)
}

/// The acknowledgement of a segment of an answer (IBTA §13.6.2); `None` for what needs none.
fn acknowledgement(mad: &Mad) -> Option<Mad> {
    let header = MadHeader::parse(mad).ok()?;
    let mut rmpp = RmppHeader::parse(&mad[MadHeader::LEN..]).ok()?;
    if header.mgmt_class != class::SUBN_ADM || !rmpp.active || rmpp.rmpp_type != rmpp::DATA {
        return None;
    }
    (rmpp.rmpp_type, rmpp.first, rmpp.last) = (rmpp::ACK, false, false);
    rmpp.data2 = rmpp.data1.saturating_add(SINK_WINDOW);
    let mut ack = [0; MAD_LEN];
    ack[..MadHeader::LEN].copy_from_slice(&mad[..MadHeader::LEN]);
    rmpp.emit(&mut ack[MadHeader::LEN..]);
    // Subnet administration's own header: its key, and where in a table the records are.
    ack[SA_HEADER].copy_from_slice(&mad[SA_HEADER]);
    Some(ack)
}

/// Seed of what the subnet decides by chance; nothing that matters to security.
pub(super) fn seed() -> io::Result<u64> {
    crate::driver::entropy()
}
