//! Requests that are bound to succeed: which operation, how long, from where to where; and the receives they take.

use everywire_verbs::{SendOp, SendWr, Sge};

use super::connection::{INLINE, SEGMENTS, SEND_DEPTH};
use super::end::{Pending, Place, Stream};
use super::node::Opening;
use super::random::pattern;
use super::rig::Rig;
use super::slots::{Layout, Slot};
use crate::checkers::Violation;
use crate::checkers::completions::SendExpect;
use crate::checkers::delivery::Message;
use crate::violation;

/// Operations, in the order of [`super::rig::Tally::by_kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm,
    /// SEND with invalidate.
    SendInv,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate.
    WriteImm,
    /// RDMA READ.
    Read,
    /// RDMA READ, and a fenced WRITE of what it brings.
    ReadThenWrite,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Bind a memory window.
    BindMw,
    /// Fast-register a region.
    FastReg,
    /// Invalidate a key.
    LocalInv,
}

/// How many kinds there are.
pub const KINDS: usize = 12;

const ALL_KINDS: [Kind; KINDS] = [
    Kind::Send,
    Kind::SendImm,
    Kind::SendInv,
    Kind::Write,
    Kind::WriteImm,
    Kind::Read,
    Kind::ReadThenWrite,
    Kind::CompareSwap,
    Kind::FetchAdd,
    Kind::BindMw,
    Kind::FastReg,
    Kind::LocalInv,
];

impl Kind {
    /// Whether the peer needs a receive for it.
    fn takes_receive(self) -> bool {
        matches!(self, Kind::Send | Kind::SendImm | Kind::SendInv | Kind::WriteImm)
    }
}

/// How often each comes, on RC and on UC.
pub const RC_WEIGHTS: [usize; KINDS] = [12, 6, 8, 14, 6, 14, 3, 6, 8, 5, 5, 2];
const UC_WEIGHTS: [usize; KINDS] = [8, 4, 0, 10, 4, 0, 0, 0, 0, 0, 0, 0];

/// The payload of a request at its poster.
pub struct Source {
    /// The bytes.
    pub payload: Vec<u8>,
    /// Where they are, unless inline.
    pub sges: Vec<Sge>,
    /// The bytes once more, if inline.
    pub inline: Option<Vec<u8>>,
    /// Slots to give back when the request has ended.
    pub slots: Vec<Slot>,
    /// The same, behind a fast-register key of the poster's own.
    pub behind: Option<Place>,
}

impl Source {
    /// A request of this payload.
    pub fn request(&self, id: u64, op: SendOp) -> SendWr {
        SendWr { inline: self.inline.clone(), ..SendWr::new(id, op).with_sges(self.sges.iter().copied()) }
    }
}

/// A request ready to be posted.
pub struct Built {
    /// The request.
    pub wr: SendWr,
    /// What hangs on it.
    pub pending: Pending,
    /// What it is to the peer, if it takes a receive there.
    pub message: Option<Message>,
    /// Bytes that its completion reports.
    pub byte_len: Option<u32>,
    /// What it must fail with.
    pub must_fail: Vec<everywire_verbs::WcStatus>,
    /// Of which kind it is, for the tally.
    pub kind: Kind,
}

impl Built {
    /// One that succeeds and is no message.
    pub fn new(kind: Kind, wr: SendWr, pending: Pending) -> Self {
        Built { wr, pending, message: None, byte_len: None, must_fail: Vec::new(), kind }
    }
}

impl Rig {
    /// Posts a few requests to an end, one by one or as a list, as far as there is room.
    pub fn post_batch(&mut self, index: usize, side: usize) -> Result<(), Violation> {
        let count = self.dice.between(1, 6);
        let mut batch = Vec::new();
        let room = SEND_DEPTH.saturating_sub(self.connections[index].ends[side].sends.open());
        while batch.len() < count.min(room) {
            let reliable = self.connections[index].plan.reliable;
            let kind =
                ALL_KINDS[self.dice.weighted(if reliable { self.traits().weights } else { &UC_WEIGHTS })];
            let messages = batch.iter().filter(|built: &&Built| built.message.is_some()).count();
            if kind.takes_receive()
                && !self.traits().waits_for_receives
                && !self.has_receives_for(index, side, messages + 1)
            {
                break;
            }
            let built = self.build(index, side, kind)?;
            if built.is_empty() {
                break; // no room in memory, or no key to work on
            }
            batch.extend(built);
            if batch.len() > room {
                break;
            }
        }
        // A pair may have taken the last place twice: what does not fit is posted when there is room again.
        self.post(index, side, batch)
    }

    /// Posts requests and enters them in the books.
    pub fn post(&mut self, index: usize, side: usize, batch: Vec<Built>) -> Result<(), Violation> {
        let as_list = batch.len() > 1 && self.dice.chance(1, 3);
        let mut list = Vec::new();
        for built in batch {
            self.say(|| format!("connection {index} end {side} posts {:?} {:?}", built.wr, built.must_fail));
            let end = &mut self.connections[index].ends[side];
            let Built { wr, pending, message, byte_len, must_fail, kind } = built;
            let opcode = wr.op.wc_opcode();
            let signaled = wr.signaled || end.all_signaled;
            end.sends.posted(SendExpect { wr_id: wr.wr_id, signaled, opcode, byte_len, must_fail });
            end.pending.insert(wr.wr_id, pending);
            if let Some(message) = message {
                match &mut end.out {
                    Stream::Reliable(stream) => stream.sent(message),
                    Stream::Lossy(stream) => stream.sent(message),
                }
            }
            self.tally.sends += 1;
            self.tally.by_kind[kind as usize] += 1;
            if as_list {
                list.push(wr);
            } else {
                end.qp
                    .post_send(wr)
                    .map_err(|e| violation!("posting to connection {index} end {side}: {e}"))?;
            }
        }
        let end = &self.connections[index].ends[side];
        end.qp.post_send_list(list).map_err(|e| violation!("posting to connection {index} end {side}: {e}"))
    }

    /// Builds the requests of an operation; none when something it needs is not to be had.
    pub fn build(&mut self, index: usize, side: usize, kind: Kind) -> Result<Vec<Built>, Violation> {
        let built = match kind {
            Kind::Send | Kind::SendImm | Kind::SendInv => self.build_send(index, side, kind)?,
            Kind::Write | Kind::WriteImm => self.build_write(index, side, kind)?,
            Kind::Read | Kind::ReadThenWrite => return self.build_read(index, side, kind),
            Kind::CompareSwap | Kind::FetchAdd => self.build_atomic(index, side, kind)?,
            Kind::BindMw | Kind::FastReg => self.build_opening(index, side, kind)?,
            Kind::LocalInv => self.build_local_inv(index, side)?,
        };
        Ok(built.into_iter().collect())
    }

    /// A length, often at an edge.
    pub fn size(&mut self, mtu: usize) -> usize {
        match self.dice.weighted(&[60, 25, 12, 2]) {
            0 => *self.dice.pick(&[
                0,
                1,
                2,
                3,
                4,
                5,
                7,
                8,
                9,
                mtu - 1,
                mtu,
                mtu + 1,
                2 * mtu - 1,
                2 * mtu,
                2 * mtu + 1,
            ]),
            1 => self.dice.between(0, 1024),
            2 => self.dice.between(0, 8192),
            _ => self.dice.between(8192, 65_536),
        }
    }

    /// Payload at a host: inline, or in a slot of its own.
    pub fn source(&mut self, host: usize, len: usize) -> Result<Option<Source>, Violation> {
        let id = self.next_id;
        if len <= INLINE && self.dice.chance(1, 3) {
            let payload = pattern(id, len);
            let inline = Some(payload.clone());
            return Ok(Some(Source { payload, sges: Vec::new(), inline, slots: Vec::new(), behind: None }));
        }
        let Some(slot) = self.nodes[host].areas[0].take(&mut self.dice, len, 1) else { return Ok(None) };
        let layout = Layout::new(&mut self.dice, slot, SEGMENTS);
        let bytes = pattern(id, len);
        self.nodes[host].write(slot, &bytes)?;
        let payload = layout.gather(&bytes, len);
        let sges = self.sges(host, &layout);
        Ok(Some(Source { payload, sges, inline: None, slots: vec![slot], behind: None }))
    }

    /// The segments of a layout.
    pub fn sges(&self, host: usize, layout: &Layout) -> Vec<Sge> {
        layout.pieces.iter().map(|piece| self.nodes[host].main.sge(piece.range())).collect()
    }

    /// The flags that every request may have.
    pub fn flags(&mut self, mut wr: SendWr) -> SendWr {
        wr.signaled = self.dice.chance(2, 3);
        wr.solicited = self.dice.chance(1, 3);
        wr.fence = self.dice.chance(1, 12);
        wr
    }

    fn build_send(&mut self, index: usize, side: usize, kind: Kind) -> Result<Option<Built>, Violation> {
        let connection = &self.connections[index];
        let (host, longest, mtu) = (connection.ends[side].host, connection.longest[1 - side], connection.mtu);
        let len = self.size(mtu).min(longest);
        // The peer's opening that this end may use, and takes away.
        let invalidate = match kind {
            Kind::SendInv => match self.peer_opening(index, side) {
                // Nothing orders it against what the peer itself does with the key.
                Some((peer, i)) if self.nodes[peer].openings[i].own_users == 0 => Some((peer, i)),
                _ => return Ok(None),
            },
            _ => None,
        };
        let id = self.id();
        let Some(source) = self.source(host, len)? else { return Ok(None) };
        let imm = self.dice.bits() as u32;
        let op = match (kind, invalidate) {
            (Kind::SendInv, Some((peer, i))) => {
                let opening = &mut self.nodes[peer].openings[i];
                opening.state = Opening::Closing;
                SendOp::SendInv(opening.key)
            }
            (Kind::SendImm, _) => SendOp::SendImm(imm),
            _ => SendOp::Send,
        };
        let (imm, key) = match &op {
            SendOp::SendImm(imm) => (Some(*imm), None),
            SendOp::SendInv(key) => (None, Some(key.0)),
            _ => (None, None),
        };
        let mut wr = self.flags(source.request(id, op));
        // READs through the key may still be answered when the SEND arrives (IBTA table 79): it has to wait for them.
        wr.fence |= key.is_some();
        let message = Message {
            wr_id: id,
            length: len as u32,
            payload: source.payload,
            imm,
            is_write: false,
            invalidate: key,
            solicited: wr.solicited,
        };
        let pending = Pending { sources: source.slots, message: true, ..Pending::default() };
        Ok(Some(Built { message: Some(message), ..Built::new(kind, wr, pending) }))
    }

    /// Whether the peer has posted receives for so many messages more than are under way to it.
    fn has_receives_for(&self, index: usize, side: usize, messages: usize) -> bool {
        let [me, peer] = [side, 1 - side].map(|s| &self.connections[index].ends[s]);
        let open = peer.recvs.as_ref().map_or(0, |recvs| recvs.open());
        matches!(&me.out, Stream::Reliable(stream)
            if open >= messages && stream.nth(open - messages).is_none())
    }

    fn build_write(&mut self, index: usize, side: usize, kind: Kind) -> Result<Option<Built>, Violation> {
        let connection = &self.connections[index];
        let (host, mtu) = (connection.ends[side].host, connection.mtu);
        let len = self.size(mtu);
        let id = self.id();
        let source = match self.source_behind_key(index, side, len)? {
            Some(source) => source,
            None => match self.source(host, len)? {
                Some(source) => source,
                None => return Ok(None),
            },
        };
        let Some((place, remote)) = self.target(index, side, len)? else {
            self.drop_source(host, &source);
            return Ok(None);
        };
        self.nodes[place.host].shadow.claim(place.slot.offset, source.payload.clone())?;
        let imm = self.dice.bits() as u32;
        let is_imm = kind == Kind::WriteImm;
        let op = if is_imm { SendOp::WriteImm { remote, imm } } else { SendOp::Write { remote } };
        let wr = self.flags(source.request(id, op));
        let message = is_imm.then(|| Message {
            wr_id: id,
            length: len as u32,
            payload: Vec::new(),
            imm: Some(imm),
            is_write: true,
            invalidate: None,
            solicited: wr.solicited,
        });
        let pending = Pending {
            sources: source.slots,
            behind: source.behind,
            writes: Some(place),
            message: is_imm,
            ..Pending::default()
        };
        Ok(Some(Built { message, ..Built::new(kind, wr, pending) }))
    }

    fn build_read(&mut self, index: usize, side: usize, kind: Kind) -> Result<Vec<Built>, Violation> {
        let connection = &self.connections[index];
        let (host, mtu) = (connection.ends[side].host, connection.mtu);
        let len = self.size(mtu);
        let chained = kind == Kind::ReadThenWrite;
        let Some((from, remote)) = self.target(index, side, len)? else { return Ok(Vec::new()) };
        let Some(sink) = self.nodes[host].areas[0].take(&mut self.dice, len, 1) else {
            self.drop_target(from);
            return Ok(Vec::new());
        };
        let segments = self.traits().read_segments;
        let layout = Layout::new(&mut self.dice, sink, segments);
        let content = self.nodes[from.host].shadow.known(from.slot.offset, len).to_vec();
        let landed = layout.scatter(&vec![0; len], &content);
        self.nodes[host].shadow.claim(sink.offset, landed)?;
        let id = self.id();
        let wr = self.flags(SendWr::new(id, SendOp::Read { remote }).with_sges(self.sges(host, &layout)));
        let pending = Pending {
            sink: Some(sink),
            sink_is_lent: chained,
            reads: Some(from),
            answered: true,
            ..Pending::default()
        };
        let read = Built { byte_len: Some(len as u32), ..Built::new(Kind::Read, wr, pending) };
        let mut built = vec![read];
        if chained {
            // Only the fence makes sure that the WRITE sends what the READ brought.
            match self.target(index, side, len)? {
                Some((place, remote)) => {
                    self.nodes[place.host].shadow.claim(place.slot.offset, content)?;
                    let id = self.id();
                    let mut wr = self
                        .flags(SendWr::new(id, SendOp::Write { remote }).with_sges(self.sges(host, &layout)));
                    wr.fence = true;
                    let pending = Pending { sources: vec![sink], writes: Some(place), ..Pending::default() };
                    built.push(Built::new(Kind::ReadThenWrite, wr, pending));
                }
                None => built[0].pending.sink_is_lent = false,
            }
        }
        Ok(built)
    }

    /// A slot of the peer's, in the open or behind a key, and how to reach it.
    fn target(
        &mut self,
        index: usize,
        side: usize,
        len: usize,
    ) -> Result<Option<(Place, everywire_verbs::Remote)>, Violation> {
        let peer = &self.connections[index].ends[1 - side];
        let (host, node) = (peer.host, peer.node);
        if !self.is_live(host, node) {
            return Ok(None);
        }
        let area = match self.peer_opening(index, side) {
            Some((_, i)) if self.dice.chance(2, 3) => i + 1,
            _ => 0,
        };
        let Some(slot) = self.nodes[host].areas[area].take(&mut self.dice, len, 1) else { return Ok(None) };
        let Some(remote) = self.nodes[host].remote(area, slot) else {
            return Err(violation!("area {area} of host {host} is shut"));
        };
        if area > 0 {
            self.nodes[host].openings[area - 1].users += 1;
        }
        Ok(Some((Place { host, node, area, slot }, remote)))
    }

    fn drop_target(&mut self, place: Place) {
        if place.area > 0 {
            self.nodes[place.host].openings[place.area - 1].users -= 1;
        }
        self.give_back(place);
    }

    fn drop_source(&mut self, host: usize, source: &Source) {
        for &slot in &source.slots {
            self.nodes[host].areas[0].give_back(slot);
        }
        if let Some(place) = source.behind {
            self.left_own_opening(place);
        }
    }
}
