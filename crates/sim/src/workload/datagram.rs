//! Datagrams: one UD queue pair a host, everybody sends to everybody.

use std::collections::BTreeMap;

use everywire_verbs::{
    Completion, Psn, QKey, QpAttr, QpCaps, QpInit, QpState, QpType, RecvWr, SendOp, SendWr, UdDest, WcStatus,
};

use super::connection::{INLINE, RECV_DEPTH, SEGMENTS, SEND_DEPTH};
use super::drive::received;
use super::end::{End, Pending};
use super::node::QUEUES;
use super::rig::{Owner, RECV_BIT, Rig};
use super::slots::Layout;
use crate::checkers::Violation;
use crate::checkers::completions::{Ended, SendExpect};
use crate::checkers::delivery::{LossyStream, Message, Received};
use crate::checkers::shadow::Outcome;
use crate::{ensure, violation};

/// Bytes before a datagram in its receive buffer (IBTA vol. 1 §10.2.2).
const GRH: usize = 40;
const QKEY: QKey = QKey(0x0123_4567);

/// A host and which of its lives.
type Life = (usize, u64);

/// The datagram queue pairs and what they sent each other.
#[derive(Default)]
pub struct Datagrams {
    /// By host.
    pub ends: BTreeMap<usize, End>,
    /// By sender and receiver, each a host and its life.
    flows: BTreeMap<(Life, Life), LossyStream>,
}

impl Rig {
    /// Makes the datagram queue pair of a host, where the wire has datagrams.
    pub fn open_datagrams(&mut self, host: usize) -> Result<(), Violation> {
        if !self.traits().is_ib {
            return Ok(());
        }
        let queues = [self.dice.below(QUEUES), self.dice.below(QUEUES)];
        let node = &self.nodes[host];
        let init = QpInit {
            caps: QpCaps {
                max_send_wr: SEND_DEPTH as u32,
                max_recv_wr: RECV_DEPTH as u32,
                max_send_sge: SEGMENTS as u32,
                max_recv_sge: SEGMENTS as u32,
                max_inline_data: INLINE as u32,
            },
            recv_cq: &node.cqs[queues[1]],
            ..QpInit::new(QpType::Ud, &node.cqs[queues[0]])
        };
        let made = node.pd.create_qp(&init).and_then(|qp| {
            let init =
                QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..QpAttr::to(QpState::Init) };
            qp.modify(&init)?;
            qp.modify(&QpAttr::to(QpState::Rtr))?;
            qp.modify(&QpAttr { sq_psn: Some(Psn::new(0xff_fffe)), ..QpAttr::to(QpState::Rts) })?;
            Ok(qp)
        });
        let qp = made.map_err(|e| violation!("opening datagrams of host {host}: {e}"))?;
        self.owners.insert((host, qp.qpn().get()), Owner::Datagram { host });
        let name = format!("datagrams of host {host}");
        let end = End::new(&name, host, node.number, qp, queues, false, false);
        self.datagrams.ends.insert(host, end);
        Ok(())
    }

    /// The host is gone, and its queue pair with it.
    pub fn drop_datagrams(&mut self, host: usize) {
        if let Some(end) = self.datagrams.ends.remove(&host) {
            self.owners.remove(&(host, end.qp.qpn().get()));
        }
    }

    /// Posts a receive for a datagram of any length.
    pub fn post_datagram_recv(&mut self, host: usize) -> Result<(), Violation> {
        let mtu = self.nodes[host].device.port().active_mtu.bytes();
        let spare = self.dice.below(3);
        let Some(slot) = self.nodes[host].areas[0].take(&mut self.dice, GRH + mtu + spare, 1) else {
            return Ok(());
        };
        let layout = Layout::new(&mut self.dice, slot, SEGMENTS);
        let id = self.id() | RECV_BIT;
        let node = &mut self.nodes[host];
        node.shadow.claim_scribble(slot.offset, slot.len)?;
        let wr = RecvWr::new(id, layout.pieces.iter().map(|piece| node.main.sge(piece.range())));
        let Some(end) = self.datagrams.ends.get_mut(&host) else { return Ok(()) };
        end.qp.post_recv(wr).map_err(|e| violation!("posting a datagram receive on host {host}: {e}"))?;
        if let Some(recvs) = &mut end.recvs {
            recvs.posted(id);
        }
        end.recv_open.insert(id, layout);
        self.tally.receives += 1;
        Ok(())
    }

    /// Sends a datagram from `from` to `to`.
    pub fn post_datagram(&mut self, from: usize, to: usize) -> Result<(), Violation> {
        let Some(peer) = self.datagrams.ends.get(&to) else { return Ok(()) };
        let (qpn, peer_node) = (peer.qp.qpn(), peer.node);
        let mtu = self.nodes[from].device.port().active_mtu.bytes();
        let len = self.size(mtu).min(mtu);
        let Some(source) = self.source(from, len)? else { return Ok(()) };
        let id = self.id();
        let imm = self.dice.chance(1, 2).then(|| self.dice.bits() as u32);
        let solicited = self.dice.chance(1, 3);
        // A Q_Key that is wrong is dropped at the receiver, and counted (IBTA C9-50).
        let wrong_qkey = self.dice.chance(1, 40);
        let path = self.path(from, to);
        let qkey = if wrong_qkey { QKey(0x0bad_0bad) } else { QKEY };
        let op = imm.map_or(SendOp::Send, SendOp::SendImm);
        let opcode = op.wc_opcode();
        let wr = SendWr { solicited, ud: Some(UdDest { path, qpn, qkey }), ..source.request(id, op) };
        let node = self.nodes[from].number;
        if !wrong_qkey {
            let message = Message {
                wr_id: id,
                length: (GRH + len) as u32,
                payload: source.payload,
                imm,
                is_write: false,
                invalidate: None,
                solicited,
            };
            self.datagrams.flows.entry(((from, node), (to, peer_node))).or_default().sent(message);
        }
        let Some(end) = self.datagrams.ends.get_mut(&from) else { return Ok(()) };
        end.sends.posted(SendExpect {
            wr_id: id,
            signaled: true,
            opcode,
            byte_len: None,
            must_fail: Vec::new(),
        });
        end.pending.insert(id, Pending { sources: source.slots, ..Pending::default() });
        end.qp.post_send(wr).map_err(|e| violation!("posting a datagram on host {from}: {e}"))?;
        self.tally.sends += 1;
        Ok(())
    }

    /// A datagram arrived.
    pub fn datagram_received(&mut self, host: usize, wc: &Completion) -> Result<(), Violation> {
        let lossy = self.plan.lossy();
        let Some(end) = self.datagrams.ends.get_mut(&host) else {
            return Err(violation!("host {host} is down"));
        };
        let number = end.node;
        let how = end.recvs.as_mut().map_or(Ok(Ended::Success), |recvs| recvs.completed(wc))?;
        ensure!(
            how == Ended::Success && wc.status == WcStatus::Success,
            "datagram receive of host {host}: {wc:?}"
        );
        let Some(layout) = end.recv_open.remove(&wc.wr_id) else {
            return Err(violation!("host {host}: nothing is known of {:#x}", wc.wr_id));
        };
        let (bytes, content) = received(&self.nodes[host], &layout, wc, false)?;
        ensure!(wc.grh && content.len() >= GRH, "datagram {:#x} on host {host} has no GRH", wc.wr_id);
        let (grh, payload) = content.split_at(GRH);
        let mut hosts = 0..self.plan.ips.len();
        let Some(from) = hosts.find(|&host| source_in_grh(grh) == Some(self.address(host))) else {
            return Err(violation!(
                "datagram {:#x} on host {host}: no host has the source in {grh:02x?}",
                wc.wr_id
            ));
        };
        let got = Received {
            payload,
            length: wc.byte_len,
            imm: wc.imm,
            is_write: false,
            invalidate: None,
            solicited: wc.solicited,
        };
        let mut why = String::from("no flow");
        let lives = self
            .datagrams
            .flows
            .iter_mut()
            .filter(|((sender, to), _)| sender.0 == from && *to == (host, number));
        let mut found = false;
        for (_, flow) in lives {
            found = flow.received(&got, lossy).is_some();
            if found {
                break;
            }
            why = flow.explain(&got);
        }
        ensure!(found, "datagram from host {from} to host {host}: {why}");
        let old = self.nodes[host].shadow.known(layout.slot.offset, layout.slot.len);
        ensure!(
            bytes == layout.scatter(old, &content),
            "datagram {:#x} on host {host} changed bytes beyond its end",
            wc.wr_id
        );
        self.nodes[host].settle(layout.slot, Outcome::Done)?;
        self.nodes[host].areas[0].give_back(layout.slot);
        Ok(())
    }

    /// How many datagrams were sent and delivered in all.
    pub fn datagram_totals(&self) -> (u64, u64) {
        let totals = self.datagrams.flows.values().map(LossyStream::totals);
        totals.fold((0, 0), |sum, flow| (sum.0 + flow.0, sum.1 + flow.1))
    }
}

/// The sender's address in the 40 bytes before a datagram: a GRH or an IPv6 header, or an IPv4 header in the last 20 (IBTA annex
/// A17.4.5.2).
fn source_in_grh(grh: &[u8]) -> Option<std::net::IpAddr> {
    if grh[0] >> 4 == 6 {
        let octets: [u8; 16] = grh[8..24].try_into().ok()?;
        return Some(std::net::IpAddr::from(octets).to_canonical());
    }
    let octets: [u8; 4] = grh[32..36].try_into().ok()?;
    Some(octets.into())
}
