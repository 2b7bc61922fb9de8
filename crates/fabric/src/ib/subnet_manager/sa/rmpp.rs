//! Sending answers of any length: segments, the receiver's window, acknowledgements, and sending again.
//!
//! Read IBTA §13.6 first. The first segment goes out alone, as its acknowledgement opens the window. A payload length counts
//! the class header of each segment, as Linux does. Receiving transfers is the client's side and not here.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use everywire_wire::mad::{RmppHeader, rmpp};
use everywire_wire::sa::{DATA_LEN, RMPP_CLASS_HEADER_LEN, SaMad};
use everywire_wire::{Lid, Mad, Qpn};

use super::super::config::{MAX_TRANSFER_BYTES, MAX_TRANSFERS, MAX_TRANSFERS_PER_LID, SmConfig};
use super::{Address, GsiAddress, SmMad};

/// "No response time given".
const NO_RESPONSE_TIME: u8 = 31;
/// Segments that the window may open to, whatever the receiver says.
const MAX_WINDOW: u32 = 256;

#[derive(Debug)]
struct Transfer {
    to: GsiAddress,
    head: SaMad,
    bytes: Vec<u8>,
    segments: u32,
    /// Last segment acknowledged.
    acked: u32,
    /// Last segment that may be sent.
    window_last: u32,
    /// Next segment to send.
    next: u32,
    tries: u8,
    deadline: Instant,
}

/// LID and queue pair of the receiver, and transaction: whether its packets have a GRH does not matter.
type Key = (Lid, Qpn, u64);

fn key(peer: GsiAddress, mad: &SaMad) -> Key {
    (peer.lid, peer.qpn, mad.header.transaction_id)
}

/// Answers on their way.
#[derive(Debug)]
pub(super) struct Transfers {
    timeout: Duration,
    max_tries: u8,
    open: BTreeMap<Key, Transfer>,
    /// Of all that are open.
    bytes: usize,
    ready: VecDeque<Key>,
}

impl Transfers {
    pub fn new(config: &SmConfig) -> Transfers {
        let max_tries = config.retries.saturating_add(1);
        let (open, ready) = (BTreeMap::new(), VecDeque::new());
        Transfers { timeout: config.timeout, max_tries, open, bytes: 0, ready }
    }

    /// Whether an answer to `request` is on its way already; the request was repeated.
    pub fn is_answering(&self, from: GsiAddress, request: &SaMad) -> bool {
        self.open.contains_key(&key(from, request))
    }

    /// Whether there is room for one more answer to this LID, of how many bytes is not known yet.
    pub fn has_room(&self, lid: Lid) -> bool {
        let of_lid = self.open.range((lid, Qpn::new(0), 0)..).take_while(|((other, ..), _)| *other == lid);
        self.open.len() < MAX_TRANSFERS
            && self.bytes < MAX_TRANSFER_BYTES
            && of_lid.count() < MAX_TRANSFERS_PER_LID
    }

    fn remove(&mut self, key: &Key) {
        if let Some(transfer) = self.open.remove(key) {
            self.bytes -= transfer.bytes.len();
        }
    }

    /// Begins to send `bytes` of records under the header of `head`; `false` where too many are on their way, in all or to
    /// this LID, or too many bytes. A request that was repeated is being answered already.
    pub fn start(&mut self, now: Instant, to: GsiAddress, head: SaMad, bytes: Vec<u8>) -> bool {
        let key = key(to, &head);
        if self.open.contains_key(&key) {
            return true;
        }
        if !self.has_room(to.lid) || self.bytes + bytes.len() > MAX_TRANSFER_BYTES {
            return false;
        }
        let segments = bytes.len().div_ceil(DATA_LEN).max(1) as u32;
        let deadline = now + self.timeout;
        let transfer =
            Transfer { to, head, bytes, segments, acked: 0, window_last: 1, next: 1, tries: 1, deadline };
        self.bytes += transfer.bytes.len();
        self.open.insert(key, transfer);
        self.ready.push_back(key);
        true
    }

    /// The next segment.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<SmMad> {
        while let Some(&key) = self.ready.front() {
            let transfer = self.open.get_mut(&key);
            let Some(transfer) = transfer.filter(|t| t.next <= t.window_last.min(t.segments)) else {
                self.ready.pop_front();
                continue;
            };
            let mad = transfer.segment(transfer.next);
            transfer.next += 1;
            transfer.deadline = now + self.timeout;
            return Some(SmMad { address: Address::Gsi(transfer.to), mad });
        }
        None
    }

    /// An ACK, a STOP or an ABORT of the receiver.
    pub fn handle(&mut self, now: Instant, from: GsiAddress, mad: &SaMad) {
        let key = key(from, mad);
        let Some(transfer) = self.open.get_mut(&key) else { return };
        if mad.rmpp.rmpp_type != rmpp::ACK {
            return self.remove(&key);
        }
        let (segment, window_last) = (mad.rmpp.data1, mad.rmpp.data2);
        // Old news, or more than was sent: ignored (IBTA §13.6.6.2).
        if segment < transfer.acked || segment >= transfer.next || window_last < segment {
            return;
        }
        if segment > transfer.acked || transfer.acked == 0 {
            transfer.tries = 1;
        }
        transfer.acked = segment;
        transfer.window_last = window_last.min(segment.saturating_add(MAX_WINDOW)).max(transfer.window_last);
        transfer.deadline = now + self.timeout;
        if segment == transfer.segments {
            self.remove(&key);
        } else if transfer.next <= transfer.window_last {
            self.ready.push_back(key);
        }
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.open.values().map(|transfer| transfer.deadline).min()
    }

    /// Sends from the last acknowledged segment on again, or gives up.
    pub fn handle_timeout(&mut self, now: Instant) {
        let max_tries = self.max_tries;
        let bytes = &mut self.bytes;
        self.open.retain(|_, t| {
            let stays = t.deadline > now || t.tries < max_tries;
            *bytes -= if stays { 0 } else { t.bytes.len() };
            stays
        });
        for (key, transfer) in self.open.iter_mut().filter(|(_, t)| t.deadline <= now) {
            transfer.tries += 1;
            transfer.next = transfer.acked + 1;
            transfer.deadline = now + self.timeout;
            self.ready.push_back(*key);
        }
    }
}

impl Transfer {
    fn segment(&self, number: u32) -> Mad {
        let at = (number - 1) as usize * DATA_LEN;
        let here = &self.bytes[at..self.bytes.len().min(at + DATA_LEN)];
        let (first, last) = (number == 1, number == self.segments);
        let class_headers = RMPP_CLASS_HEADER_LEN * self.segments as usize;
        let payload = match (first, last) {
            (true, _) => self.bytes.len() + class_headers,
            (_, true) => here.len() + RMPP_CLASS_HEADER_LEN,
            _ => 0,
        };
        let mut mad = self.head;
        mad.rmpp = RmppHeader {
            version: 1,
            rmpp_type: rmpp::DATA,
            response_time: NO_RESPONSE_TIME,
            active: true,
            first,
            last,
            status: 0,
            data1: number,
            data2: payload as u32,
        };
        mad.data[..here.len()].copy_from_slice(here);
        mad.to_mad()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everywire_wire::PKey;
    use everywire_wire::sa::{attribute, method};

    fn peer() -> GsiAddress {
        GsiAddress { lid: Lid(3), qpn: Qpn::new(1), sl: 0, pkey: PKey::DEFAULT, gid: None }
    }

    fn ack(segment: u32, window_last: u32) -> SaMad {
        let mut mad = SaMad::new(method::GET_TABLE_RESP, attribute::NODE, 9);
        mad.rmpp = RmppHeader {
            version: 1,
            rmpp_type: rmpp::ACK,
            active: true,
            data1: segment,
            data2: window_last,
            ..mad.rmpp
        };
        mad
    }

    fn sent(transfers: &mut Transfers, now: Instant) -> Vec<(u32, u32, bool, bool)> {
        std::iter::from_fn(|| transfers.poll_transmit(now))
            .map(|out| SaMad::from_mad(&out.mad).unwrap().rmpp)
            .map(|h| (h.data1, h.data2, h.first, h.last))
            .collect()
    }

    #[test]
    fn segments_follow_the_window_and_lost_ones_come_again() {
        let now = Instant::now();
        let config = SmConfig::new(everywire_wire::Guid(1));
        let mut transfers = Transfers::new(&config);
        let head = SaMad::new(method::GET_TABLE_RESP, attribute::NODE, 9);
        // 448 bytes: 200, 200, 48. First payload length: all of them and three class headers; last: 48 + 20.
        assert!(transfers.start(now, peer(), head, vec![7; 448]));
        assert_eq!(sent(&mut transfers, now), [(1, 508, true, false)]);
        transfers.handle(now, peer(), &ack(1, 64));
        assert_eq!(sent(&mut transfers, now), [(2, 0, false, false), (3, 68, false, true)]);
        // The last two are lost.
        let later = transfers.poll_timeout().unwrap();
        transfers.handle_timeout(later);
        assert_eq!(sent(&mut transfers, later), [(2, 0, false, false), (3, 68, false, true)]);
        // An ACK of what was not sent, and an old one, do nothing.
        transfers.handle(later, peer(), &ack(9, 64));
        transfers.handle(later, peer(), &ack(0, 64));
        transfers.handle(later, peer(), &ack(3, 64));
        assert_eq!(transfers.poll_timeout(), None);
    }

    #[test]
    fn no_lid_and_no_flood_takes_all_the_room() {
        let now = Instant::now();
        let mut transfers = Transfers::new(&SmConfig::new(everywire_wire::Guid(1)));
        let mut start = |lid: u16, id: u64, bytes: usize| {
            let to = GsiAddress { lid: Lid(lid), ..peer() };
            let head = SaMad::new(method::GET_TABLE_RESP, attribute::NODE, id);
            transfers.start(now, to, head, vec![0; bytes])
        };
        let taken = (0..100).filter(|id| start(3, *id, 10)).count();
        assert_eq!(taken, MAX_TRANSFERS_PER_LID);
        // Others are not held up by it, but for the bytes of all: 64 MiB, 4 MiB each.
        let taken = (4..100).filter(|lid| start(*lid, 1, 4 << 20)).count();
        assert_eq!(taken, 15);
        assert!(start(200, 1, 1 << 20));
        // What is given up or aborted makes room again.
        let mut abort = ack(0, 0);
        abort.rmpp.rmpp_type = rmpp::ABORT;
        abort.header.transaction_id = 1;
        transfers.handle(now, GsiAddress { lid: Lid(4), ..peer() }, &abort);
        assert_eq!(transfers.bytes, 160 + ((14 * 4 + 1) << 20));
        let mut later = now;
        while let Some(at) = transfers.poll_timeout() {
            later = later.max(at);
            transfers.handle_timeout(later);
            while transfers.poll_transmit(later).is_some() {}
        }
        assert_eq!(transfers.bytes, 0);
    }

    #[test]
    fn a_silent_receiver_is_given_up_and_an_abort_ends_at_once() {
        let mut now = Instant::now();
        let config = SmConfig::new(everywire_wire::Guid(1));
        let mut transfers = Transfers::new(&config);
        let head = SaMad::new(method::GET_TABLE_RESP, attribute::NODE, 9);
        assert!(transfers.start(now, peer(), head, Vec::new()));
        let mut tries = 0;
        while let Some(at) = transfers.poll_timeout() {
            assert_eq!(sent(&mut transfers, now), [(1, 20, true, true)]);
            now = at;
            tries += 1;
            transfers.handle_timeout(now);
        }
        assert_eq!(tries, 4);
        assert!(transfers.start(now, peer(), head, vec![0; 1000]));
        let mut abort = ack(0, 0);
        abort.rmpp.rmpp_type = rmpp::ABORT;
        transfers.handle(now, peer(), &abort);
        assert_eq!(transfers.poll_timeout(), None);
    }
}
