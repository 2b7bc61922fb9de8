//! Requests that are bound to fail, each with the one status that the standard names, and what they do to both ends.
//!
//! Read IBTA vol. 1 §9.9.2 and §9.9.3 (requester and responder faults) and §11.6.2 (completion statuses).

use std::time::Duration;

use everywire_verbs::{Access, LKey, QpAttr, QpState, RKey, RecvWr, Remote, SendOp, SendWr, Sge, WcStatus};

use super::end::{Pending, Stream};
use super::node::{Door, OPENINGS, Opening, OpeningSlot, WORD_AT};
use super::ops::{Built, Kind};
use super::random::pattern;
use super::rig::{RECV_BIT, Rig};
use super::slots::{Layout, Slot};
use crate::checkers::Violation;
use crate::checkers::delivery::Message;
use crate::{ensure, violation};

/// Ways to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// WRITE, READ or atomic with a key that is none.
    UnknownRkey,
    /// One byte past the end of the region.
    RemoteBounds,
    /// A region that peers may not touch.
    RemoteRight,
    /// A region of another protection domain.
    RemoteDomain,
    /// A window or fast-register region that is shut.
    DeadKey,
    /// The key of an open window or fast-register region, with the low eight bits that it had before.
    OldTag,
    /// A window that is open to another queue pair.
    ForeignWindow,
    /// An atomic at an odd address.
    Misaligned,
    /// A segment with a key that is none.
    UnknownLkey,
    /// A segment past the end of the region.
    LocalBounds,
    /// A READ into a region without LOCAL_WRITE.
    ReadOnlySink,
    /// A segment of another protection domain.
    LocalDomain,
    /// A message longer than the receive.
    ShortReceive,
    /// A receive with a bad segment.
    BadReceive,
    /// LOCAL_INV of a key that is none.
    LocalInv,
    /// A window on a region that does not allow windows.
    BindRight,
    /// SEND with invalidate of a key that is none.
    RemoteInv,
}

const FAULTS: [Fault; 17] = [
    Fault::UnknownRkey,
    Fault::RemoteBounds,
    Fault::RemoteRight,
    Fault::RemoteDomain,
    Fault::DeadKey,
    Fault::OldTag,
    Fault::ForeignWindow,
    Fault::Misaligned,
    Fault::UnknownLkey,
    Fault::LocalBounds,
    Fault::ReadOnlySink,
    Fault::LocalDomain,
    Fault::ShortReceive,
    Fault::BadReceive,
    Fault::LocalInv,
    Fault::BindRight,
    Fault::RemoteInv,
];

/// Those whose status the wire does not matter for.
const LOCAL_FAULTS: [Fault; 3] = [Fault::UnknownLkey, Fault::LocalBounds, Fault::LocalDomain];

/// A key that nobody has handed out, as far as chance allows.
const NO_KEY: u32 = 0xdead_be01;
/// A send queue that stops is flushed within this time: nothing of it waits for a peer.
const STOP_LIMIT: Duration = Duration::from_millis(100);

impl Rig {
    /// Posts a request that must fail, and a few good ones after it that must be flushed without effect.
    pub fn post_bad(&mut self, index: usize, side: usize) -> Result<(), Violation> {
        let connection = &self.connections[index];
        let peer = &connection.ends[1 - side];
        let (peer_host, peer_node) = (peer.host, peer.node);
        if !self.is_live(peer_host, peer_node) {
            return Ok(());
        }
        if !connection.plan.reliable {
            return self.stop_and_go(index, side);
        }
        let is_ib = self.traits().is_ib;
        let fault = *self.dice.pick(if is_ib { &FAULTS[..] } else { &LOCAL_FAULTS });
        let Some(built) = self.build_bad(index, side, fault)? else { return Ok(()) };
        self.tally.bad += 1;
        let ends = &mut self.connections[index].ends;
        // This end fails by itself; its receives go with it. The peer follows when the fault is found there.
        ends[side].receives_may_flush();
        let is_local = matches!(
            fault,
            Fault::UnknownLkey
                | Fault::LocalBounds
                | Fault::ReadOnlySink
                | Fault::LocalDomain
                | Fault::LocalInv
                | Fault::BindRight
        );
        // A stream ends at both ends, whoever found the fault (RFC 5040 §7).
        if !is_local || !is_ib {
            ends[1 - side].may_be_flushed();
        }
        // An end that is gone answers no more.
        ends[1 - side].sends.excuses.retry = true;
        ends[1 - side].receives_may_flush();
        self.post(index, side, vec![built])?;
        self.post_batch(index, side)?;
        self.connections[index].broken = true;
        Ok(())
    }

    /// A local fault stops the send queue of an unreliable end: what is behind it is flushed, receives go on, and the
    /// program starts it again (IBTA §10.3.1.6, SQE).
    fn stop_and_go(&mut self, index: usize, side: usize) -> Result<(), Violation> {
        let [host, peer] = [side, 1 - side].map(|s| self.connections[index].ends[s].host);
        let fault = *self.dice.pick(&[Fault::UnknownLkey, Fault::LocalBounds, Fault::LocalDomain]);
        let Some(built) = self.bad_local(host, peer, fault)? else { return Ok(()) };
        self.tally.bad += 1;
        self.connections[index].ends[side].stopping = true;
        self.post(index, side, vec![built])?;
        self.post_batch(index, side)?;
        let until = self.world.elapsed() + STOP_LIMIT;
        while self.connections[index].ends[side].sends.owed() > 0 {
            ensure!(self.world.elapsed() < until, "connection {index} end {side}: flushed too late in SQE");
            self.tick(Duration::from_micros(10))?;
            if self.connections[index].broken {
                return Ok(()); // the peer was killed meanwhile
            }
        }
        let end = &mut self.connections[index].ends[side];
        ensure!(
            end.qp.state() == QpState::Sqe,
            "connection {index} end {side}: in {:?}, not SQE",
            end.qp.state()
        );
        end.qp
            .modify(&QpAttr::to(QpState::Rts))
            .map_err(|e| violation!("connection {index} end {side} from SQE to RTS: {e}"))?;
        let left = end.sends.restart();
        ensure!(left.is_empty(), "connection {index} end {side}: {} requests left in SQE", left.len());
        (end.stopping, end.rest_not_done) = (false, false);
        Ok(())
    }

    fn build_bad(&mut self, index: usize, side: usize, fault: Fault) -> Result<Option<Built>, Violation> {
        let ends = &self.connections[index].ends;
        let (host, peer) = (ends[side].host, ends[1 - side].host);
        match fault {
            Fault::UnknownRkey
            | Fault::RemoteBounds
            | Fault::RemoteRight
            | Fault::RemoteDomain
            | Fault::DeadKey
            | Fault::OldTag
            | Fault::ForeignWindow
            | Fault::Misaligned => self.bad_remote(index, side, fault),
            Fault::UnknownLkey | Fault::LocalBounds | Fault::ReadOnlySink | Fault::LocalDomain => {
                self.bad_local(host, peer, fault)
            }
            Fault::ShortReceive | Fault::BadReceive => self.bad_receive(index, side, fault),
            Fault::LocalInv | Fault::BindRight => Ok(self.bad_key_operation(host, fault)),
            Fault::RemoteInv => self.bad_remote_inv(index, side),
        }
    }

    fn bad_remote(&mut self, index: usize, side: usize, fault: Fault) -> Result<Option<Built>, Violation> {
        let len = self.dice.between(1, 3000);
        let [host, peer] = [side, 1 - side].map(|s| self.connections[index].ends[s].host);
        let node = &self.nodes[peer];
        let somewhere = node.main.remote(1000);
        let remote = match fault {
            Fault::UnknownRkey => Remote { rkey: RKey(NO_KEY), ..somewhere },
            Fault::RemoteBounds => node.main.remote(node.main.len() - len + 1),
            Fault::RemoteRight => node.locked.remote(0),
            Fault::RemoteDomain => node.foreign.remote(0),
            Fault::Misaligned => Remote { addr: node.main.remote(WORD_AT).addr + 4, ..somewhere },
            Fault::OldTag => {
                let mine =
                    |o: &&OpeningSlot| o.state == Opening::Open && o.used_by == Some((index, 1 - side));
                let Some(opening) = node.openings.iter().find(mine) else { return Ok(None) };
                let before = (opening.key.0 & !0xff) | (opening.key.0.wrapping_sub(1) & 0xff);
                Remote { addr: opening.base.next_multiple_of(8), rkey: RKey(before) }
            }
            Fault::ForeignWindow => {
                let foreign = |o: &usize| {
                    let opening = &node.openings[*o];
                    let window = matches!(opening.door, Door::Window(_)) && opening.state == Opening::Open;
                    window && opening.used_by != Some((index, 1 - side))
                };
                let Some(i) = (0..OPENINGS).find(foreign) else { return Ok(None) };
                Remote { addr: node.openings[i].base, rkey: node.openings[i].key }
            }
            _ => match node.dead_keys.last() {
                Some(&rkey) => Remote { rkey, ..somewhere },
                None => return Ok(None),
            },
        };
        let choice = self.dice.below(3);
        let atomic = fault == Fault::Misaligned || choice == 2;
        let len = if atomic { 8 } else { len };
        let remote = match fault {
            Fault::RemoteBounds if atomic => self.nodes[peer].main.remote(self.nodes[peer].main.len()),
            _ => remote,
        };
        let Some(slot) = self.nodes[host].areas[0].take(&mut self.dice, len, 1) else { return Ok(None) };
        let layout = Layout::new(&mut self.dice, slot, 3);
        let id = self.id();
        let op = match choice {
            _ if atomic => SendOp::FetchAdd { remote, add: 1 },
            0 => SendOp::Write { remote },
            _ => SendOp::Read { remote },
        };
        let status = if fault == Fault::Misaligned { WcStatus::RemInvReqErr } else { WcStatus::RemAccessErr };
        let sges = self.sges(host, &layout);
        let wr = SendWr::new(id, op).with_sges(sges);
        let pending = Pending { sources: vec![slot], ..Pending::default() };
        Ok(Some(Built { must_fail: vec![status], ..Built::new(Kind::Write, wr, pending) }))
    }

    fn bad_local(&mut self, host: usize, peer: usize, fault: Fault) -> Result<Option<Built>, Violation> {
        let remote = self.nodes[peer].main.remote(1000);
        let node = &self.nodes[host];
        let good = node.main.sge(2000..2100);
        let bad = match fault {
            Fault::UnknownLkey => Sge { lkey: LKey(NO_KEY), ..good },
            Fault::LocalBounds => Sge { addr: node.main.addr() + node.main.len() as u64 - 99, ..good },
            Fault::LocalDomain => node.foreign.sge(0..100),
            _ => node.locked.sge(0..100),
        };
        let id = self.id();
        let op = match fault {
            Fault::ReadOnlySink => SendOp::Read { remote },
            _ if self.dice.chance(1, 2) => SendOp::Write { remote },
            _ => SendOp::Send,
        };
        // The good segment comes first: every segment is checked before a byte moves.
        let good_first = fault != Fault::ReadOnlySink && self.dice.chance(1, 2);
        let sges = if good_first { vec![good, bad] } else { vec![bad] };
        let wr = SendWr::new(id, op).with_sges(sges);
        Ok(Some(Built {
            must_fail: vec![WcStatus::LocProtErr],
            ..Built::new(Kind::Write, wr, Pending::default())
        }))
    }

    /// A message meets a receive that cannot take it. Needs a direction in which nothing else is under way.
    fn bad_receive(&mut self, index: usize, side: usize, fault: Fault) -> Result<Option<Built>, Violation> {
        let [me, peer] = [side, 1 - side].map(|s| &self.connections[index].ends[s]);
        let (host, peer_host) = (me.host, peer.host);
        let quiet = matches!(&me.out, Stream::Reliable(stream) if stream.nth(0).is_none());
        if !quiet || peer.recvs.as_ref().is_none_or(|recvs| recvs.open() > 0) {
            return Ok(None);
        }
        let len = self.dice.between(1, 5000);
        let room = if fault == Fault::ShortReceive { self.dice.below(len) } else { 100 };
        let Some(source) = self.source(host, len)? else { return Ok(None) };
        let slot = match self.nodes[peer_host].areas[0].take(&mut self.dice, room, 1) {
            Some(slot) if fault == Fault::ShortReceive => slot,
            Some(slot) => {
                self.nodes[peer_host].areas[0].give_back(slot);
                Slot { offset: slot.offset, len: 0 }
            }
            None => Slot { offset: 0, len: 0 },
        };
        let (send_id, recv_id) = (self.id(), self.id() | RECV_BIT);
        let node = &mut self.nodes[peer_host];
        node.shadow.claim_scribble(slot.offset, slot.len)?;
        let sge = match fault {
            Fault::ShortReceive => node.main.sge(slot.range()),
            _ => node.locked.sge(0..8000), // no LOCAL_WRITE
        };
        let (theirs, mine) = match fault {
            Fault::ShortReceive => (WcStatus::LocLenErr, WcStatus::RemInvReqErr),
            _ => (WcStatus::LocProtErr, WcStatus::RemOpErr),
        };
        let peer = &mut self.connections[index].ends[1 - side];
        peer.receive_may_fail(theirs);
        peer.qp
            .post_recv(RecvWr::new(recv_id, [sge]))
            .map_err(|e| violation!("bad receive of connection {index}: {e}"))?;
        if let Some(recvs) = &mut peer.recvs {
            recvs.posted(recv_id);
        }
        peer.recv_open.insert(recv_id, Layout { slot, pieces: vec![slot] });
        self.tally.receives += 1;
        let wr = source.request(send_id, SendOp::Send);
        let message = Message {
            wr_id: send_id,
            length: len as u32,
            payload: source.payload,
            imm: None,
            is_write: false,
            invalidate: None,
            solicited: false,
        };
        let pending = Pending { sources: source.slots, message: true, ..Pending::default() };
        let built = Built::new(Kind::Send, wr, pending);
        Ok(Some(Built { message: Some(message), must_fail: vec![mine], ..built }))
    }

    fn bad_key_operation(&mut self, host: usize, fault: Fault) -> Option<Built> {
        let node = &self.nodes[host];
        let (kind, op) = if fault == Fault::LocalInv {
            (Kind::LocalInv, SendOp::LocalInv(RKey(NO_KEY)))
        } else {
            let window = node.openings.iter().find_map(|o| match &o.door {
                Door::Window(window) if o.state == Opening::Closed => Some(window),
                _ => None,
            })?;
            (Kind::BindMw, SendOp::BindMw(window.bind(&node.locked, 0, 100, Access::REMOTE_READ)))
        };
        let wr = SendWr::new(self.id(), op);
        Some(Built { must_fail: vec![WcStatus::MwBindErr], ..Built::new(kind, wr, Pending::default()) })
    }

    fn bad_remote_inv(&mut self, index: usize, side: usize) -> Result<Option<Built>, Violation> {
        let peer = &mut self.connections[index].ends[1 - side];
        // The receive it meets ends in error as well (IBTA §9.9.3.1.4: a class J fault).
        peer.receive_may_fail(WcStatus::LocQpOpErr);
        peer.receive_may_fail(WcStatus::LocAccessErr);
        peer.receive_may_fail(WcStatus::LocProtErr);
        let id = self.id();
        let payload = pattern(id, 16);
        let wr = SendWr::new(id, SendOp::SendInv(RKey(NO_KEY))).with_inline(payload.clone());
        let message = Message {
            wr_id: id,
            length: 16,
            payload,
            imm: None,
            is_write: false,
            invalidate: Some(NO_KEY),
            solicited: false,
        };
        let pending = Pending { message: true, ..Pending::default() };
        let built = Built::new(Kind::SendInv, wr, pending);
        let must_fail = vec![WcStatus::RemAccessErr, WcStatus::RemOpErr, WcStatus::RemInvReqErr];
        Ok(Some(Built { message: Some(message), must_fail, ..built }))
    }
}
