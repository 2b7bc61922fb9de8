//! A bench for iWARP queue pairs: two nodes and a byte stream each way, cut at random.
//!
//! What one end gives to its driver is written in pieces, as a socket takes it, and arrives in other pieces. The bench knows
//! nothing of the transport beyond its driving contract.

mod captures;
mod close;
mod errors;
mod extensions;
mod hostile;
mod markers;
mod masks;
mod operations;
mod ready;
mod speed;
mod table;

use std::collections::VecDeque;
use std::time::Instant;

use everywire_wire::ddp::{DdpHeader, DdpTarget};
use everywire_wire::mpa::{Fpdu, crc32c, pad_len};
use everywire_wire::rdmap::{RdmapControl, RdmapOpcode, Terminate};
use everywire_wire::{LKey, RKey};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::{Close, ConnId, IwarpConfig, Qp, Rtr, StreamBurst, StreamEvent, StreamParams};
use crate::ib::env::{Counter, QpEvent};
use crate::ib::tests::{BASE, Env, LEN, PD, SRQ, Setup as IbSetup};
use crate::ib::wr::{Completion, RecvWr, Remote, SendOp, SendWr, WcStatus};
use crate::ib::{QpAttr, QpState};
use crate::memory::{Access, Sge};

/// How the queue pairs are set up.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) crc: bool,
    /// Node 0 wants markers, node 1 does.
    pub(super) markers: [bool; 2],
    pub(super) ulpdu: usize,
    pub(super) depth: u16,
    pub(super) rtr: Option<Rtr>,
    pub(super) rfc7306: bool,
    pub(super) strict: bool,
    pub(super) srq: bool,
    pub(super) seed: u64,
    /// Longest piece that the stream is cut into.
    pub(super) piece: usize,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            crc: true,
            markers: [false; 2],
            ulpdu: 1442,
            depth: 4,
            rtr: None,
            rfc7306: false,
            strict: true,
            srq: false,
            seed: 1,
            piece: 5000,
        }
    }
}

/// One end.
pub(super) struct Node {
    pub(super) env: Env,
    pub(super) qp: Qp,
    pub(super) key: u32,
    pub(super) closed: Option<Close>,
    /// Written by the queue pair, not yet told so.
    unwritten: usize,
}

impl Node {
    fn new(qpn: u32, setup: &Setup) -> Node {
        let ib = IbSetup { srq: setup.srq, ..IbSetup::default() };
        let mut node = crate::ib::tests::Node::new("10.0.0.1", qpn, &ib);
        let mut config = node.qp.config().clone();
        (config.caps.max_send_sge, config.caps.max_recv_sge) = (16, 16);
        let iwarp = IwarpConfig { rfc7306: setup.rfc7306, strict_read_sink: setup.strict };
        let mut qp = Qp::new(config, iwarp);
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let attr =
            QpAttr { pkey_index: Some(0), port: Some(1), access: Some(all), ..QpAttr::to(QpState::Init) };
        qp.modify(&mut node.env, &attr).unwrap();
        Node { env: node.env, qp, key: node.key, closed: None, unwritten: 0 }
    }

    pub(super) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: LKey(self.key) }
    }

    pub(super) fn remote(&self, offset: u64) -> Remote {
        Remote { addr: BASE + offset, rkey: RKey(self.key) }
    }

    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        let key = self.key;
        self.env.memory.bytes(key)
    }

    pub(super) fn send(&mut self, wr: SendWr) {
        self.qp.post_send(&mut self.env, wr).unwrap();
    }

    pub(super) fn recv(&mut self, wr_id: u64, offset: u64, length: u32) {
        let wr = RecvWr::new(wr_id, [self.sge(offset, length)]);
        self.qp.post_recv(&mut self.env, wr).unwrap();
    }

    pub(super) fn sent(&mut self) -> Vec<(u64, WcStatus)> {
        self.env.sends.drain(..).map(|c| (c.wr_id, c.status)).collect()
    }

    pub(super) fn received(&mut self) -> Vec<(u64, WcStatus)> {
        self.env.recvs.drain(..).map(|c| (c.wr_id, c.status)).collect()
    }

    pub(super) fn completions(&mut self) -> Vec<Completion> {
        self.env.recvs.drain(..).collect()
    }

    pub(super) fn count(&self, counter: Counter) -> u64 {
        self.env.counters[counter as usize]
    }
}

pub(super) struct Bench {
    pub(super) nodes: [Node; 2],
    pub(super) now: Instant,
    pub(super) setup: Setup,
    /// Bytes on their way to each node; `None` is the end of the stream.
    pub(super) wire: [VecDeque<u8>; 2],
    eof: [bool; 2],
    /// Everything that each node sent.
    pub(super) log: [Vec<u8>; 2],
    rng: ChaCha8Rng,
    burst: StreamBurst,
}

impl Bench {
    /// Both in RTS; node 0 is the initiator.
    pub(super) fn new(setup: Setup) -> Bench {
        let mut bench = Bench::unconnected(setup);
        for at in 0..2 {
            bench.start(at);
        }
        bench
    }

    /// Both in INIT.
    pub(super) fn unconnected(setup: Setup) -> Bench {
        Bench {
            nodes: [Node::new(0x11, &setup), Node::new(0x22, &setup)],
            now: Instant::now(),
            wire: Default::default(),
            eof: [false; 2],
            log: Default::default(),
            rng: ChaCha8Rng::seed_from_u64(setup.seed),
            burst: StreamBurst::new(),
            setup,
        }
    }

    pub(super) fn params(&self, at: usize) -> StreamParams {
        StreamParams {
            conn: ConnId(at as u64),
            crc: self.setup.crc,
            markers_send: self.setup.markers[1 - at],
            markers_receive: self.setup.markers[at],
            ird: self.setup.depth,
            ord: self.setup.depth,
            max_fpdu_payload: self.setup.ulpdu,
            initiator: at == 0,
            rtr: self.setup.rtr,
        }
    }

    pub(super) fn start(&mut self, at: usize) {
        let (params, now) = (self.params(at), self.now);
        let node = &mut self.nodes[at];
        node.qp.start(&mut node.env, now, params).unwrap();
    }

    fn pick(&mut self, most: usize) -> usize {
        1 + self.rng.next_u32() as usize % most
    }

    /// Drains what a node has to send; true if there was anything.
    pub(super) fn transmit(&mut self, at: usize) -> bool {
        let mut any = false;
        let node = &mut self.nodes[at];
        while node.qp.poll_transmit(&mut node.env, self.now, &mut self.burst) {
            assert_eq!(self.burst.conn(), ConnId(at as u64));
            let before = self.log[at].len();
            self.burst.copy_to(0, &mut self.log[at]);
            assert_eq!(self.log[at].len() - before, self.burst.len());
            node.unwritten += self.burst.len();
            assert!(node.unwritten <= super::tx::MAX_IN_FLIGHT, "too much in flight");
            self.wire[1 - at].extend(&self.log[at][before..]);
            any = true;
        }
        if let Some(close) = node.qp.poll_close() {
            assert_eq!(node.closed.replace(close), None, "closed twice");
            self.eof[1 - at] = true;
            any = true;
        }
        any
    }

    /// The socket of a node takes this much.
    pub(super) fn written(&mut self, at: usize, bytes: usize) {
        let node = &mut self.nodes[at];
        node.unwritten -= bytes;
        node.qp.stream_event(&mut node.env, self.now, StreamEvent::Written(bytes));
    }

    pub(super) fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let node = &mut self.nodes[to];
        node.qp.handle_stream(&mut node.env, self.now, bytes);
    }

    pub(super) fn event(&mut self, to: usize, event: StreamEvent) {
        let node = &mut self.nodes[to];
        node.qp.stream_event(&mut node.env, self.now, event);
    }

    /// Runs until nothing moves.
    pub(super) fn run(&mut self) {
        loop {
            let mut moved = false;
            for at in 0..2 {
                moved |= self.transmit(at);
                if self.nodes[at].unwritten > 0 {
                    let most = self.nodes[at].unwritten.min(self.setup.piece * 4);
                    let bytes = self.pick(most);
                    self.written(at, bytes);
                    moved = true;
                }
                if !self.wire[at].is_empty() {
                    let most = self.wire[at].len().min(self.setup.piece);
                    let piece = self.pick(most);
                    let bytes: Vec<u8> = self.wire[at].drain(..piece).collect();
                    self.deliver(at, &bytes);
                    moved = true;
                } else if std::mem::take(&mut self.eof[at]) {
                    self.event(at, StreamEvent::Eof);
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Nothing is left over at either end.
    pub(super) fn assert_idle(&self) {
        for node in &self.nodes {
            assert_eq!(node.qp.sends_outstanding(), 0);
            assert!(node.qp.rx.partial.capacity() == 0, "an idle connection holds a buffer");
            assert_eq!(node.qp.tx.in_flight(), 0);
            assert_eq!(node.qp.ending.deadline(), None);
        }
    }

    /// The FPDUs that a node sent, CRC checked; without markers.
    pub(super) fn fpdus(&self, at: usize) -> Vec<Vec<u8>> {
        fpdus(&self.log[at], self.setup.crc)
    }

    /// The TERMINATE message that a node sent last.
    pub(super) fn terminate(&self, at: usize) -> Terminate {
        let last = self.fpdus(at).pop().expect("nothing was sent");
        let header = DdpHeader::parse(&last).unwrap();
        assert_eq!(header.ulp, RdmapControl::new(RdmapOpcode::Terminate).to_byte(), "no TERMINATE");
        assert!(header.last);
        assert_eq!(header.target, DdpTarget::Untagged { ulp: [0; 4], qn: 2, msn: 1, mo: 0 });
        Terminate::parse(&last[18..]).unwrap()
    }
}

pub(super) fn fpdus(mut stream: &[u8], crc: bool) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while !stream.is_empty() {
        let fpdu = Fpdu::parse(stream).unwrap();
        assert_eq!(fpdu.crc, if crc { fpdu.computed_crc() } else { [0; 4] });
        assert!(fpdu.pad.iter().all(|b| *b == 0));
        all.push(fpdu.ulpdu.to_vec());
        stream = &stream[fpdu.len()..];
    }
    all
}

/// The FPDU of a segment, laid out by hand.
pub(super) fn frame(segment: &[u8]) -> Vec<u8> {
    let mut out = (segment.len() as u16).to_be_bytes().to_vec();
    out.extend_from_slice(segment);
    out.resize(out.len() + pad_len(segment.len()), 0);
    let crc = crc32c(&out);
    out.extend_from_slice(&crc);
    out
}

pub(super) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

pub(super) fn ok(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, WcStatus::Success)).collect()
}
