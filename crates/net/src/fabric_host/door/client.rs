//! One attached program: its credits, and the packets that wait on either side.
//!
//! Whatever the program says is always read: its credits are the only thing that lets what waits for it go. So all that it can
//! make wait here is bounded otherwise: packets from the wire by the port's buffers, packets to itself by the credits that it
//! gets back only when they are delivered, answers by a number.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use bytes::Bytes;
use everywire_fabric::ib::{Credit, PortId, Refusal, Subnet, Violation};
use everywire_wire::vcrc::check_length;
use everywire_wire::{Lid, Lrh};

use super::super::built::Built;
use super::super::engine::is_for_gsi;
use super::super::ready::Ready;
use super::{Departure, resolve};
use crate::fabric_port::channel::{BATCH, Channel};
use crate::fabric_port::credits::Credits;
use crate::fabric_port::message::{LANES, LEVELS, Message, PortValues, lane_of};

/// Answers that wait for a program; those beyond are lost, and their askers ask again.
const MAX_ANSWERS: usize = 1024;
/// Packets that wait for a program and hold no room that somebody waits for: MADs to itself. Those beyond are lost, as MADs
/// may be (IBTA §13.4).
const MAX_LOOSE: usize = 4096;
/// Most bytes of a packet besides its payload (IBTA §7.7.8 and the checks).
const MAX_HEADERS: usize = 126;
/// Batches taken from one program in one turn.
const BATCHES: usize = 4;

/// What becomes free once a packet is delivered.
#[derive(Debug)]
enum Room {
    /// The port's buffer.
    Port(Credit),
    /// The program's own credit: it has sent the packet to itself.
    Program,
    /// Nothing.
    None,
}

/// A packet that waits for the program.
#[derive(Debug)]
struct Held {
    packet: Bytes,
    room: Room,
}

/// An attached program.
#[derive(Debug)]
pub(crate) struct Client {
    channel: Channel,
    pub(crate) pid: i32,
    credits: Credits,
    /// The port's values, as the program is told them.
    values: PortValues,
    /// The program does not know them yet.
    news: bool,
    /// Packets for the program.
    outgoing: [VecDeque<Held>; LANES],
    /// How many of them free nothing.
    loose: usize,
    /// Packets for the port, which has no room.
    incoming: [VecDeque<Bytes>; LANES],
    /// Answers for the program.
    answers: VecDeque<Vec<u8>>,
    /// The message that the socket had no room for.
    stuck: Option<Vec<u8>>,
    /// The socket is full.
    blocked: bool,
    /// Packets that the port did not take: not active, too long, not whole; and MADs beyond what may wait.
    pub(crate) refused: u64,
    /// Packets that name another port as their source.
    pub(crate) foreign: u64,
}

impl Client {
    pub(crate) fn new(channel: Channel, pid: i32, values: PortValues) -> Client {
        Client {
            channel,
            pid,
            credits: Credits::default(),
            values,
            news: false,
            outgoing: std::array::from_fn(|_| VecDeque::new()),
            loose: 0,
            incoming: std::array::from_fn(|_| VecDeque::new()),
            answers: VecDeque::new(),
            stuck: None,
            blocked: false,
            refused: 0,
            foreign: 0,
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Whether to watch for room in the socket.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// A packet for the program.
    pub(crate) fn deliver(&mut self, packet: Bytes, credit: Option<Credit>) {
        let room = match credit {
            Some(credit) => Room::Port(credit),
            None if self.loose >= MAX_LOOSE => {
                self.refused += 1;
                return;
            }
            None => Room::None,
        };
        self.loose += usize::from(matches!(room, Room::None));
        self.hold(packet, room);
    }

    fn hold(&mut self, packet: Bytes, room: Room) {
        let lane = lane_of(&packet).map_or(0, usize::from);
        self.outgoing[lane].push_back(Held { packet, room });
    }

    /// The port's values have changed. A program that does not listen is told the latest only, yet nothing that was asked of
    /// it is forgotten.
    pub(crate) fn tell_port(&mut self, values: PortValues) {
        let reregister = values.reregister || self.news && self.values.reregister;
        self.values = PortValues { reregister, ..values };
        self.news = true;
    }

    /// A last word; it may not arrive.
    pub(crate) fn refuse(&mut self, text: &str) {
        let _ = self.channel.send(&Message::Refused(text).bytes());
    }

    /// Takes what the program says; whether there was anything.
    pub(super) fn receive(
        &mut self,
        built: &mut Built,
        now: Instant,
        port: PortId,
    ) -> Result<bool, Departure> {
        let mut progress = false;
        for _ in 0..BATCHES {
            let count = self.channel.receive().map_err(|_| Departure::Died)?;
            progress |= count > 0;
            for index in 0..count {
                let message = Message::parse(self.channel.message(index));
                match message.ok_or(Departure::Broke("a message that is none of this protocol"))? {
                    Message::Packet(packet) => {
                        let lane = lane_of(packet).ok_or(Departure::Broke("a packet without a header"))?;
                        let packet = Bytes::copy_from_slice(packet);
                        if !self.credits.received(lane) {
                            return Err(Departure::Broke("a packet without credit for it"));
                        }
                        self.offer(&mut built.subnet, now, port, lane, packet);
                    }
                    Message::Credit { lane, total } => {
                        if !self.credits.granted(lane, total) {
                            return Err(Departure::Broke("credits that go back, or beyond the window"));
                        }
                    }
                    Message::Resolve { token, ip } => {
                        if self.answers.len() < MAX_ANSWERS {
                            let (gid, attached, port) = resolve(built, ip);
                            let answer = Message::Resolved { token, gid, attached, port: &port };
                            self.answers.push_back(answer.bytes());
                        }
                    }
                    Message::WrongKey { is_qkey, head } => {
                        if let Ok(violation) = Violation::of_dropped(is_qkey, head) {
                            built.subnet.report_violation(now, port, &violation);
                        }
                    }
                    Message::Bye => return Err(Departure::Orderly),
                    _ => return Err(Departure::Broke("a message that only a fabric sends")),
                }
            }
            if count < BATCH {
                break;
            }
        }
        Ok(progress)
    }

    /// Gives a packet to the port, or lets it wait behind others of its lane.
    fn offer(&mut self, subnet: &mut Subnet, now: Instant, port: PortId, lane: u8, packet: Bytes) {
        let queue = usize::from(lane);
        if !self.incoming[queue].is_empty() {
            return self.incoming[queue].push_back(packet);
        }
        // What an adapter sends has its own address; the LRH's last two bytes (IBTA §7.7).
        let source = packet.get(6..Lrh::LEN).map(|slid| Lid(u16::from_be_bytes([slid[0], slid[1]])));
        if !source.is_some_and(|slid| self.is_own(slid)) {
            self.foreign += 1;
            self.credits.consumed(lane);
            return;
        }
        if self.is_to_itself(subnet, port, &packet) {
            return self.hold(packet, Room::Program);
        }
        match subnet.send(now, port, packet) {
            Ok(()) => {}
            Err(refused) if matches!(refused.reason, Refusal::Full(_)) => {
                return self.incoming[queue].push_back(refused.packet);
            }
            Err(_) => self.refused += 1,
        }
        self.credits.consumed(lane);
    }

    /// Whether a LID is one of the port's.
    fn is_own(&self, lid: Lid) -> bool {
        let mask = !((1u16 << self.values.lmc) - 1);
        lid.is_unicast() && lid.0 & mask == self.values.lid.0
    }

    /// Whether a packet comes straight back, as the port would give it: it is sound and for one of the port's own LIDs. The
    /// port itself sees to those that it would refuse, and to management, some of which it answers.
    fn is_to_itself(&self, subnet: &Subnet, port: PortId, packet: &[u8]) -> bool {
        let Ok(lrh) = check_length(packet) else { return false };
        self.is_own(lrh.dlid)
            && usize::from(lrh.vl) < LEVELS - 1
            && packet.len() <= self.values.mtu.bytes() + MAX_HEADERS
            && !is_for_gsi(packet)
            && subnet.can_send(port, lrh.sl)
    }

    /// The port has room on a service level.
    pub(crate) fn room(&mut self, subnet: &mut Subnet, now: Instant, port: PortId, sl: u8) {
        let lane = usize::from(sl) % LEVELS;
        let mut waiting = std::mem::take(&mut self.incoming[lane]);
        while let Some(packet) = waiting.pop_front() {
            self.offer(subnet, now, port, lane as u8, packet);
            if !self.incoming[lane].is_empty() {
                // Full again: what was refused stays first.
                self.incoming[lane].append(&mut waiting);
                return;
            }
        }
    }

    /// Sends what waits for the program; whether anything went.
    pub(super) fn flush(
        &mut self,
        ready: &Ready,
        subnet: &mut Subnet,
        now: Instant,
    ) -> Result<bool, Departure> {
        if self.blocked && !ready.has(self.channel.as_fd()) {
            return Ok(false);
        }
        let mut progress = false;
        loop {
            while let Some(message) = self.next_message() {
                if !self.channel.send(&message).map_err(|_| Departure::Died)? {
                    self.stuck = Some(message);
                    self.blocked = true;
                    return Ok(progress);
                }
                progress = true;
            }
            let (asked, went) = self.flush_packets(subnet, now)?;
            progress |= went > 0;
            self.blocked = went < asked;
            if asked < BATCH || self.blocked {
                return Ok(progress);
            }
        }
    }

    /// What else than packets there is to say, one at a time: the rest waits where newer words can replace it.
    pub(super) fn next_message(&mut self) -> Option<Vec<u8>> {
        if let Some(stuck) = self.stuck.take() {
            return Some(stuck);
        }
        if std::mem::take(&mut self.news) {
            return Some(Message::Port(Box::new(self.values.clone())).bytes());
        }
        match self.credits.next_grant() {
            Some((lane, total)) => Some(Message::Credit { lane, total }.bytes()),
            None => self.answers.pop_front(),
        }
    }

    /// Sends one batch of packets for which there is credit; how many were tried, and how many went.
    fn flush_packets(&mut self, subnet: &mut Subnet, now: Instant) -> Result<(usize, usize), Departure> {
        let mut lanes = [0u8; BATCH];
        let mut credits = self.credits.clone();
        let mut batch: [&[u8]; BATCH] = [&[]; BATCH];
        let mut asked = 0;
        // The management lane first, then the others from the highest service level on.
        'all: for lane in (0..LANES as u8).rev() {
            for held in &self.outgoing[usize::from(lane)] {
                if asked == BATCH {
                    break 'all;
                }
                if !credits.may_send(lane) {
                    break;
                }
                credits.sent(lane);
                (lanes[asked], batch[asked]) = (lane, &held.packet);
                asked += 1;
            }
        }
        let sent = self.channel.send_packets(batch[..asked].iter().copied());
        let went = sent.map_err(|_| Departure::Died)?;
        for lane in &lanes[..went] {
            self.credits.sent(*lane);
            match self.outgoing[usize::from(*lane)].pop_front().map(|held| held.room) {
                Some(Room::Port(credit)) => subnet.consume(now, credit),
                Some(Room::Program) => self.credits.consumed(*lane),
                Some(Room::None) => self.loose -= 1,
                None => {}
            }
        }
        Ok((asked, went))
    }

    /// Gives back the buffers of what the program did not take.
    pub(super) fn give_back(&mut self, subnet: &mut Subnet, now: Instant) {
        for held in self.outgoing.iter_mut().flat_map(|queue| queue.drain(..)) {
            if let Room::Port(credit) = held.room {
                subnet.consume(now, credit);
            }
        }
    }
}

/// What a program has to know of its port.
pub(crate) fn values(subnet: &Subnet, port: PortId) -> Option<PortValues> {
    subnet.port_values(port).map(|values| PortValues::of(&values))
}
