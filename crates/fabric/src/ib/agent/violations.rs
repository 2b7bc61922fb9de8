//! Wrong keys at an adapter's port: counted in its PortInfo, and traps 257 (P_Key) and 258 (Q_Key).
//!
//! Read IBTA §10.9.3, §10.2.5 and §14.2.5.1 (TrapKey) first. The port itself sees packets of partitions that it is not in,
//! and MADs to its agents with a wrong Q_Key; what a queue pair refuses, its driver tells by [`Subnet::report_violation`].
//! Traps about keys are as far apart as traps are repeated.

use std::time::Instant;

use everywire_wire::grh::Grh;
use everywire_wire::notice::{Notice, TrapKey, kind, trap};
use everywire_wire::{Bth, Deth, Gid, Lid, Lnh, Lrh, PKey, QKey, Qpn, WireError};

use crate::clock::SimTime;
use crate::ib::config::PortId;
use crate::ib::mad_packet::MadRoute;
use crate::ib::subnet::Subnet;

/// The key that did not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongKey {
    /// Of a partition that the port or queue pair is not in.
    PKey(PKey),
    /// Not the queue pair's.
    QKey(QKey),
}

/// A packet that was dropped for its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// What was wrong.
    pub key: WrongKey,
    /// Sender.
    pub slid: Lid,
    /// Receiver; may be a group.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// Sender's queue pair; 0 where the packet does not tell.
    pub source_qp: Qpn,
    /// Receiver's queue pair.
    pub dest_qp: Qpn,
    /// Sender's and receiver's GID where the packet has a GRH.
    pub gids: Option<(Gid, Gid)>,
}

impl Violation {
    /// From a packet, LRH first, that has a BTH.
    ///
    /// Errors: a raw packet, or one cut short.
    pub fn of_packet(key: WrongKey, packet: &[u8]) -> Result<Violation, WireError> {
        let lrh = Lrh::parse(packet)?;
        let (gids, at) = match lrh.lnh {
            Lnh::IbaLocal => (None, Lrh::LEN),
            Lnh::IbaGlobal => {
                let grh = Grh::parse(packet.get(Lrh::LEN..).unwrap_or_default())?;
                (Some((grh.sgid, grh.dgid)), Lrh::LEN + Grh::LEN)
            }
            other => {
                return Err(WireError::Invalid { what: "LNH of a packet with a key", value: other as u64 });
            }
        };
        let bth = Bth::parse(packet.get(at..).unwrap_or_default())?;
        let after = packet.get(at + Bth::LEN..).unwrap_or_default();
        let is_datagram = bth.opcode.0 >> 5 == 3;
        let source_qp = if is_datagram { Deth::parse(after)?.src_qp } else { Qpn::new(0) };
        let Lrh { slid, dlid, sl, .. } = lrh;
        Ok(Violation { key, slid, dlid, sl, source_qp, dest_qp: bth.dest_qp, gids })
    }

    /// The same with the key that the packet has: its Q_Key, or else its P_Key.
    ///
    /// Errors: as above, and a Q_Key asked of what is no datagram.
    pub fn of_dropped(is_qkey: bool, packet: &[u8]) -> Result<Violation, WireError> {
        let mut violation = Violation::of_packet(WrongKey::PKey(PKey(0)), packet)?;
        let at = Lrh::LEN + if violation.gids.is_some() { Grh::LEN } else { 0 };
        let bth = Bth::parse(packet.get(at..).unwrap_or_default())?;
        violation.key = match is_qkey {
            true => WrongKey::QKey(Deth::parse(packet.get(at + Bth::LEN..).unwrap_or_default())?.qkey),
            false => WrongKey::PKey(bth.pkey),
        };
        Ok(violation)
    }

    pub(super) fn of_route(key: WrongKey, route: &MadRoute) -> Violation {
        let MadRoute { slid, dlid, sl, src_qp: source_qp, dest_qp, gids, .. } = *route;
        Violation { key, slid, dlid, sl, source_qp, dest_qp, gids }
    }
}

impl Subnet {
    /// The driver of an adapter's port has dropped a packet for its key: counted in PortInfo, and told to the subnet manager.
    /// Other ports are none of its business: ignored.
    pub fn report_violation(&mut self, now: Instant, port: PortId, violation: &Violation) {
        let now = self.enter(now);
        if let Some(index) = self.adapter(port) {
            self.key_violation(now, index, violation);
        }
    }

    /// A packet of a partition that the adapter's port is not in.
    #[cold]
    pub(in crate::ib) fn refuse_partition(&mut self, now: SimTime, index: u32, id: u32) {
        let packet = self.packets.get(id);
        let Some(pkey) = packet.pkey() else { return };
        let bytes = packet.clone().into_bytes();
        if let Ok(violation) = Violation::of_packet(WrongKey::PKey(pkey), &bytes) {
            self.key_violation(now, index, &violation);
        }
    }

    pub(super) fn key_violation(&mut self, now: SimTime, index: u32, violation: &Violation) {
        // A packet that a switch got for itself is its port 0's affair.
        let index = self.management_port(index);
        let info = &mut self.ports[index as usize].info;
        let (counter, number, key) = match violation.key {
            WrongKey::PKey(pkey) => (&mut info.p_key_violations, trap::BAD_P_KEY, u32::from(pkey.0)),
            WrongKey::QKey(qkey) => (&mut info.q_key_violations, trap::BAD_Q_KEY, qkey.0),
        };
        *counter = counter.saturating_add(1);
        let (lid, suppressed) = (info.lid, info.mcast_pkey_trap_suppression != 0);
        if number == trap::BAD_P_KEY && suppressed && violation.dlid.is_multicast() {
            return;
        }
        let (gid1, gid2) = violation.gids.unwrap_or_default();
        let details = TrapKey {
            lid1: violation.slid,
            lid2: violation.dlid,
            key,
            sl: violation.sl & 15,
            qp1: violation.source_qp,
            qp2: violation.dest_qp,
            gid1,
            gid2,
            ..TrapKey::default()
        };
        let mut notice = Notice::generic(kind::SECURITY, self.producer(index), number, lid);
        details.emit(&mut notice.details);
        self.raise_key_trap(now, index, notice);
    }
}
