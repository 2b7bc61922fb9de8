//! Time passes: the world runs, completions are fetched and judged, and what has waited is settled.

use std::time::Duration;

use everywire_verbs::{Completion, RKey, WcOpcode, WcStatus};

use super::end::{End, KeyStep, Pending, Place, Stream, Word};
use super::node::{Node, Opening};
use super::rig::{Late, Owner, RECV_BIT, Rig};
use super::slots::{Layout, Slot};
use crate::checkers::Violation;
use crate::checkers::completions::Ended;
use crate::checkers::delivery::Received;
use crate::checkers::shadow::Outcome;
use crate::world::HostId;
use crate::{ensure, violation};

impl Rig {
    /// Runs the world for `time` and judges what it did.
    pub fn tick(&mut self, time: Duration) -> Result<(), Violation> {
        self.world.run_for(time);
        self.plug_in(self.world.elapsed());
        self.poll()?;
        self.settle_late()
    }

    /// Fetches and judges every completion there is.
    pub fn poll(&mut self) -> Result<(), Violation> {
        let mut fetched = Vec::new();
        for host in 0..self.nodes.len() {
            if !self.world.is_up(HostId(host)) {
                continue;
            }
            fetched.clear();
            self.nodes[host].poll(&mut fetched)?;
            for (queue, wc) in fetched.drain(..) {
                self.note(host, queue, &wc);
                self.completed(host, queue, &wc)?;
            }
        }
        Ok(())
    }

    fn note(&mut self, host: usize, queue: usize, wc: &Completion) {
        self.tally.completions += 1;
        self.world.note((host * 8 + queue) as u64);
        self.world.note(wc.wr_id);
        self.world.note(wc.status as u64 | u64::from(wc.byte_len) << 8);
    }

    fn completed(&mut self, host: usize, queue: usize, wc: &Completion) -> Result<(), Violation> {
        let Some(&owner) = self.owners.get(&(host, wc.qpn.get())) else {
            return Err(violation!("host {host}: completion of a queue pair that is gone: {wc:?}"));
        };
        self.say(|| format!("{owner:?} completes {wc:?}"));
        let is_recv = wc.wr_id & RECV_BIT != 0;
        let end = self.end(owner)?;
        ensure!(
            end.queues[usize::from(is_recv)] == queue,
            "{owner:?}: completion on queue {queue} instead of {}: {wc:?}",
            end.queues[usize::from(is_recv)]
        );
        match (owner, is_recv) {
            (_, false) => self.send_completed(owner, wc),
            (Owner::End { connection, side }, true) => self.recv_completed(connection, side, wc),
            (Owner::Datagram { host }, true) => self.datagram_received(host, wc),
        }
    }

    /// The books of a queue pair.
    pub fn end(&mut self, owner: Owner) -> Result<&mut End, Violation> {
        let end = match owner {
            Owner::End { connection, side } => self.connections[connection].ends.get_mut(side),
            Owner::Datagram { host } => self.datagrams.ends.get_mut(&host),
        };
        end.ok_or_else(|| violation!("{owner:?} is closed"))
    }

    fn send_completed(&mut self, owner: Owner, wc: &Completion) -> Result<(), Violation> {
        for (id, how) in self.end(owner)?.sends.completed(wc)? {
            let end = self.end(owner)?;
            let Some(pending) = end.pending.remove(&id) else {
                return Err(violation!("{owner:?}: nothing is known of {id:#x}"));
            };
            match how {
                Ended::Success => self.send_succeeded(owner, id, pending)?,
                Ended::Failed(status) => {
                    // Where the peer was there and refused, it executed nothing after that. Where this end lost patience, the peer
                    // may have got any way through what was already sent.
                    end.rest_not_done = !matches!(status, WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr);
                    self.failed(owner);
                    self.send_unknown(owner, pending)?;
                }
                Ended::Flushed if end.rest_not_done => self.send_not_done(owner, pending)?,
                Ended::Flushed => {
                    self.failed(owner);
                    self.send_unknown(owner, pending)?;
                }
            }
        }
        Ok(())
    }

    fn failed(&mut self, owner: Owner) {
        if let Owner::End { connection, side } = owner {
            let connection = &mut self.connections[connection];
            connection.broken |= !connection.ends[side].stopping;
        }
    }

    fn send_succeeded(&mut self, owner: Owner, id: u64, pending: Pending) -> Result<(), Violation> {
        let end = self.end(owner)?;
        let (host, number) = (end.host, end.node);
        match &mut end.out {
            Stream::Reliable(stream) if pending.message => stream.acknowledged(),
            _ => {}
        }
        let reliable = matches!(end.out, Stream::Reliable(_));
        self.give_back_sources(host, &pending);
        if let Some((at, node, word)) = pending.atomic {
            self.atomic_found(owner, at, node, word, pending.sink)?;
        }
        if let Some(slot) = pending.sink {
            self.settle_sink(host, number, slot, Outcome::Done, pending.sink_is_lent)?;
        }
        if pending.writes.is_some() && !self.traits().success_is_placement {
            let landing = Pending { writes: pending.writes, ..Pending::default() };
            self.end(owner)?.not_landed.push_back((id, landing));
            return Ok(());
        }
        self.left_opening(&pending);
        if let Some(place) = pending.reads {
            self.give_back(place);
        }
        if pending.answered {
            // The peer answers in order: what was written before has landed.
            self.all_landed(owner, id)?;
        }
        if let Some(place) = pending.writes {
            if reliable {
                self.settle(place, Outcome::Done)?;
            } else {
                let at = self.world.elapsed() + self.plan.longest_flight();
                self.late.push_back(Late { at, place, outcome: Outcome::Unknown });
            }
        }
        if let Some((at, node, index, step)) = pending.key {
            self.key_step(at, node, index, step);
        }
        Ok(())
    }

    /// Something posted after them shows that all WRITEs of an end before `id` have landed: the wire keeps their order.
    fn all_landed(&mut self, owner: Owner, id: u64) -> Result<(), Violation> {
        loop {
            let waiting = &mut self.end(owner)?.not_landed;
            if waiting.front().is_none_or(|(first, _)| *first >= id) {
                return Ok(());
            }
            let Some((_, landed)) = waiting.pop_front() else { return Ok(()) };
            self.left_opening(&landed);
            if let Some(place) = landed.writes {
                self.settle(place, Outcome::Done)?;
            }
        }
    }

    fn send_not_done(&mut self, owner: Owner, pending: Pending) -> Result<(), Violation> {
        let end = self.end(owner)?;
        end.unsent_messages += u64::from(pending.message);
        let (host, number) = (end.host, end.node);
        self.give_back_sources(host, &pending);
        if let Some(slot) = pending.sink {
            self.settle_sink(host, number, slot, Outcome::NotDone, pending.sink_is_lent)?;
        }
        self.left_opening(&pending);
        if let Some(place) = pending.reads {
            self.give_back(place);
        }
        if let Some(place) = pending.writes {
            self.settle(place, Outcome::NotDone)?;
        }
        if let Some((at, node, word)) = pending.atomic
            && self.is_live(at, node)
        {
            match word {
                Word::Counter => self.nodes[at].counter.not_done(),
                Word::History(op) => self.nodes[at].word.not_done(op),
            }
        }
        Ok(())
    }

    fn send_unknown(&mut self, owner: Owner, mut pending: Pending) -> Result<(), Violation> {
        let end = self.end(owner)?;
        let (host, number) = (end.host, end.node);
        end.unknown_messages += u64::from(pending.message);
        self.give_back_sources(host, &pending);
        pending.sources.clear();
        pending.behind = None;
        // The request has ended: nothing may be written here any more, whatever was until now.
        if let Some(slot) = pending.sink.take() {
            self.settle_sink(host, number, slot, Outcome::Unknown, pending.sink_is_lent)?;
        }
        self.left_opening(&pending);
        if let Some((at, node, word)) = pending.atomic.take() {
            self.atomic_unknown(at, node, word);
        }
        self.end(owner)?.unknown.push(pending);
        Ok(())
    }

    pub fn give_back_sources(&mut self, host: usize, pending: &Pending) {
        for &slot in &pending.sources {
            self.nodes[host].areas[0].give_back(slot);
        }
        if let Some(place) = pending.behind {
            self.left_own_opening(place);
        }
    }

    pub fn settle_sink(
        &mut self,
        host: usize,
        node: u64,
        slot: Slot,
        outcome: Outcome,
        lent: bool,
    ) -> Result<(), Violation> {
        if self.nodes[host].number != node {
            return Ok(());
        }
        self.nodes[host].settle(slot, outcome)?;
        if !lent {
            self.nodes[host].areas[0].give_back(slot);
        }
        Ok(())
    }

    /// A request that went through an opening has ended.
    fn left_opening(&mut self, pending: &Pending) {
        for place in [pending.writes, pending.reads].into_iter().flatten() {
            let node = &mut self.nodes[place.host];
            if place.area > 0 && node.number == place.node {
                let users = &mut node.openings[place.area - 1].users;
                *users = users.saturating_sub(1);
            }
        }
    }

    fn key_step(&mut self, host: usize, node: u64, index: usize, step: KeyStep) {
        if !self.is_live(host, node) {
            return;
        }
        let node = &mut self.nodes[host];
        let opening = &mut node.openings[index];
        match step {
            KeyStep::Open(key) => {
                opening.key = key;
                opening.state = Opening::Open;
            }
            KeyStep::Shut => {
                let key = opening.key;
                opening.state = Opening::Closed;
                opening.used_by = None;
                node.dead_keys.push(key);
            }
        }
    }

    fn recv_completed(&mut self, connection: usize, side: usize, wc: &Completion) -> Result<(), Violation> {
        let (host, layout, how) = self.recv_ended(connection, side, wc)?;
        if how != Ended::Success {
            self.connections[connection].broken = true;
            let node = &mut self.nodes[host];
            node.settle(layout.slot, Outcome::Unknown)?;
            node.areas[0].give_back(layout.slot);
            return Ok(());
        }
        let is_write = wc.opcode == WcOpcode::RecvRdmaWithImm;
        let node = &self.nodes[host];
        let (bytes, payload) = received(node, &layout, wc, is_write)?;
        let got = Received {
            payload: &payload,
            length: wc.byte_len,
            imm: wc.imm,
            is_write,
            invalidate: wc.invalidated.map(|key| key.0),
            solicited: wc.solicited,
        };
        let lossy = self.plan.lossy();
        let sender = &mut self.connections[connection].ends[1 - side];
        let (message, strict) = match &mut sender.out {
            Stream::Reliable(stream) => (stream.received(&got)?, true),
            Stream::Lossy(stream) => match stream.received(&got, lossy) {
                Some(message) => (message, false),
                None => {
                    let why = stream.explain(&got);
                    return Err(violation!("connection {connection} end {side}: {why}"));
                }
            },
        };
        if strict {
            self.landed(connection, side, message.wr_id)?;
            self.all_landed(Owner::End { connection, side: 1 - side }, message.wr_id)?;
            let node = &self.nodes[host];
            let old = node.shadow.known(layout.slot.offset, layout.slot.len);
            let expected = layout.scatter(old, &message.payload);
            ensure!(
                bytes == expected,
                "connection {connection} end {side}: message {:#x} changed bytes of the receive beyond its end",
                message.wr_id
            );
        }
        let node = &mut self.nodes[host];
        node.settle(layout.slot, Outcome::Done)?;
        node.areas[0].give_back(layout.slot);
        if let Some(key) = message.invalidate {
            self.invalidated(host, RKey(key));
        }
        Ok(())
    }

    /// The ledger's word on a receive of a connection, and the buffer it had.
    fn recv_ended(
        &mut self,
        connection: usize,
        side: usize,
        wc: &Completion,
    ) -> Result<(usize, Layout, Ended), Violation> {
        let end = &mut self.connections[connection].ends[side];
        let host = end.host;
        let (how, layout) = match &mut end.recvs {
            Some(recvs) => (recvs.completed(wc)?, end.recv_open.remove(&wc.wr_id)),
            None => {
                let node = &mut self.nodes[host];
                let how = node.shared.completed(wc, end.may_flush, &end.may_fail)?;
                (how, node.shared_open.remove(&wc.wr_id))
            }
        };
        match layout {
            Some(layout) => Ok((host, layout, how)),
            None => {
                Err(violation!("connection {connection} end {side}: nothing is known of {:#x}", wc.wr_id))
            }
        }
    }

    /// A receive completed for a WRITE with immediate: its data must be there by now.
    fn landed(&mut self, connection: usize, side: usize, wr_id: u64) -> Result<(), Violation> {
        let sender = &self.connections[connection].ends[1 - side];
        let Some(Place { host, node, slot, .. }) = sender.pending.get(&wr_id).and_then(|p| p.writes) else {
            return Ok(()); // not a WRITE, or its sender has been told already and the bytes were checked then
        };
        if !self.is_live(host, node) || slot.len == 0 {
            return Ok(());
        }
        let actual = self.nodes[host].bytes(slot)?;
        self.nodes[host].shadow.landed(slot.offset, &actual)
    }

    /// A peer's SEND with Invalidate took a key away.
    fn invalidated(&mut self, host: usize, key: RKey) {
        let node = &mut self.nodes[host];
        if let Some(index) = node.openings.iter().position(|o| o.key == key) {
            let number = node.number;
            self.key_step(host, number, index, KeyStep::Shut);
        }
    }
}

/// The bytes of a receive's slot and the message in them.
pub fn received(
    node: &Node,
    layout: &Layout,
    wc: &Completion,
    is_write: bool,
) -> Result<(Vec<u8>, Vec<u8>), Violation> {
    let bytes = node.bytes(layout.slot)?;
    let len = if is_write { 0 } else { wc.byte_len as usize };
    ensure!(len <= bytes.len(), "receive {:#x} of {} bytes reports {len}", wc.wr_id, bytes.len());
    let payload = layout.gather(&bytes, len);
    Ok((bytes, payload))
}
