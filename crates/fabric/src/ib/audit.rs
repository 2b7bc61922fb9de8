//! The credit checker: books of every lane in every direction, kept apart from the credits that they check.
//!
//! A real port counts modulo 4096 and forgets; the ledger counts every block since the link came up. After each change it
//! holds that no sender is ahead of what it was granted, no buffer is over its capacity, and no grant goes beyond the room
//! there is. [`check`] then holds ports, wires and buffers of this moment against the ledger: every block that was sent is
//! on the wire, in a buffer, freed or known to be lost, and every block of a buffer is occupied, granted, or on its way to
//! be granted.

use std::collections::HashMap;

use super::config::PortId;
use super::events::Next;
use super::packet::{Hold, NONE};
use super::port::{Port, VL15};
use super::subnet::Subnet;

const MODULUS: u64 = 4096;

/// A lane whose books do not balance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("credits of {port:?} lane {vl}: {what}")]
pub struct CreditFault {
    /// The receiving port.
    pub port: PortId,
    /// Lane.
    pub vl: u8,
    /// What does not balance.
    pub what: String,
}

/// One lane in one direction, in blocks since the link came up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Books {
    capacity: u64,
    sent: u64,
    arrived: u64,
    /// Swallowed by the wire, or refused by the receiver.
    lost: u64,
    /// Of those, the ones that the receiver has learnt of.
    made_up: u64,
    freed: u64,
    /// The farthest limit that the receiver has told.
    granted: u64,
    /// The farthest that the sender has heard.
    heard: u64,
    /// In the hands of the host.
    given: u64,
}

/// The books of all lanes, by receiving port.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    books: HashMap<(u32, u8), Books>,
    fault: Option<(u32, u8, String)>,
}

impl Ledger {
    pub fn opened(&mut self, port: u32, state: &Port) {
        for (vl, receiver) in state.receiver.iter().enumerate().filter(|(_, r)| r.capacity > 0) {
            let books = Books { capacity: receiver.capacity.into(), ..Books::default() };
            self.books.insert((port, vl as u8), books);
        }
    }

    pub fn closed(&mut self, port: u32) {
        self.books.retain(|(p, _), _| *p != port);
    }

    /// `port` is the receiver's throughout.
    pub fn sent(&mut self, port: u32, vl: u8, blocks: u16) {
        self.change(port, vl, |b| b.sent += u64::from(blocks));
    }

    pub fn arrived(&mut self, port: u32, vl: u8, blocks: u16) {
        self.change(port, vl, |b| b.arrived += u64::from(blocks));
    }

    pub fn lost(&mut self, port: u32, vl: u8, blocks: u16) {
        self.change(port, vl, |b| b.lost += u64::from(blocks));
    }

    pub fn freed(&mut self, port: u32, vl: u8, blocks: u16) {
        self.change(port, vl, |b| b.freed += u64::from(blocks));
    }

    pub fn given(&mut self, hold: Hold) {
        self.change(hold.port, hold.vl, |b| b.given += u64::from(hold.blocks));
    }

    pub fn consumed(&mut self, hold: Hold) {
        self.change(hold.port, hold.vl, |b| b.given = b.given.saturating_sub(hold.blocks.into()));
    }

    /// The receiver has heard that the sender's count is `fctbs`.
    pub fn resynchronised(&mut self, port: u32, vl: u8, fctbs: u16) {
        self.change(port, vl, |b| b.made_up = unwrapped(b.arrived + b.made_up, fctbs) - b.arrived);
    }

    /// The receiver tells the limit `fccl`.
    pub fn granted(&mut self, port: u32, vl: u8, fccl: u16) {
        self.change(port, vl, |b| b.granted = unwrapped(b.granted, fccl));
    }

    /// The sender to `port` hears it.
    pub fn heard(&mut self, port: u32, vl: u8, fccl: u16) {
        self.change(port, vl, |b| b.heard = unwrapped(b.heard, fccl));
    }

    fn change(&mut self, port: u32, vl: u8, change: impl FnOnce(&mut Books)) {
        // Books of a link that is gone are closed: late events are of no account.
        let Some(books) = self.books.get_mut(&(port, vl)) else { return };
        change(books);
        if let (None, Err(what)) = (&self.fault, books.check()) {
            self.fault = Some((port, vl, format!("{what}: {books:?}")));
        }
    }
}

impl Books {
    /// What holds at every instant.
    fn check(&self) -> Result<(), &'static str> {
        let rules = [
            (self.sent <= self.heard, "more was sent than the sender heard was granted"),
            (self.heard <= self.granted, "the sender has heard more than was granted"),
            (self.granted <= self.limit(), "more was granted than there is room"),
            (self.arrived + self.lost <= self.sent, "more came in than was sent"),
            (self.made_up <= self.lost, "more was made up for than was lost"),
            (self.freed <= self.arrived, "more was freed than came in"),
            (self.arrived - self.freed.min(self.arrived) <= self.capacity, "the buffer is over its capacity"),
            (
                self.sent - (self.freed + self.lost).min(self.sent) <= self.capacity,
                "more is under way than fits",
            ),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, what)| Err(what))
    }

    /// The limit that the receiver would tell now.
    fn limit(&self) -> u64 {
        self.freed + self.made_up + self.capacity
    }
}

/// The number that `wrapped` stands for, at `from` or up to 4095 after it.
fn unwrapped(from: u64, wrapped: u16) -> u64 {
    from + (u64::from(wrapped) + MODULUS - from % MODULUS) % MODULUS
}

/// What is where at this moment, by receiving port and lane.
#[derive(Default)]
struct Census {
    on_wire: HashMap<(u32, u8), u64>,
    in_buffer: HashMap<(u32, u8), u64>,
    /// Flow control packets under way to the sender.
    on_the_way_back: HashMap<(u32, u8), u64>,
}

impl Census {
    fn take(subnet: &Subnet) -> Census {
        let mut census = Census::default();
        for next in subnet.events.iter() {
            match *next {
                Next::Arrive { port, packet, epoch } if subnet.ports[port as usize].epoch == epoch => {
                    let packet = subnet.packets.get(packet);
                    *census.on_wire.entry((port, packet.lane)).or_default() += u64::from(packet.blocks());
                }
                Next::FlowControl { port, epoch, vl, .. } if subnet.ports[port as usize].epoch == epoch => {
                    let receiver = subnet.ports[port as usize].peer();
                    *census.on_the_way_back.entry((receiver, vl)).or_default() += 1;
                }
                _ => {}
            }
        }
        let mut counted = Vec::new();
        let held = subnet.packets.iter().map(|(_, packet)| packet.hold);
        for hold in held.chain(subnet.ports.iter().map(|port| port.leaving)) {
            if hold.port == NONE || subnet.ports[hold.port as usize].epoch != hold.epoch {
                continue;
            }
            if hold.shared != NONE {
                if counted.contains(&hold.shared) {
                    continue;
                }
                counted.push(hold.shared);
            }
            *census.in_buffer.entry((hold.port, hold.vl)).or_default() += u64::from(hold.blocks);
        }
        census
    }
}

impl Subnet {
    /// Blocks of 64 bytes that a port may send on a data lane now; `None` for no such port or lane.
    pub fn credits(&self, port: PortId, vl: u8) -> Option<u16> {
        let port = &self.ports[self.index(port)? as usize];
        port.sender.get(usize::from(vl)).map(super::credits::Sender::available)
    }
}

pub(super) fn check(subnet: &Subnet) -> Result<(), CreditFault> {
    let Some(ledger) = &subnet.ledger else { return Ok(()) };
    let fault = |port: u32, vl: u8, what: String| CreditFault { port: subnet.port_id(port), vl, what };
    if let Some((port, vl, what)) = &ledger.fault {
        return Err(fault(*port, *vl, what.clone()));
    }
    let census = Census::take(subnet);
    for (&(port, vl), books) in &ledger.books {
        let at = |map: &HashMap<(u32, u8), u64>| map.get(&(port, vl)).copied().unwrap_or(0);
        let (on_wire, in_buffer) = (at(&census.on_wire), at(&census.in_buffer));
        let receiving = &subnet.ports[port as usize];
        let receiver = receiving.receiver[usize::from(vl)];
        let sender = subnet.ports[receiving.peer() as usize].sender[usize::from(vl)];
        let grant_is_coming = at(&census.on_the_way_back) > 0 || receiving.flow_control_due & 1 << vl != 0;
        let rules = [
            (vl != VL15, "lane 15 has books"),
            (books.sent == books.arrived + books.lost + on_wire, "sent = arrived + lost + on the wire"),
            (
                books.arrived == books.freed + in_buffer + books.given,
                "arrived = freed + in the buffer + host's",
            ),
            (u64::from(receiver.used) == in_buffer + books.given, "the receiver's own count of its buffer"),
            (u64::from(sender.fctbs) == books.sent % MODULUS, "the sender's FCTBS"),
            (u64::from(receiver.abr) == (books.arrived + books.made_up) % MODULUS, "the receiver's ABR"),
            (u64::from(sender.fccl) == books.heard % MODULUS, "the sender's FCCL"),
            (grant_is_coming || books.heard == books.limit(), "room that nobody is told of"),
        ];
        if let Some((_, what)) = rules.iter().find(|(holds, _)| !holds) {
            let what = format!("{what}: {books:?}, {on_wire} on the wire, {in_buffer} in the buffer");
            return Err(fault(port, vl, what));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One lane of 100 blocks, whose credits the sender has heard of.
    fn open() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.books.insert((0, 0), Books { capacity: 100, ..Books::default() });
        ledger.granted(0, 0, 100);
        ledger.heard(0, 0, 100);
        assert_eq!(ledger.fault, None);
        ledger
    }

    #[test]
    fn each_rule_is_noticed_when_it_is_broken() {
        type Deed = fn(&mut Ledger);
        let deeds: [(&str, Deed); 7] = [
            ("more was sent than the sender heard", |l| l.sent(0, 0, 101)),
            ("the sender has heard more than was granted", |l| l.heard(0, 0, 101)),
            ("more was granted than there is room", |l| l.granted(0, 0, 101)),
            ("more came in than was sent", |l| l.arrived(0, 0, 1)),
            ("more was freed than came in", |l| l.freed(0, 0, 1)),
            ("more was made up for than was lost", |l| l.resynchronised(0, 0, 1)),
            ("more came in than was sent", |l| {
                l.sent(0, 0, 60);
                l.arrived(0, 0, 60);
                l.lost(0, 0, 1);
            }),
        ];
        for (what, deed) in deeds {
            let mut ledger = open();
            deed(&mut ledger);
            let (_, _, found) = ledger.fault.unwrap_or_else(|| panic!("not noticed: {what}"));
            assert!(found.starts_with(what), "{found}");
        }
    }

    #[test]
    fn an_honest_lane_goes_round_its_counters_many_times() {
        let mut ledger = open();
        for n in 1..500u16 {
            ledger.sent(0, 0, 65);
            ledger.arrived(0, 0, 65);
            ledger.freed(0, 0, 65);
            let limit = ((u64::from(n) * 65 + 100) % MODULUS) as u16;
            ledger.granted(0, 0, limit);
            ledger.heard(0, 0, limit);
        }
        assert_eq!(ledger.fault, None);
    }
}
