//! One attached program: its credits, and the packets that wait on either side.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use bytes::Bytes;
use everywire_fabric::ib::{Credit, PortId, Refusal, Subnet};

use super::super::built::Built;
use super::super::ready::Ready;
use super::{Departure, resolve};
use crate::fabric_port::channel::{BATCH, Channel};
use crate::fabric_port::credits::Credits;
use crate::fabric_port::message::{LANES, LEVELS, Message, PortValues, lane_of};

/// Messages that wait for a program before nothing more is taken from it: answers are made by what it asks.
const MAX_PENDING: usize = 64;
/// Packets that wait for a program before nothing more is taken from it: what it sends to itself has no other bound.
const MAX_WAITING: usize = 4096;
/// Batches taken from one program in one turn.
const BATCHES: usize = 4;

/// A packet that waits for the program.
#[derive(Debug)]
struct Held {
    packet: Bytes,
    credit: Option<Credit>,
}

/// An attached program.
#[derive(Debug)]
pub(crate) struct Client {
    channel: Channel,
    pub(crate) pid: i32,
    credits: Credits,
    /// Packets for the program.
    outgoing: [VecDeque<Held>; LANES],
    waiting: usize,
    /// Packets for the port, which has no room.
    incoming: [VecDeque<Bytes>; LANES],
    /// Messages for the program that are no packets.
    pending: VecDeque<Vec<u8>>,
    /// The socket is full.
    blocked: bool,
    /// Packets that the port did not take: not active, too long, not whole.
    pub(crate) refused: u64,
}

impl Client {
    pub(crate) fn new(channel: Channel, pid: i32) -> Client {
        Client {
            channel,
            pid,
            credits: Credits::default(),
            outgoing: std::array::from_fn(|_| VecDeque::new()),
            waiting: 0,
            incoming: std::array::from_fn(|_| VecDeque::new()),
            pending: VecDeque::new(),
            blocked: false,
            refused: 0,
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
        let lane = lane_of(&packet).map_or(0, usize::from);
        self.outgoing[lane].push_back(Held { packet, credit });
        self.waiting += 1;
    }

    /// The port's values have changed.
    pub(crate) fn tell_port(&mut self, values: PortValues) {
        self.pending.push_back(Message::Port(Box::new(values)).bytes());
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
            if self.pending.len() >= MAX_PENDING || self.waiting >= MAX_WAITING {
                break;
            }
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
                        let gid = resolve(built, &built.subnet, ip);
                        self.pending.push_back(Message::Resolved { token, gid }.bytes());
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
        let queue = &mut self.incoming[usize::from(lane)];
        if !queue.is_empty() {
            queue.push_back(packet);
            return;
        }
        match subnet.send(now, port, packet) {
            Ok(()) => {}
            Err(refused) if matches!(refused.reason, Refusal::Full(_)) => {
                queue.push_back(refused.packet);
                return;
            }
            Err(_) => self.refused += 1,
        }
        self.credits.consumed(lane);
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
            while self.pending.len() < MAX_PENDING
                && let Some((lane, total)) = self.credits.next_grant()
            {
                self.pending.push_back(Message::Credit { lane, total }.bytes());
            }
            while let Some(message) = self.pending.front() {
                if !self.channel.send(message).map_err(|_| Departure::Died)? {
                    self.blocked = true;
                    return Ok(progress);
                }
                self.pending.pop_front();
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
            self.waiting -= 1;
            let held = self.outgoing[usize::from(*lane)].pop_front();
            if let Some(credit) = held.and_then(|held| held.credit) {
                subnet.consume(now, credit);
            }
        }
        Ok((asked, went))
    }

    /// Gives back the buffers of what the program did not take.
    pub(super) fn give_back(&mut self, subnet: &mut Subnet, now: Instant) {
        for held in self.outgoing.iter_mut().flat_map(|queue| queue.drain(..)) {
            if let Some(credit) = held.credit {
                subnet.consume(now, credit);
            }
        }
    }
}

/// What a program has to know of its port.
pub(crate) fn values(subnet: &Subnet, port: PortId) -> Option<PortValues> {
    subnet.port_values(port).map(|values| PortValues::of(&values))
}
