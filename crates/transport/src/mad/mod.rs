//! Management datagrams on QP1: where they go and how they travel as UD packets.
//!
//! Read first: IBTA volume 1 §13.4 (MADs), §3.9.4.1 and annex A17 (QP1 over RoCE v2). [`sa_client`] asks the subnet
//! administrator on InfiniBand, [`rmpp`] puts answers of many packets together. A MAD is always 256 bytes in one UD
//! SEND-only packet with the well-known Q_Key. Agents (`cm::ib` today) exchange plain 256-byte arrays and [`MadPath`]s; the
//! device that owns QP1 does the headers with [`Gsi`].

pub mod rmpp;
pub mod sa_client;

use std::net::IpAddr;

use everywire_wire::{Bth, Deth, Lid, Opcode, PKey, Psn, QKey, Qpn, RocePacket};

use crate::ib::{LocalRoute, PacketMeta, PathLink};

/// Bytes of every MAD (IBTA §13.4.2).
pub const MAD_LEN: usize = 256;

/// The two ends of a MAD exchange, seen from this port. On InfiniBand without a GRH the addresses are made from the LIDs
/// ([`lid_address`]), so that they tell peers apart as well as GIDs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MadPath {
    /// What the MAD's packet has before its BTH.
    pub link: PathLink,
    /// Our address: what the peer's MAD was sent to, and what ours leaves from.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// The interface index that makes a link-local IPv6 address unique; 0 otherwise.
    pub scope_id: u32,
}

/// A LID in the form of an address: `::LID`, which no GID is, since none has an empty prefix.
pub fn lid_address(lid: Lid) -> IpAddr {
    std::net::Ipv6Addr::from(u128::from(lid.0)).into()
}

impl MadPath {
    /// The way back of a MAD that came with this.
    pub fn back(meta: &PacketMeta, scope_id: u32) -> MadPath {
        let Some(came) = meta.local_route() else {
            return MadPath { link: meta.link, local: meta.dst, remote: meta.src, scope_id };
        };
        let link = PathLink::Lrh(LocalRoute { slid: came.dlid, dlid: came.slid, ..*came });
        MadPath::on(link, meta.dst, meta.src, scope_id)
    }

    /// From one of our addresses to a peer's over `link`.
    pub fn on(link: PathLink, local: IpAddr, remote: IpAddr, scope_id: u32) -> MadPath {
        match link {
            PathLink::Lrh(route) if !route.grh => {
                MadPath { link, local: lid_address(route.slid), remote: lid_address(route.dlid), scope_id: 0 }
            }
            _ => MadPath { link, local, remote, scope_id },
        }
    }
}

/// Why a packet to QP1 is not a MAD for an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsiDrop {
    /// Not a UD SEND-only packet.
    Opcode,
    /// The Q_Key is not QP1's (IBTA C10-15).
    QKey,
    /// The payload is not 256 bytes.
    Length,
}

/// QP1's sending side: wraps MADs into UD packets and numbers them.
#[derive(Debug, Default)]
pub struct Gsi {
    psn: Psn,
}

impl Gsi {
    /// Starts at `psn`; the receiver of a UD packet does not check it.
    pub fn new(psn: Psn) -> Gsi {
        Gsi { psn }
    }

    /// The UD packet that carries `mad` to the peer's QP1. The ICRC is the sender's business.
    pub fn packet<'a>(&mut self, mad: &'a [u8; MAD_LEN]) -> RocePacket<'a> {
        let psn = self.psn;
        self.psn = psn.next();
        RocePacket {
            bth: Bth {
                opcode: Opcode::UD_SEND_ONLY,
                mig_req: true,
                pkey: PKey::DEFAULT,
                dest_qp: Qpn::GSI,
                psn,
                ..Bth::default()
            },
            deth: Some(Deth { qkey: QKey::GSI, src_qp: Qpn::GSI, ..Deth::default() }),
            payload: mad,
            ..RocePacket::default()
        }
    }

    /// The MAD in a packet that was addressed to QP1.
    pub fn mad<'a>(packet: &RocePacket<'a>) -> Result<&'a [u8; MAD_LEN], GsiDrop> {
        let (Opcode::UD_SEND_ONLY, Some(deth)) = (packet.bth.opcode, packet.deth) else {
            return Err(GsiDrop::Opcode);
        };
        if deth.qkey != QKey::GSI {
            return Err(GsiDrop::QKey);
        }
        packet.payload.try_into().map_err(|_| GsiDrop::Length)
    }
}
