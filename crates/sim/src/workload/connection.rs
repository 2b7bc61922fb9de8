//! Connections: making them by hand or through the connection manager, and taking them down with every account closed.

use std::time::Duration;

use everywire_verbs::{Psn, QpAttr, QpCaps, QpInit, QpState, QpType, RecvWr, SendOp, SendWr};

use super::end::{End, Stream};
use super::node::{ALL_ACCESS, QUEUES};
use super::plan::{ConnectionPlan, Setup};
use super::rig::{Owner, RECV_BIT, Rig};
use crate::checkers::Violation;
use crate::checkers::completions::{Excuses, SendExpect};
use crate::checkers::shadow::Outcome;
use crate::world::HostId;
use crate::{ensure, violation};

/// Sends outstanding on an end.
pub const SEND_DEPTH: usize = 32;
/// Receives outstanding on an end.
pub const RECV_DEPTH: usize = 16;
/// Inline bytes.
pub const INLINE: usize = 256;
/// Segments of a work request.
pub const SEGMENTS: usize = 4;
/// Each attempt clears one stale connection away.
const CONNECT_ATTEMPTS: usize = 4;
/// Flushing may take this long; nothing of it waits for a peer.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// A connection.
pub struct Connection {
    /// Its plan.
    pub plan: ConnectionPlan,
    /// Its two ends; none once it is closed.
    pub ends: Vec<End>,
    /// Path MTU in bytes.
    pub mtu: usize,
    /// A request failed, or a host died: to be taken down.
    pub broken: bool,
    /// The longest message by side of the receiver.
    pub longest: [usize; 2],
}

impl Rig {
    /// Makes connection `index`.
    pub fn connect(&mut self, index: usize) -> Result<Connection, Violation> {
        self.all_ports_up()?;
        for _ in 0..CONNECT_ATTEMPTS {
            if let Some(connection) = self.try_to_connect(index)? {
                return Ok(connection);
            }
        }
        Err(violation!("connection {index} is stale again and again"))
    }

    fn try_to_connect(&mut self, index: usize) -> Result<Option<Connection>, Violation> {
        let plan = self.plan.connections[index];
        let ends = vec![self.new_end(&plan, index, 0)?, self.new_end(&plan, index, 1)?];
        let mut connection = Connection {
            plan,
            ends,
            mtu: plan.mtu.bytes(),
            broken: false,
            longest: [self.longest_message(&plan, 0), self.longest_message(&plan, 1)],
        };
        match plan.setup {
            Setup::ByHand => self.connect_by_hand(&connection)?,
            Setup::ConnectionManager if self.connect_by_manager(&mut connection, index)? => {}
            Setup::ConnectionManager => return Ok(None),
        }
        let traits = self.traits();
        let attr = connection.ends[0].qp.query();
        connection.mtu = attr.path_mtu.map_or(connection.mtu, |mtu| mtu.bytes());
        for side in 0..2 {
            let end = &mut connection.ends[side];
            if plan.reliable {
                end.excuse(Excuses {
                    retry: self.plan.loses(),
                    // The end of a TCP connection is no failure of a request.
                    flush: self.plan.loses() && !traits.is_ib,
                    rnr: plan.rnr_retry < 7,
                });
            }
            self.owners.insert((end.host, end.qp.qpn().get()), Owner::End { connection: index, side });
        }
        self.say(|| {
            let [a, b] = [0, 1].map(|side| &connection.ends[side]);
            format!("connection {index} is {:?} of host {} to {:?} of host {}", a.qp, a.host, b.qp, b.host)
        });
        Ok(Some(connection))
    }

    fn longest_message(&mut self, plan: &ConnectionPlan, side: usize) -> usize {
        if plan.shared[side] {
            super::node::SHARED_RECV
        } else {
            *self.dice.pick(&[1025, 4097, 4097, 8193, 65_536])
        }
    }

    fn new_end(&mut self, plan: &ConnectionPlan, index: usize, side: usize) -> Result<End, Violation> {
        let host = plan.hosts[side];
        let queues = [self.dice.below(QUEUES), self.dice.below(QUEUES)];
        let node = &self.nodes[host];
        let init = QpInit {
            ty: if plan.reliable { QpType::Rc } else { QpType::Uc },
            send_cq: &node.cqs[queues[0]],
            recv_cq: &node.cqs[queues[1]],
            srq: plan.shared[side].then_some(&node.srq),
            caps: QpCaps {
                max_send_wr: SEND_DEPTH as u32 + 2, // a pair may go one over, and a beacon comes at the end

                max_recv_wr: RECV_DEPTH as u32 + 1,
                max_send_sge: SEGMENTS as u32,
                max_recv_sge: SEGMENTS as u32,
                max_inline_data: INLINE as u32,
            },
            sq_sig_all: !plan.selective[side],
        };
        let qp = node.pd.create_qp(&init).map_err(|e| violation!("creating a queue pair: {e}"))?;
        qp.to_init(ALL_ACCESS).map_err(|e| violation!("to INIT: {e}"))?;
        let name = format!("connection {index} end {side} ({:?} of host {host})", qp.qpn());
        let mut end = End::new(&name, host, node.number, qp, queues, plan.shared[side], plan.reliable);
        end.all_signaled = !plan.selective[side];
        Ok(end)
    }

    fn connect_by_hand(&mut self, connection: &Connection) -> Result<(), Violation> {
        let psns = [self.first_psn(), self.first_psn()];
        for side in 0..2 {
            self.to_rts(connection, side, psns).map_err(|e| violation!("connecting by hand: {e}"))?;
        }
        Ok(())
    }

    /// Often close to the end of the number space, so that it wraps.
    fn first_psn(&mut self) -> Psn {
        let bits = self.dice.bits() as u32;
        Psn::new(if self.dice.chance(1, 2) { 0x00ff_ff00 | bits & 0xff } else { bits })
    }

    fn to_rts(
        &self,
        connection: &Connection,
        side: usize,
        psns: [Psn; 2],
    ) -> Result<(), everywire_verbs::VerbsError> {
        let plan = &connection.plan;
        let [me, peer] = [side, 1 - side].map(|s| &connection.ends[s]);
        let reliable = |value: u8| plan.reliable.then_some(value);
        me.qp.modify(&QpAttr {
            state: Some(QpState::Rtr),
            path: Some(self.path(me.host, peer.host)),
            path_mtu: Some(plan.mtu),
            dest_qp: Some(peer.qp.qpn()),
            rq_psn: Some(psns[1 - side]),
            max_dest_rd_atomic: reliable(plan.rd_atomic),
            min_rnr_timer: reliable(plan.rnr_timer),
            ..QpAttr::default()
        })?;
        me.qp.modify(&QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(psns[side]),
            timeout: reliable(plan.timeout),
            retry_cnt: reliable(7),
            rnr_retry: reliable(plan.rnr_retry),
            max_rd_atomic: reliable(plan.rd_atomic),
            ..QpAttr::default()
        })
    }

    /// Whether an end's host still lives the life that the end was made in.
    pub fn is_live(&self, host: usize, node: u64) -> bool {
        self.world.is_up(HostId(host)) && self.nodes[host].number == node
    }

    /// Takes a connection down: everything posted must be flushed, a beacon after it too; then the queue pairs go, and what nobody
    /// could know is settled.
    pub fn tear_down(&mut self, index: usize) -> Result<(), Violation> {
        self.say(|| format!("taking connection {index} down"));
        self.connections[index].broken = true;
        let live = [0, 1].map(|side| {
            let end = &self.connections[index].ends[side];
            self.is_live(end.host, end.node)
        });
        for side in 0..2 {
            let end = &mut self.connections[index].ends[side];
            end.may_be_flushed();
            end.sends.excuses.retry = true;
        }
        let shared = self.connections[index].plan.shared;
        if shared == [false; 2] && self.dice.chance(1, 6) {
            return self.destroy(index, live);
        }
        for side in (0..2).filter(|&s| live[s]) {
            self.put_to_err(index, side)?;
        }
        self.drain(index, live)?;
        for side in (0..2).filter(|&s| live[s]) {
            self.post_beacon(index, side)?;
        }
        self.drain(index, live)?;
        self.close_accounts(index, live)
    }

    /// Takes it down and makes it again.
    pub fn reconnect(&mut self, index: usize) -> Result<(), Violation> {
        self.tear_down(index)?;
        self.tally.reconnects += 1;
        self.connections[index] = self.connect(index)?;
        Ok(())
    }

    fn put_to_err(&mut self, index: usize, side: usize) -> Result<(), Violation> {
        let graceful = self.dice.chance(1, 2);
        let end = &self.connections[index].ends[side];
        if let (Some(cm), true) = (&end.cm, graceful) {
            // The queue pair goes to ERR at once. How the peer takes it does not matter here: it may do the same just
            // now, or be gone.
            drop(cm.disconnect());
            self.tick(Duration::from_micros(100))?;
        }
        let end = &self.connections[index].ends[side];
        if end.qp.state() != QpState::Err {
            end.qp
                .modify(&QpAttr::to(QpState::Err))
                .map_err(|e| violation!("connection {index} end {side} to ERR: {e}"))?;
        }
        Ok(())
    }

    fn drain(&mut self, index: usize, live: [bool; 2]) -> Result<(), Violation> {
        let until = self.world.elapsed() + FLUSH_LIMIT;
        loop {
            self.tick(Duration::from_micros(20))?;
            let left = (0..2).find(|&s| live[s] && !self.connections[index].ends[s].is_drained());
            let Some(side) = left else { return Ok(()) };
            let end = &self.connections[index].ends[side];
            ensure!(
                self.world.elapsed() < until,
                "connection {index} end {side}: in ERR, and {} sends and {:?} receives never completed",
                end.sends.owed(),
                end.recvs.as_ref().map(|r| r.open())
            );
        }
    }

    /// Posts a request to a queue pair in ERR: it must be flushed, after everything else (IBTA C10-42).
    fn post_beacon(&mut self, index: usize, side: usize) -> Result<(), Violation> {
        let (send_id, recv_id) = (self.id(), self.id() | RECV_BIT);
        let end = &mut self.connections[index].ends[side];
        let op = SendOp::Send;
        let opcode = op.wc_opcode();
        end.qp
            .post_send(SendWr::new(send_id, op))
            .map_err(|e| violation!("posting a send to connection {index} end {side} in ERR: {e}"))?;
        end.sends.posted(SendExpect {
            wr_id: send_id,
            signaled: true,
            opcode,
            byte_len: None,
            must_fail: Vec::new(),
        });
        end.pending.insert(send_id, Default::default());
        if let Some(recvs) = &mut end.recvs {
            end.qp
                .post_recv(RecvWr::new(recv_id, []))
                .map_err(|e| violation!("posting a receive to connection {index} end {side} in ERR: {e}"))?;
            recvs.posted(recv_id);
            let none = super::slots::Slot { offset: 0, len: 0 };
            end.recv_open.insert(recv_id, super::slots::Layout { slot: none, pieces: Vec::new() });
            self.tally.receives += 1;
        }
        self.tally.sends += 1;
        Ok(())
    }

    /// Destroys the queue pairs as they are, with requests outstanding: none of these completes any more (IBTA C10-19), and none of
    /// their buffers is written to from then on.
    fn destroy(&mut self, index: usize, live: [bool; 2]) -> Result<(), Violation> {
        // The end of a connection made by the manager is a disconnection, which flushes.
        for end in &mut self.connections[index].ends {
            drop(end.cm.take());
        }
        self.poll()?;
        let mut buffers = Vec::new();
        for side in (0..2).filter(|&s| live[s]) {
            let end = &mut self.connections[index].ends[side];
            let (host, node) = (end.host, end.node);
            buffers.extend(
                std::mem::take(&mut end.recv_open).into_values().map(|l| (host, node, l.slot, false)),
            );
            let mut pending = std::mem::take(&mut end.pending);
            for request in pending.values_mut() {
                let sink = request.sink.take();
                buffers.extend(sink.map(|slot| (host, node, slot, request.sink_is_lent)));
                self.give_back_sources(host, request);
            }
            let end = &mut self.connections[index].ends[side];
            end.unknown_messages += pending.values().filter(|p| p.message).count() as u64;
            end.unknown.extend(pending.into_values());
        }
        self.close_accounts(index, live)?;
        for (host, node, slot, lent) in buffers {
            self.settle_sink(host, node, slot, Outcome::Unknown, lent)?;
        }
        Ok(())
    }

    /// Destroys the queue pairs and settles everything that hung on them.
    fn close_accounts(&mut self, index: usize, live: [bool; 2]) -> Result<(), Violation> {
        let plan = self.connections[index].plan;
        let ends = std::mem::take(&mut self.connections[index].ends);
        let mut left = Vec::new();
        for (side, mut end) in ends.into_iter().enumerate() {
            // A restarted host may have given the number to another queue pair since.
            let (name, owner) = ((end.host, end.qp.qpn().get()), Owner::End { connection: index, side });
            if self.owners.get(&name) == Some(&owner) {
                self.owners.remove(&name);
            }
            if live[side] && end.recvs.is_none() {
                let seen = self.nodes[end.host].last_receive.remove(&name.1);
                ensure!(seen, "connection {index} end {side}: no LAST_WQE_REACHED for {:?}", end.qp);
            }
            drop((end.cm.take(), end.qp));
            // A dead poster's requests may or may not have reached the peer.
            let open = end.pending.values().filter(|pending| pending.message).count() as u64;
            self.verify_stream(index, side, &end.out, live[1 - side], end.unknown_messages + open)?;
            left.append(&mut end.unknown);
            left.extend(end.not_landed.into_iter().map(|(_, landing)| landing));
            left.extend(end.pending.into_values());
        }
        for pending in left {
            if let Some(place) = pending.writes {
                self.settle(place, Outcome::Unknown)?;
            }
            if let Some(place) = pending.reads {
                self.give_back(place);
            }
            if let Some((host, node, word)) = pending.atomic {
                self.atomic_unknown(host, node, word);
            }
        }
        for host in plan.hosts {
            self.renew_openings(host, index)?;
        }
        Ok(())
    }

    fn verify_stream(
        &self,
        index: usize,
        side: usize,
        stream: &Stream,
        receiver_lived: bool,
        unknown: u64,
    ) -> Result<(), Violation> {
        let name = format!("messages of connection {index} from end {side}");
        match stream {
            // Where success says nothing of the peer, any number of the last may never have arrived.
            Stream::Reliable(stream) if receiver_lived && self.traits().success_is_placement => {
                stream.verify(&name, unknown)
            }
            _ => Ok(()),
        }
    }

    fn renew_openings(&mut self, host: usize, index: usize) -> Result<(), Violation> {
        if !self.world.is_up(HostId(host)) {
            return Ok(());
        }
        let node = &mut self.nodes[host];
        for i in 0..node.openings.len() {
            if node.openings[i].used_by.is_some_and(|(connection, _)| connection == index) {
                node.renew_opening(i).map_err(|e| violation!("renewing opening {i} of host {host}: {e}"))?;
            }
        }
        Ok(())
    }
}
