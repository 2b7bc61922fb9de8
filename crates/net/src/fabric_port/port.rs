//! A port of a running fabric, as an attached program has it: packets both ways, and what the fabric says of the port.
//!
//! Nothing is dropped here: a packet is taken from the device only while there is credit for its lane and room in the socket,
//! and received ones are handed over at once. The socket's readiness is all that the driver needs to sleep on; see
//! `message.rs` for the rules.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::iter::Peekable;
use std::os::fd::{AsFd, BorrowedFd};

use everywire_wire::Gid;

use super::channel::{BATCH, Channel};
use super::credits::Credits;
use super::message::{LANES, MAX_PACKET, Message, PortValues, lane_of};

/// Questions that wait for a full socket; the program asks again for those beyond.
const MAX_WAITING: usize = 64;
/// Packets of one lane that wait for its credit. A program that sends more on it waits with all its lanes.
const MAX_QUEUED: usize = 512;
/// Batches that are looked at behind a broken socket's error.
const LAST_BATCHES: usize = 64;

/// What the fabric says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The port's values have changed.
    Port(Box<PortValues>),
    /// The answer to a question; `None` where nobody has the address. And the port that has it, and whether a program is there.
    Resolved { token: u64, gid: Option<Gid>, attached: bool, port: String },
}

/// A port of a fabric.
#[derive(Debug)]
pub(crate) struct FabricPort {
    channel: Channel,
    credits: Credits,
    /// Messages that the socket has not taken yet.
    waiting: Vec<Vec<u8>>,
    said: Vec<Said>,
    /// Packets that wait for credit or for the socket, so that a lane that stands still stops no other.
    lanes: [VecDeque<Vec<u8>>; LANES],
    /// How many they are.
    queued: usize,
    /// The lane that is served first the next time.
    first: usize,
    /// The socket took less than was to be sent.
    full: bool,
    /// Why the fabric is gone, once it is.
    gone: Option<String>,
}

impl FabricPort {
    pub(super) fn new(channel: Channel) -> FabricPort {
        FabricPort {
            channel,
            credits: Credits::default(),
            waiting: Vec::new(),
            said: Vec::new(),
            lanes: std::array::from_fn(|_| VecDeque::new()),
            queued: 0,
            first: 0,
            full: false,
            gone: None,
        }
    }

    /// Receives what is there, hands over the packets, keeps what else is said; whether there may be more.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(&[u8])) -> bool {
        if self.gone.is_some() {
            return false;
        }
        match self.channel.receive() {
            Ok(count) => {
                (0..count).for_each(|index| self.take(index, &mut each));
                self.tell_credits();
                self.send_queued();
                count == BATCH
            }
            Err(error) => {
                self.broken(&error);
                false
            }
        }
    }

    /// The socket is broken. A fabric that ends while something of ours is unread resets it, and its last words are still
    /// there behind the error (unix(7) tells the error first, once).
    fn broken(&mut self, error: &io::Error) {
        let mut resets = 0;
        for _ in 0..LAST_BATCHES {
            let count = match self.channel.receive() {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset && resets == 0 => {
                    resets += 1;
                    continue;
                }
                Err(_) => break,
            };
            for index in 0..count {
                if let Some(Message::Refused(text)) = Message::parse(self.channel.message(index)) {
                    let text = text.to_owned();
                    self.lose(text);
                }
            }
        }
        self.lose(match error.kind() {
            io::ErrorKind::UnexpectedEof => "the fabric's process has ended".to_owned(),
            _ => error.to_string(),
        });
    }

    pub(super) fn take(&mut self, index: usize, each: &mut impl FnMut(&[u8])) {
        let broke = match Message::parse(self.channel.message(index)) {
            Some(Message::Packet(packet)) => match lane_of(packet) {
                Some(lane) if self.credits.received(lane) => {
                    each(packet);
                    self.credits.consumed(lane);
                    return;
                }
                _ => "it sent a packet without credit for it".to_owned(),
            },
            Some(Message::Credit { lane, total }) if self.credits.granted(lane, total) => return,
            Some(Message::Port(values)) => return self.said.push(Said::Port(values)),
            Some(Message::Resolved { token, gid, attached, port }) => {
                let gid = Some(gid).filter(|gid| !gid.is_zero());
                return self.said.push(Said::Resolved { token, gid, attached, port: port.to_owned() });
            }
            Some(Message::Refused(text)) => text.to_owned(),
            _ => "it broke the attach protocol".to_owned(),
        };
        self.lose(broke);
    }

    fn lose(&mut self, why: String) {
        self.gone.get_or_insert(why);
    }

    /// Why the fabric is gone, if it is: no packet comes or goes any more.
    pub(crate) fn gone(&self) -> Option<&str> {
        self.gone.as_deref()
    }

    /// What the fabric has said since.
    pub(crate) fn said(&mut self) -> Vec<Said> {
        std::mem::take(&mut self.said)
    }

    /// Sends packets, those of a lane in order, until the socket is full; how many are done with, from the first on. One for
    /// which there is no credit waits here for it and holds up its own lane alone, unless too many of that wait. One that is
    /// no packet of this fabric is left out, and so is everything once the fabric is gone.
    pub(crate) fn send<'a>(&mut self, packets: impl Iterator<Item = &'a [u8]>) -> usize {
        let mut done = 0;
        let mut packets = packets.peekable();
        self.full = false;
        self.flush();
        self.send_queued();
        while let Some(next) = packets.peek() {
            if self.gone.is_some() {
                return done + packets.count();
            }
            let Some(lane) = lane_of(next).filter(|_| next.len() <= MAX_PACKET) else {
                packets.next();
                done += 1;
                continue;
            };
            if !self.may_go(lane) {
                let queue = &mut self.lanes[usize::from(lane)];
                if queue.len() >= MAX_QUEUED {
                    return done;
                }
                queue.push_back(next.to_vec());
                self.queued += 1;
                packets.next();
                done += 1;
                continue;
            }
            if self.full || !self.waiting.is_empty() {
                return done;
            }
            done += self.send_batch(&mut packets);
        }
        done
    }

    /// Whether a packet need not wait behind others of its lane, or for credit.
    fn may_go(&self, lane: u8) -> bool {
        self.credits.may_send(lane) && self.lanes[usize::from(lane)].is_empty()
    }

    /// Sends packets up to the first that has to wait; how many have gone.
    fn send_batch<'a>(&mut self, packets: &mut Peekable<impl Iterator<Item = &'a [u8]>>) -> usize {
        let (mut batch, mut lanes, mut filled): ([&[u8]; BATCH], _, _) = ([&[]; BATCH], [0; BATCH], 0);
        let mut credits = self.credits.clone();
        while filled < BATCH
            && let Some(packet) = packets.peek()
            && let Some(lane) = lane_of(packet).filter(|_| packet.len() <= MAX_PACKET)
            && credits.may_send(lane)
            && self.lanes[usize::from(lane)].is_empty()
        {
            credits.sent(lane);
            (batch[filled], lanes[filled]) = (packet, lane);
            filled += 1;
            packets.next();
        }
        self.transmit(&batch[..filled], &lanes[..filled])
    }

    /// Sends packets for which there is credit; how many have gone.
    fn transmit(&mut self, batch: &[&[u8]], lanes: &[u8]) -> usize {
        let sent = self.channel.send_packets(batch.iter().copied());
        match sent {
            Ok(sent) => {
                lanes[..sent].iter().for_each(|lane| self.credits.sent(*lane));
                self.full |= sent < batch.len();
                sent
            }
            Err(error) => {
                self.broken(&error);
                0
            }
        }
    }

    /// Sends what waits for credit that has come, the lanes in turn; whether anything has gone.
    pub(crate) fn send_queued(&mut self) -> bool {
        let before = self.queued;
        while self.queued > 0 && self.waiting.is_empty() && self.gone.is_none() {
            let queues = std::mem::take(&mut self.lanes);
            let (mut batch, mut lanes, mut filled): ([&[u8]; BATCH], _, _) = ([&[]; BATCH], [0; BATCH], 0);
            let mut credits = self.credits.clone();
            for lane in (0..LANES).map(|step| (self.first + step) % LANES) {
                for packet in queues[lane].iter().take(BATCH - filled) {
                    if !credits.may_send(lane as u8) {
                        break;
                    }
                    credits.sent(lane as u8);
                    (batch[filled], lanes[filled]) = (packet, lane as u8);
                    filled += 1;
                }
            }
            self.full = false;
            let sent = self.transmit(&batch[..filled], &lanes[..filled]);
            self.lanes = queues;
            for lane in &lanes[..sent] {
                self.lanes[usize::from(*lane)].pop_front();
            }
            self.queued -= sent;
            self.first = (self.first + 1) % LANES;
            if sent < BATCH {
                break;
            }
        }
        self.queued < before
    }

    /// Asks for the GID of an address.
    pub(crate) fn resolve(&mut self, token: u64, ip: Gid) {
        self.say(Message::Resolve { token, ip }.bytes());
    }

    /// Tells the port's agent of a packet that was dropped for its key.
    pub(crate) fn report_wrong_key(&mut self, is_qkey: bool, head: &[u8]) {
        self.say(Message::WrongKey { is_qkey, head }.bytes());
    }

    fn say(&mut self, message: Vec<u8>) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push(message);
        }
        self.flush();
    }

    fn tell_credits(&mut self) {
        while self.waiting.len() < MAX_WAITING
            && let Some((lane, total)) = self.credits.next_grant()
        {
            self.waiting.push(Message::Credit { lane, total }.bytes());
        }
        self.flush();
    }

    /// Sends messages that wait.
    pub(crate) fn flush(&mut self) {
        while let Some(message) = self.waiting.first() {
            match self.channel.send(message) {
                Ok(true) => drop(self.waiting.remove(0)),
                Ok(false) => return,
                Err(error) => {
                    self.broken(&error);
                    return self.waiting.clear();
                }
            }
        }
    }

    /// Whether something waits for room in the socket, which epoll can tell of.
    pub(crate) fn is_full(&self) -> bool {
        (self.full || !self.waiting.is_empty()) && self.gone.is_none()
    }

    /// The socket.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for FabricPort {
    /// Leaves in order, so that the link stays up.
    fn drop(&mut self) {
        let _ = self.channel.send(&Message::Bye.bytes());
    }
}
