//! The end of a run: the network is healed, everything posted must end, and every account must balance.

use std::time::Duration;

use everywire_fabric::faults::Faults;
use everywire_verbs::{Counter, RKey, Remote, SendOp, SendWr};

use super::end::{Pending, Stream};
use super::node::{COUNTER_AT, SHARED_DEPTH, WORD_AT};
use super::ops::{Built, Kind};
use super::plan::Weather;
use super::rig::Rig;
use crate::checkers::Violation;
use crate::world::HostId;
use crate::{ensure, violation};

/// After the network is healed everything must end within this time: retry timers and backed-off RNR timers are far shorter.
const QUIESCE_LIMIT: Duration = Duration::from_secs(30);

impl Rig {
    /// Brings everything to rest and closes every account.
    pub fn finish(&mut self) -> Result<(), Violation> {
        for host in 0..self.nodes.len() {
            self.world.set_faults(HostId(host), Faults::NONE);
            self.world.partition(HostId(host), false);
        }
        self.all_ports_up()?;
        self.tick(self.plan.longest_flight() + Duration::from_millis(25))?;
        for index in 0..self.connections.len() {
            if self.connections[index].broken {
                self.reconnect(index)?;
            }
            for side in 0..2 {
                self.post_last(index, side)?;
            }
        }
        self.come_to_rest()?;
        self.tick(self.plan.longest_flight())?;
        self.verify_at_rest()?;
        for index in 0..self.connections.len() {
            self.tear_down(index)?;
        }
        let hosts: Vec<usize> = self.datagrams.ends.keys().copied().collect();
        for host in hosts {
            self.drop_datagrams(host);
        }
        // Nothing may come for queue pairs that are gone.
        self.tick(self.plan.longest_flight())?;
        self.verify_nodes()
    }

    /// A signalled request without bytes or a valid key: it tells the fate of the unsignalled ones before it. A WRITE, or a READ
    /// where success of a WRITE says nothing of the peer.
    fn post_last(&mut self, index: usize, side: usize) -> Result<(), Violation> {
        let id = self.id();
        let remote = Remote { addr: 0xffff_ffff_ffff_fff0, rkey: RKey(0xffff_ffff) };
        let answered = !self.traits().success_is_placement;
        let (kind, op) = match answered {
            true => (Kind::Read, SendOp::Read { remote }),
            false => (Kind::Write, SendOp::Write { remote }),
        };
        let pending = Pending { answered, ..Pending::default() };
        self.post(index, side, vec![Built::new(kind, SendWr::new(id, op), pending)])
    }

    fn come_to_rest(&mut self) -> Result<(), Violation> {
        let until = self.world.elapsed() + QUIESCE_LIMIT;
        loop {
            let mut waiting = None;
            for index in 0..self.connections.len() {
                for side in 0..2 {
                    if self.connections[index].broken {
                        self.reconnect(index)?;
                        waiting = Some((index, side));
                    }
                    let connection = &self.connections[index];
                    let hungry =
                        matches!(&connection.ends[1 - side].out, Stream::Reliable(s) if s.nth(0).is_some());
                    if connection.ends[side].sends.owed() > 0 || hungry {
                        waiting = Some((index, side));
                    }
                    if hungry {
                        self.post_recv(index, side, true)?;
                    }
                }
            }
            let Some((index, side)) = waiting else { return Ok(()) };
            ensure!(
                self.world.elapsed() < until,
                "connection {index} end {side}: {} sends never completed, {:?}",
                self.connections[index].ends[side].sends.owed(),
                self.connections[index].ends[side].qp.query()
            );
            self.tick(Duration::from_micros(200))?;
        }
    }

    fn verify_at_rest(&self) -> Result<(), Violation> {
        for (index, connection) in self.connections.iter().enumerate() {
            for (side, end) in connection.ends.iter().enumerate() {
                ensure!(
                    end.pending.len() == end.sends.open(),
                    "connection {index} end {side}: the books do not agree"
                );
                if let Stream::Reliable(stream) = &end.out {
                    stream.verify_drained(&format!("connection {index} from end {side}"))?;
                }
            }
        }
        if self.plan.weather == Weather::Calm && !self.plan.loses() {
            self.verify_calm()?;
        }
        self.verify_memory()
    }

    /// Where nothing is lost, unreliable messages are missing only because no receive was posted, and no timer runs out.
    fn verify_calm(&self) -> Result<(), Violation> {
        let (mut sent, mut delivered) = self.datagram_totals();
        for end in self.connections.iter().flat_map(|connection| &connection.ends) {
            if let Stream::Lossy(stream) = &end.out {
                let totals = stream.totals();
                (sent, delivered) = (sent + totals.0 - end.unsent_messages, delivered + totals.1);
            }
        }
        let count = |counter| self.nodes.iter().map(|node| node.device.counters().get(counter)).sum::<u64>();
        let dropped = count(Counter::OutOfBuffer);
        ensure!(
            (delivered..=delivered + dropped).contains(&sent),
            "{sent} unreliable messages sent, {delivered} delivered, {dropped} dropped for want of a receive"
        );
        if self.tally.reconnects == 0 {
            let timeouts = count(Counter::LocalAckTimeoutErr);
            ensure!(timeouts == 0, "{timeouts} local ACK timeouts on a network that loses nothing");
        }
        Ok(())
    }

    /// Checks every byte of every node.
    pub fn verify_memory(&self) -> Result<(), Violation> {
        self.nodes.iter().try_for_each(|node| node.verify_memory())
    }

    /// Every account of every node balances, now that all queue pairs are gone.
    fn verify_nodes(&mut self) -> Result<(), Violation> {
        self.settle_all_late()?;
        for host in 0..self.nodes.len() {
            let left = self.shared_left(host)?;
            let node = &self.nodes[host];
            node.shared.verify(left)?;
            node.counter.verify(node.word_at(COUNTER_AT)?)?;
            node.word.verify(node.word_at(WORD_AT)?)?;
            node.verify_memory()?;
        }
        Ok(())
    }

    fn settle_all_late(&mut self) -> Result<(), Violation> {
        while let Some(late) = self.late.pop_front() {
            self.settle(late.place, late.outcome)?;
        }
        Ok(())
    }

    /// How many receives the device still holds in a shared queue: what it refuses to take more of.
    fn shared_left(&mut self, host: usize) -> Result<u64, Violation> {
        let node = &self.nodes[host];
        for accepted in 0..=u64::from(SHARED_DEPTH) {
            if node.srq.post_recv(everywire_verbs::RecvWr::new(0, [])).is_err() {
                return Ok(u64::from(SHARED_DEPTH) - accepted);
            }
        }
        Err(violation!("shared queue of host {host} takes more than {SHARED_DEPTH} receives"))
    }
}
