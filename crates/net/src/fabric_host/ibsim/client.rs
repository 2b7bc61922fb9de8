//! One client of ibsim: its port, and the requests of its that are not answered yet.
//!
//! The kernel's umad gives back a request that nobody has answered, with an error; so does this, since OpenSM counts what it
//! has on the wire and would wait for ever.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use everywire_fabric::ib::PortId;
use everywire_wire::mad::{MadHeader, class, method};
use everywire_wire::smp::attribute::SM_INFO;

use super::message::{Packet, TIMED_OUT};

/// High half of the high word of transaction ids of requests that clients send; the low byte is the client's number. The
/// client's own bits there come back with the answer.
const TAG: u16 = 0xe5c0;
/// Requests that a client may wait for.
const MAX_WAITING: usize = 4096;
/// How long agents of the subnet may take; they answer at once.
const AGENTS_TAKE: Duration = Duration::from_millis(150);
/// How long programs may take that answer requests, a subnet manager above all.
const PROGRAMS_TAKE: Duration = Duration::from_secs(4);

/// A request that is not answered yet.
struct Waiting {
    until: Instant,
    packet: Packet,
}

/// A client.
pub(super) struct Client {
    pub(super) number: u8,
    pub(super) pid: u32,
    /// Where it is.
    pub(super) port: PortId,
    /// Whether it is a subnet manager.
    pub(super) is_sm: bool,
    /// Whether it has asked for anything: a server of a vendor's class never does.
    pub(super) asks: bool,
    /// By transaction id without the tag, and class.
    waiting: BTreeMap<(u64, u8), Waiting>,
}

/// The client that a response's transaction id names.
pub(super) fn client_of(transaction_id: u64) -> Option<u8> {
    let tag = (transaction_id >> 48) as u16;
    (tag & 0xfff0 == TAG).then_some((tag & 0xf) as u8)
}

/// The transaction id without its highest 16 bits.
fn low(transaction_id: u64) -> u64 {
    transaction_id & 0xffff_ffff_ffff
}

/// Whether a MAD asks for an answer; that of a trap is TrapRepress.
pub(super) fn is_request(header: &MadHeader) -> bool {
    !is_answer(header) && header.method != method::SEND
}

/// Whether a MAD answers one, as the kernel sees it.
pub(super) fn is_answer(header: &MadHeader) -> bool {
    header.method & method::RESPONSE_BIT != 0 || header.method == method::TRAP_REPRESS
}

/// Both classes of subnet management are one, as far as answers go.
fn class_of(header: &MadHeader) -> u8 {
    header.mgmt_class & 0x7f
}

impl Client {
    pub(super) fn new(number: u8, pid: u32, port: PortId, is_sm: bool) -> Client {
        Client { number, pid, port, is_sm, asks: false, waiting: BTreeMap::new() }
    }

    /// Notes a request and tags it; a client that asks for too much at once loses its oldest.
    pub(super) fn asked(&mut self, now: Instant, header: &mut MadHeader, packet: &Packet) {
        self.asks = true;
        let by_program = match header.mgmt_class {
            class::SUBN_LID_ROUTED | class::SUBN_DIRECTED_ROUTE => {
                header.attribute_id == SM_INFO || header.method == method::TRAP
            }
            class::PERF_MGT => false,
            _ => true,
        };
        let until = now + if by_program { PROGRAMS_TAKE } else { AGENTS_TAKE };
        let key = (low(header.transaction_id), class_of(header));
        header.transaction_id = key.0 | u64::from(TAG | u16::from(self.number)) << 48;
        if self.waiting.len() >= MAX_WAITING {
            self.waiting.pop_first();
        }
        self.waiting.insert(key, Waiting { until, packet: *packet });
    }

    /// An answer: its transaction id as the client knows it. `None` where nobody waits for it any more.
    pub(super) fn answered(&mut self, header: &MadHeader) -> Option<u64> {
        let waiting = self.waiting.remove(&(low(header.transaction_id), class_of(header)))?;
        let sent = MadHeader::parse(&waiting.packet.mad).ok()?.transaction_id;
        Some(sent)
    }

    /// When the next request has waited long enough.
    pub(super) fn timeout(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.until).min()
    }

    /// Requests that have waited too long, as they come back.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<Packet> {
        let over = self.waiting.extract_if(.., |_, waiting| waiting.until <= now);
        over.map(|(_, waiting)| Packet { status: TIMED_OUT, ..waiting.packet }).collect()
    }
}

#[cfg(test)]
mod tests {
    use everywire_fabric::ib::NodeId;
    use everywire_wire::Lid;

    use super::*;

    fn request(transaction_id: u64) -> (MadHeader, Packet) {
        let header = MadHeader {
            base_version: 1,
            mgmt_class: class::SUBN_LID_ROUTED,
            method: method::GET,
            transaction_id,
            ..MadHeader::default()
        };
        let mut mad = [0; 256];
        header.emit(&mut mad);
        (header, Packet { dlid: Lid(1), slid: Lid(0), dqp: 0, sqp: 0, status: 0, mad })
    }

    #[test]
    fn answers_find_their_client_and_get_its_transaction_id_back() {
        let now = Instant::now();
        let mut client = Client::new(3, 1, PortId { node: NodeId(0), port: 1 }, false);
        let (mut header, packet) = request(0x1234_0007_dead_beef);
        client.asked(now, &mut header, &packet);
        assert_eq!(client_of(header.transaction_id), Some(3));
        assert_eq!(header.transaction_id & 0xffff_ffff_ffff, 0x0007_dead_beef);
        let response =
            MadHeader { method: method::GET_RESP, mgmt_class: class::SUBN_DIRECTED_ROUTE, ..header };
        assert_eq!(client.answered(&response), Some(0x1234_0007_dead_beef));
        assert_eq!(client.answered(&response), None, "once");
        assert_eq!(client_of(0x0003_0000_0000_0001), None);
    }

    /// OpenSM as a standby tells the master of its priority by a trap, and counts it as being on the wire until it is repressed.
    #[test]
    fn a_trap_is_answered_by_its_repress() {
        let now = Instant::now();
        let mut client = Client::new(0, 1, PortId { node: NodeId(0), port: 1 }, true);
        let (header, packet) = request(0x1270);
        let mut header = MadHeader { method: method::TRAP, ..header };
        assert!(is_request(&header));
        client.asked(now, &mut header, &packet);
        let repress = MadHeader { method: method::TRAP_REPRESS, ..header };
        assert!(is_answer(&repress));
        assert_eq!(client.answered(&repress), Some(0x1270));
    }

    #[test]
    fn what_nobody_answers_comes_back() {
        let now = Instant::now();
        let mut client = Client::new(0, 1, PortId { node: NodeId(0), port: 1 }, false);
        let (mut header, packet) = request(9);
        client.asked(now, &mut header, &packet);
        let due = client.timeout().unwrap();
        assert!(client.expired(now).is_empty());
        let back = client.expired(due);
        assert_eq!((back.len(), back[0].status, &back[0].mad), (1, TIMED_OUT, &packet.mad));
        assert_eq!(client.timeout(), None);
    }
}
