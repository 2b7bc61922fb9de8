//! Atomic operations on the words of a peer: made here, and told to the models of those words when they end.
//!
//! The models are in `checkers::atomics`: a counter that only adds of one touch, and a word with its whole history.

use everywire_verbs::{SendOp, SendWr};

use super::end::{Pending, Word};
use super::node::{COUNTER_AT, WORD_AT};
use super::ops::{Built, Kind};
use super::rig::{Owner, Rig};
use super::slots::{Layout, Slot};
use crate::checkers::Violation;
use crate::checkers::atomics::AtomicKind;
use crate::violation;

impl Rig {
    /// One on the peer's counter or its word.
    pub fn build_atomic(
        &mut self,
        index: usize,
        side: usize,
        kind: Kind,
    ) -> Result<Option<Built>, Violation> {
        let (host, peer) =
            (self.connections[index].ends[side].host, self.connections[index].ends[1 - side].host);
        let peer_node = self.connections[index].ends[1 - side].node;
        if !self.is_live(peer, peer_node) {
            return Ok(None);
        }
        let Some(sink) = self.nodes[host].areas[0].take(&mut self.dice, 8, 1) else { return Ok(None) };
        let layout = Layout::new(&mut self.dice, sink, 1);
        self.nodes[host].shadow.claim_scribble(sink.offset, 8)?;
        let queue = (host as u64) << 32 | u64::from(self.connections[index].ends[side].qp.qpn().get());
        let node = &mut self.nodes[peer];
        let (counter, word) = (node.main.remote(COUNTER_AT), node.main.remote(WORD_AT));
        let mut history = |kind| Word::History(node.word.posted(queue, kind));
        let (op, word) = match kind {
            Kind::CompareSwap => {
                // Half of them against the value that is there now, which may be gone when they arrive.
                let swap = self.dice.bits();
                let compare = if self.dice.chance(1, 2) {
                    self.nodes[peer].word_at(WORD_AT)?
                } else {
                    self.dice.bits()
                };
                let kind = AtomicKind::CompareSwap { compare, swap };
                let op = self.nodes[peer].word.posted(queue, kind);
                (SendOp::CompareSwap { remote: word, compare, swap }, Word::History(op))
            }
            _ if self.dice.chance(1, 3) => {
                let add = self.dice.bits();
                (SendOp::FetchAdd { remote: word, add }, history(AtomicKind::FetchAdd(add)))
            }
            _ => {
                node.counter.posted();
                (SendOp::FetchAdd { remote: counter, add: 1 }, Word::Counter)
            }
        };
        let id = self.id();
        let wr = self.flags(SendWr::new(id, op).with_sges(self.sges(host, &layout)));
        let pending = Pending {
            sink: Some(sink),
            atomic: Some((peer, peer_node, word)),
            answered: true,
            ..Pending::default()
        };
        Ok(Some(Built { byte_len: Some(8), ..Built::new(kind, wr, pending) }))
    }

    /// An atomic has succeeded, and its result is in the sink.
    pub fn atomic_found(
        &mut self,
        owner: Owner,
        at: usize,
        node: u64,
        word: Word,
        sink: Option<Slot>,
    ) -> Result<(), Violation> {
        let qpn = {
            let end = self.end(owner)?;
            (end.host as u64) << 32 | u64::from(end.qp.qpn().get())
        };
        let host = self.end(owner)?.host;
        let Some(sink) = sink else {
            return Err(violation!("{owner:?}: an atomic without a place for its result"));
        };
        let original = self.nodes[host].word_at(sink.offset)?;
        if !self.is_live(at, node) {
            return Ok(());
        }
        match word {
            Word::Counter => self.nodes[at].counter.found(qpn, original)?,
            Word::History(op) => self.nodes[at].word.found(op, original),
        }
        Ok(())
    }

    /// An atomic may or may not have been executed.
    pub fn atomic_unknown(&mut self, at: usize, node: u64, word: Word) {
        if !self.is_live(at, node) {
            return;
        }
        match word {
            Word::Counter => self.nodes[at].counter.unknown(),
            Word::History(op) => self.nodes[at].word.unknown(op),
        }
    }
}
