//! Messages: what a receiver may see of what a peer sent, by transport service.
//!
//! Reliable: every message, once, in order. Unreliable connection: whole messages, in order, some missing; a network
//! that duplicates or reorders may repeat and reorder them, for the service checks packet order only within a message (IBTA vol. 1 §9.8.3).
//! Datagrams: whole messages, as the network likes. Content is compared byte for byte.

use std::collections::VecDeque;

use super::Violation;
use crate::{ensure, violation};

/// A message on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The sender's token, for texts.
    pub wr_id: u64,
    /// Payload that lands in the receive buffer (nothing for a WRITE with immediate).
    pub payload: Vec<u8>,
    /// Bytes that the completion reports.
    pub length: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Whether it is a WRITE with immediate.
    pub is_write: bool,
    /// The key it invalidates at the receiver.
    pub invalidate: Option<u32>,
    /// Whether it asks for an event.
    pub solicited: bool,
}

/// What a receive completion says, in the same terms. `payload` is the buffer's content up to the length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received<'a> {
    /// Buffer content.
    pub payload: &'a [u8],
    /// Bytes that the completion reports.
    pub length: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Whether it is a WRITE with immediate.
    pub is_write: bool,
    /// The key that was invalidated.
    pub invalidate: Option<u32>,
    /// Whether the sender asked for an event.
    pub solicited: bool,
}

impl Message {
    fn difference(&self, got: &Received<'_>) -> Option<String> {
        let fields = [
            ("length", u64::from(self.length), u64::from(got.length)),
            ("is a write", u64::from(self.is_write), u64::from(got.is_write)),
            ("solicited", u64::from(self.solicited), u64::from(got.solicited)),
        ];
        for (name, want, have) in fields {
            if want != have {
                return Some(format!("{name} is {have}, not {want}"));
            }
        }
        if self.imm != got.imm {
            return Some(format!("immediate is {:x?}, not {:x?}", got.imm, self.imm));
        }
        if self.invalidate != got.invalidate {
            return Some(format!("invalidated key is {:x?}, not {:x?}", got.invalidate, self.invalidate));
        }
        if self.payload == got.payload {
            return None;
        }
        let at = self.payload.iter().zip(got.payload).position(|(a, b)| a != b);
        Some(format!("payload differs at byte {at:?} of {}", self.payload.len()))
    }
}

/// A reliable connection, one way.
#[derive(Debug, Clone, Default)]
pub struct ReliableStream {
    sent: VecDeque<Message>,
    delivered: u64,
    /// Messages whose sender was told that they arrived.
    acknowledged: u64,
}

impl ReliableStream {
    /// The sender posted a message.
    pub fn sent(&mut self, message: Message) {
        self.sent.push_back(message);
    }

    /// The sender was told that its next message arrived.
    pub fn acknowledged(&mut self) {
        self.acknowledged += 1;
    }

    /// The message that the receiver must see after `n` others.
    pub fn nth(&self, n: usize) -> Option<&Message> {
        self.sent.get(n)
    }

    /// The receiver completed a receive: the message, which must be the next one.
    pub fn received(&mut self, got: &Received<'_>) -> Result<Message, Violation> {
        let Some(message) = self.sent.pop_front() else {
            return Err(violation!("a message of {} bytes arrived that nobody sent", got.length));
        };
        self.delivered += 1;
        match message.difference(got) {
            None => Ok(message),
            Some(what) => Err(violation!("message {:#x}: {what}", message.wr_id)),
        }
    }

    /// At rest: every message that was acknowledged was delivered, and of the rest only some of those `unknown` ones
    /// whose fate the sender could not know.
    pub fn verify(&self, name: &str, unknown: u64) -> Result<(), Violation> {
        let (acknowledged, delivered) = (self.acknowledged, self.delivered);
        ensure!(
            (acknowledged..=acknowledged + unknown).contains(&delivered),
            "{name}: {acknowledged} messages acknowledged, {unknown} of unknown fate, {delivered} delivered"
        );
        Ok(())
    }

    /// At rest with the connection whole: nothing is under way.
    pub fn verify_drained(&self, name: &str) -> Result<(), Violation> {
        self.verify(name, 0)?;
        ensure!(self.sent.is_empty(), "{name}: {} messages never arrived", self.sent.len());
        Ok(())
    }
}

/// What a network may do to unreliable messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LossyNetwork {
    /// Messages may arrive more than once.
    pub repeats: bool,
    /// Messages may pass each other.
    pub reorders: bool,
}

/// An unreliable connection or a datagram flow, one way.
#[derive(Debug, Clone, Default)]
pub struct LossyStream {
    sent: Vec<(Message, bool)>,
    /// Index after the last one delivered, where order holds.
    cursor: usize,
    delivered: u64,
}

impl LossyStream {
    /// The sender posted a message.
    pub fn sent(&mut self, message: Message) {
        self.sent.push((message, false));
    }

    /// The receiver completed a receive: whether it fits a message that the network may have delivered now.
    pub fn received(&mut self, got: &Received<'_>, network: LossyNetwork) -> Option<Message> {
        let from = if network.repeats || network.reorders { 0 } else { self.cursor };
        let fits = |(message, seen): &(Message, bool)| {
            (!*seen || network.repeats) && message.difference(got).is_none()
        };
        // The earliest fit in order is always a safe choice; prefer one not delivered yet.
        let candidates = self.sent[from..].iter().enumerate().filter(|(_, entry)| fits(entry));
        let (mut first, mut fresh) = (None, None);
        for (i, (_, seen)) in candidates {
            first = first.or(Some(i));
            if !*seen {
                fresh = Some(i);
                break;
            }
        }
        let index = from + fresh.or(first)?;
        self.cursor = index + 1;
        self.delivered += 1;
        self.sent[index].1 = true;
        Some(self.sent[index].0.clone())
    }

    /// Why `got` fits nothing: the difference to the nearest message, for texts.
    pub fn explain(&self, got: &Received<'_>) -> String {
        let next = self.sent.get(self.cursor).map(|(m, _)| (m.wr_id, m.difference(got)));
        format!(
            "{} sent, {} delivered, next {next:x?}, got {} bytes",
            self.sent.len(),
            self.delivered,
            got.length
        )
    }

    /// How many were sent and delivered.
    pub fn totals(&self) -> (u64, u64) {
        (self.sent.len() as u64, self.delivered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(wr_id: u64, payload: &[u8]) -> Message {
        Message {
            wr_id,
            payload: payload.to_vec(),
            length: payload.len() as u32,
            imm: None,
            is_write: false,
            invalidate: None,
            solicited: false,
        }
    }

    fn got(payload: &[u8]) -> Received<'_> {
        let length = payload.len() as u32;
        Received { payload, length, imm: None, is_write: false, invalidate: None, solicited: false }
    }

    #[test]
    fn a_reliable_stream_takes_no_gap_repeat_or_change() {
        let mut s = ReliableStream::default();
        for (id, text) in [(1, b"one"), (2, b"two")] {
            s.sent(message(id, text));
        }
        assert!(s.clone().received(&got(b"two")).is_err());
        assert!(s.clone().received(&Received { imm: Some(0), ..got(b"one") }).is_err());
        assert!(s.clone().received(&Received { solicited: true, ..got(b"one") }).is_err());
        assert_eq!(s.received(&got(b"one")).unwrap().wr_id, 1);
        assert!(s.clone().received(&got(b"one")).is_err());
        s.acknowledged();
        s.verify("s", 0).unwrap();
        assert!(s.verify_drained("s").is_err());
        s.acknowledged();
        assert!(s.verify("s", 5).is_err());
        s.received(&got(b"two")).unwrap();
        s.verify_drained("s").unwrap();
        s.sent(message(3, b"who"));
        s.received(&got(b"who")).unwrap();
        assert!(s.verify("s", 0).is_err(), "nobody was told that it arrived");
        s.verify("s", 1).unwrap();
        assert!(s.received(&got(b"two")).is_err());
    }

    #[test]
    fn a_lossy_stream_may_skip_but_not_repeat_or_reorder_on_a_network_that_does_not() {
        let mut s = LossyStream::default();
        for (id, text) in [(1, b"one"), (2, b"two"), (3, b"thr"), (4, b"fou")] {
            s.sent(message(id, text));
        }
        let plain = LossyNetwork::default();
        assert_eq!(s.received(&got(b"two"), plain).unwrap().wr_id, 2);
        assert!(s.clone().received(&got(b"two"), plain).is_none());
        assert!(s.clone().received(&got(b"one"), plain).is_none());
        assert!(s.clone().received(&got(b"???"), plain).is_none());
        let reorders = LossyNetwork { reorders: true, ..plain };
        assert!(s.clone().received(&got(b"one"), reorders).is_some());
        assert!(s.clone().received(&got(b"two"), reorders).is_none());
        let repeats = LossyNetwork { repeats: true, ..plain };
        assert!(s.clone().received(&got(b"two"), repeats).is_some());
        assert_eq!(s.received(&got(b"fou"), plain).unwrap().wr_id, 4);
        assert_eq!(s.totals(), (4, 2));
    }
}
