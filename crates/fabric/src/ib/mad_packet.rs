//! MADs as packets on a link: LRH, perhaps GRH, BTH, DETH, 256 bytes, ICRC, VCRC.
//!
//! Read IBTA §13.3 and §13.5.1 first. Used by the agents here, and by hosts that put management datagrams on a port of
//! theirs. Only headers: what the MAD asks is its class's affair.

use everywire_wire::grh::{Grh, NEXT_HEADER_IBA};
use everywire_wire::vcrc::{VCRC_LEN, check_length, seal};
use everywire_wire::{
    Bth, Deth, Gid, Lid, Lnh, Lrh, MAD_LEN, Mad, Opcode, PKey, Psn, QKey, Qpn, WireError, icrc_ib,
};

const ICRC_LEN: usize = 4;
/// Hop limit of MADs with a GRH, which may go to another subnet.
const HOP_LIMIT: u8 = 64;

/// Where a MAD goes, and what it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadRoute {
    /// Source.
    pub slid: Lid,
    /// Destination.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// Lane: 15 for subnet management.
    pub vl: u8,
    /// Partition.
    pub pkey: PKey,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// Source queue pair.
    pub src_qp: Qpn,
    /// Of the destination queue pair.
    pub qkey: QKey,
    /// Source and destination GID where the packet has a GRH.
    pub gids: Option<(Gid, Gid)>,
}

impl MadRoute {
    /// From QP0 to QP0.
    pub fn management(slid: Lid, dlid: Lid) -> MadRoute {
        MadRoute {
            slid,
            dlid,
            sl: 0,
            vl: Lrh::VL_SUBNET_MANAGEMENT,
            pkey: PKey::DEFAULT,
            dest_qp: Qpn::SMI,
            src_qp: Qpn::SMI,
            qkey: QKey(0),
            gids: None,
        }
    }

    /// From QP1 to QP1.
    pub fn services(slid: Lid, dlid: Lid, sl: u8) -> MadRoute {
        let (dest_qp, src_qp, qkey) = (Qpn::GSI, Qpn::GSI, QKey::GSI);
        MadRoute { sl, vl: 0, dest_qp, src_qp, qkey, ..MadRoute::management(slid, dlid) }
    }

    /// The way back.
    pub fn reversed(&self) -> MadRoute {
        MadRoute {
            slid: self.dlid,
            dlid: self.slid,
            dest_qp: self.src_qp,
            src_qp: self.dest_qp,
            qkey: if self.dest_qp == Qpn::SMI { QKey(0) } else { QKey::GSI },
            gids: self.gids.map(|(source, destination)| (destination, source)),
            ..*self
        }
    }

    /// A packet, LRH to VCRC.
    pub fn packet(&self, mad: &Mad) -> Vec<u8> {
        let grh_len = if self.gids.is_some() { Grh::LEN } else { 0 };
        let from_bth = Bth::LEN + Deth::LEN + MAD_LEN + ICRC_LEN;
        let len = Lrh::LEN + grh_len + from_bth;
        let mut packet = vec![0; len + VCRC_LEN];
        let lnh = if self.gids.is_some() { Lnh::IbaGlobal } else { Lnh::IbaLocal };
        let lrh = Lrh {
            vl: self.vl,
            sl: self.sl,
            lnh,
            dlid: self.dlid,
            pkt_len: (len / 4) as u16,
            slid: self.slid,
            ..Lrh::default()
        };
        lrh.emit(&mut packet);
        if let Some((sgid, dgid)) = self.gids {
            let (traffic_class, flow_label, hop_limit) = (0, 0, HOP_LIMIT);
            let payload_len = from_bth as u16;
            let next_header = NEXT_HEADER_IBA;
            let grh = Grh {
                ip_version: 6,
                traffic_class,
                flow_label,
                payload_len,
                next_header,
                hop_limit,
                sgid,
                dgid,
            };
            grh.emit(&mut packet[Lrh::LEN..]);
        }
        let at = Lrh::LEN + grh_len;
        let bth = Bth {
            opcode: Opcode::UD_SEND_ONLY,
            mig_req: true,
            pkey: self.pkey,
            dest_qp: self.dest_qp,
            psn: Psn::new(0),
            ..Bth::default()
        };
        bth.emit(&mut packet[at..]);
        Deth { qkey: self.qkey, reserved: 0, src_qp: self.src_qp }.emit(&mut packet[at + Bth::LEN..]);
        let mad_at = at + Bth::LEN + Deth::LEN;
        packet[mad_at..mad_at + MAD_LEN].copy_from_slice(mad);
        let icrc_at = len - ICRC_LEN;
        if let Some(icrc) = icrc_ib(&packet[..icrc_at]) {
            packet[icrc_at..len].copy_from_slice(&icrc.to_le_bytes());
        }
        seal(&mut packet);
        packet
    }

    /// The MAD in a packet, LRH to VCRC, and the way that it came.
    ///
    /// Errors: not a UD SEND of 256 bytes, lengths that disagree, a wrong ICRC.
    pub fn parse(packet: &[u8]) -> Result<(MadRoute, Mad), WireError> {
        let lrh = check_length(packet)?;
        let global = lrh.lnh == Lnh::IbaGlobal;
        let at = Lrh::LEN + if global { Grh::LEN } else { 0 };
        let len = at + Bth::LEN + Deth::LEN + MAD_LEN + ICRC_LEN;
        if packet.len() != len + VCRC_LEN {
            return Err(WireError::Invalid { what: "length of a MAD's packet", value: packet.len() as u64 });
        }
        let gids = if global {
            let grh = Grh::parse(&packet[Lrh::LEN..])?;
            Some((grh.sgid, grh.dgid))
        } else {
            None
        };
        let bth = Bth::parse(&packet[at..])?;
        if bth.opcode != Opcode::UD_SEND_ONLY || bth.pad_count != 0 {
            return Err(WireError::Invalid { what: "opcode of a MAD's packet", value: bth.opcode.0.into() });
        }
        let icrc_at = len - ICRC_LEN;
        let icrc = icrc_ib(&packet[..icrc_at]).map(u32::to_le_bytes);
        if icrc.as_ref().map(|icrc| &icrc[..]) != Some(&packet[icrc_at..len]) {
            return Err(WireError::Invalid { what: "ICRC", value: 0 });
        }
        let deth = Deth::parse(&packet[at + Bth::LEN..])?;
        let mut mad = [0; MAD_LEN];
        mad.copy_from_slice(&packet[at + Bth::LEN + Deth::LEN..icrc_at]);
        let route = MadRoute {
            slid: lrh.slid,
            dlid: lrh.dlid,
            sl: lrh.sl,
            vl: lrh.vl,
            pkey: bth.pkey,
            dest_qp: bth.dest_qp,
            src_qp: deth.src_qp,
            qkey: deth.qkey,
            gids,
        };
        Ok((route, mad))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everywire_wire::vcrc::check_packet;

    #[test]
    fn a_mad_travels_in_290_bytes_or_330() {
        let mad: Mad = std::array::from_fn(|i| i as u8);
        let plain = MadRoute::services(Lid(3), Lid(9), 2);
        let packet = plain.packet(&mad);
        assert_eq!((packet.len(), check_packet(&packet).unwrap().pkt_len), (290, 72));
        assert_eq!(MadRoute::parse(&packet), Ok((plain, mad)));
        let global = MadRoute { gids: Some((Gid([1; 16]), Gid([2; 16]))), ..plain };
        let packet = global.packet(&mad);
        assert_eq!(packet.len(), 330);
        assert_eq!(MadRoute::parse(&packet), Ok((global, mad)));
        let back = global.reversed();
        assert_eq!((back.dlid, back.gids), (Lid(3), Some((Gid([2; 16]), Gid([1; 16])))));
        for at in [12, 49, 100, 325] {
            let mut wrong = packet.clone();
            wrong[at] ^= 1;
            assert!(MadRoute::parse(&wrong).is_err(), "byte {at}");
        }
    }
}
