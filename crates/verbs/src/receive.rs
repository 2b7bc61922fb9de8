//! What arrives: each datagram or frame is checked, and handed to one queue pair, to the members of a group, or to QP1.
//!
//! Read IBTA vol. 1 §9.6 (packet validation) and annex A17 first. In order: shape, ICRC, transport version, destination.
//! Whatever fails is dropped and counted, never answered. P_Key, Q_Key, source and sequence are the queue pair's own
//! checks. Multicast groups, and the GSI's datagrams in both directions, are here too.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use everywire_transport::ib::{Burst, Counter, PacketMeta, Path, PathLink};
use everywire_transport::mad::{Gsi, GsiDrop, MAD_LEN, MadPath};
use everywire_wire::grh::{Grh, NEXT_HEADER_IBA};
use everywire_wire::icrc::FLAGS_DF;
use everywire_wire::{HiddenId, IcrcV4, IcrcV6, Qpn, RocePacket, Service, icrc_grh, icrc_v4, icrc_v6};

use crate::config::{GidType, IcrcCheck};
use crate::counters::DeviceCounter;
use crate::drive::{Datagram, Frame};
use crate::state::State;

/// BTH and ICRC: nothing shorter is a packet.
const SHORTEST: usize = 16;

/// Bytes of the ICRC.
pub(crate) const ICRC_LEN: usize = 4;

/// Identifications that our own drivers write: the index within a train.
const OUR_IDS: u16 = everywire_transport::ib::burst::MAX_BURST_SEGMENTS as u16;

impl State {
    /// Judges a datagram and hands it on.
    pub(crate) fn receive(&mut self, now: Instant, datagram: &Datagram<'_>) {
        if let Err(drop) = self.accept(now, datagram) {
            self.core.counters.add_device(drop, 1);
        }
    }

    /// Judges a packet of a wire without IP and hands it on.
    pub(crate) fn receive_frame(&mut self, now: Instant, frame: Frame<'_>) {
        let accepted = match frame {
            Frame::RoceV1(bytes) => self.accept_roce_v1(now, bytes),
            Frame::InfiniBand(bytes) => self.accept_infiniband(now, bytes),
        };
        if let Err(drop) = accepted {
            self.core.counters.add_device(drop, 1);
        }
    }

    #[inline]
    fn accept(&mut self, now: Instant, datagram: &Datagram<'_>) -> Result<(), DeviceCounter> {
        check_packet_length(datagram.bytes)?;
        let (src, dst) = (datagram.src.ip(), datagram.dst);
        if !dst.is_multicast() && !self.has_gid(dst, GidType::RoceV2) {
            return Err(DeviceCounter::DropWrongAddress);
        }
        if !icrc_is_right(self.config.icrc_check, datagram) {
            return Err(DeviceCounter::IcrcErrors);
        }
        let meta = PacketMeta {
            link: PathLink::Udp,
            src,
            dst,
            traffic_class: datagram.tos,
            hop_limit: datagram.ttl,
            ip_id: datagram.ip_id.unwrap_or(0),
            udp_payload_len: datagram.bytes.len() as u16,
            flow_label: 0,
            dlid_path_bits: 0,
        };
        let scope_id = match datagram.src {
            SocketAddr::V6(src) => src.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        self.dispatch(now, datagram.bytes, &meta, scope_id)
    }

    /// GRH to ICRC, from an Ethernet frame (IBTA annex A16).
    fn accept_roce_v1(&mut self, now: Instant, bytes: &[u8]) -> Result<(), DeviceCounter> {
        let (grh_bytes, rest) = bytes.split_first_chunk().ok_or(DeviceCounter::DropMalformed)?;
        let (grh, packet) = grh_and_packet(grh_bytes, rest)?;
        check_packet_length(packet)?;
        let (src, dst) = (grh.sgid.to_ip(), grh.dgid.to_ip());
        let ours = self.config.gids.iter().find(|gid| gid.ip == dst && gid.ty == GidType::RoceV1);
        if !dst.is_multicast() && ours.is_none() {
            return Err(DeviceCounter::DropWrongAddress);
        }
        // A link-local peer is on our interface: such frames cross no router.
        let scope_id = if grh.sgid.is_link_local() { ours.map_or(0, |gid| gid.scope_id) } else { 0 };
        let (body, icrc) = packet.split_at(packet.len() - ICRC_LEN);
        if icrc_grh(grh_bytes, body).to_le_bytes() != icrc {
            return Err(DeviceCounter::IcrcErrors);
        }
        let meta = PacketMeta {
            link: PathLink::Grh,
            src,
            dst,
            traffic_class: grh.traffic_class,
            hop_limit: grh.hop_limit,
            ip_id: 0,
            udp_payload_len: packet.len() as u16,
            flow_label: grh.flow_label,
            dlid_path_bits: 0,
        };
        self.dispatch(now, packet, &meta, scope_id)
    }

    /// A packet whose ICRC is right, BTH to ICRC, goes to its queue pairs.
    #[inline]
    pub(crate) fn dispatch(
        &mut self,
        now: Instant,
        bytes: &[u8],
        meta: &PacketMeta,
        scope_id: u32,
    ) -> Result<(), DeviceCounter> {
        let packet = RocePacket::parse(bytes).map_err(|_| DeviceCounter::DropMalformed)?;
        if packet.bth.tver != 0 {
            return Err(DeviceCounter::DropBadVersion); // IBTA §9.6.1.1.1
        }
        match packet.bth.dest_qp {
            _ if packet.bth.opcode.service() == Service::Cnp => Err(DeviceCounter::CnpReceived),
            Qpn::MULTICAST => self.accept_group(now, &packet, meta),
            // IBTA §9.6.1.2: groups are only reached by their QPN
            _ if meta.dst.is_multicast() => Err(DeviceCounter::DropNoGroupMember),
            Qpn::SMI => Err(DeviceCounter::DropSmi),
            Qpn::GSI => self.accept_mad(now, &packet, meta, scope_id),
            qpn => {
                let slot = self.qps.slot(qpn).ok_or(DeviceCounter::DropUnknownQp)?;
                self.with_slot(slot, |qp, core| {
                    if let Some(qp) = qp.ib() {
                        qp.handle_packet(core, now, &packet, meta);
                    }
                });
                Ok(())
            }
        }
    }

    /// A packet to QP1 goes to the connection manager.
    fn accept_mad(
        &mut self,
        now: Instant,
        packet: &RocePacket<'_>,
        meta: &PacketMeta,
        scope_id: u32,
    ) -> Result<(), DeviceCounter> {
        if !self.has_pkey(packet.bth.pkey) {
            return Err(DeviceCounter::DropGsi);
        }
        let mad = Gsi::mad(packet).map_err(|reason| {
            if reason == GsiDrop::QKey {
                // IBTA §10.2.5: a violation as of any queue pair, which the port is told of.
                self.core.counters.add(Counter::DropBadQkey, 1);
            }
            DeviceCounter::DropGsi
        })?;
        self.core.counters.add(Counter::RcvdPkts, 1);
        if self.ib.is_some() && self.ib_handle_mad(now, mad) {
            return Ok(());
        }
        let back = MadPath::back(meta, scope_id);
        if !self.gmp_deliver(&back, mad) {
            self.cm_handle_mad(now, back, mad);
        }
        Ok(())
    }

    /// Puts the connection manager's next MAD into `burst`.
    pub(crate) fn next_mad(&mut self, now: Instant, burst: &mut Burst) -> bool {
        // What the administrator has answered at once, out of what it has said before, may make MADs of the CM.
        self.ib_run(now);
        let mad = self.cm_poll_transmit(now).or_else(|| self.ib_poll_transmit(now));
        let mad = mad.or_else(|| self.gmp_poll_transmit());
        let Some((to, mad)) = mad else { return false };
        let ends = Path::new(to.local, to.remote, self.config.source_ports[0]);
        let path = Path { scope_id: to.scope_id, ..ends.over(to.link) };
        let packet = self.gsi.packet(&mad);
        burst.clear();
        let filled = burst.push(&path, &RocePacket { payload: &[], ..packet }, MAD_LEN, |payload| {
            payload.copy_from_slice(&mad);
            Ok::<(), ()>(())
        });
        self.core.counters.add(Counter::SentPkts, 1);
        filled.is_ok()
    }
}

/// Whether there can be a packet in so many bytes, BTH to ICRC.
#[inline]
pub(crate) fn check_packet_length(bytes: &[u8]) -> Result<(), DeviceCounter> {
    let length = bytes.len();
    if length < SHORTEST || !length.is_multiple_of(4) || length > usize::from(u16::MAX) {
        return Err(DeviceCounter::DropMalformed);
    }
    Ok(())
}

/// The GRH and what it says is its payload; Ethernet padding behind that is cut off (IBTA §8.3, annex A16.4).
pub(crate) fn grh_and_packet<'a>(
    grh: &[u8; Grh::LEN],
    rest: &'a [u8],
) -> Result<(Grh, &'a [u8]), DeviceCounter> {
    let grh = Grh::parse(grh).map_err(|_| DeviceCounter::DropMalformed)?;
    if grh.ip_version != 6 || grh.next_header != NEXT_HEADER_IBA {
        return Err(DeviceCounter::DropMalformed);
    }
    let packet = rest.get(..usize::from(grh.payload_len)).ok_or(DeviceCounter::DropMalformed)?;
    Ok((grh, packet))
}

/// Checks the ICRC as far as the driver shows what it covers.
#[inline]
fn icrc_is_right(check: IcrcCheck, datagram: &Datagram<'_>) -> bool {
    let (body, tail) = datagram.bytes.split_at(datagram.bytes.len() - ICRC_LEN);
    let Ok(received) = <[u8; ICRC_LEN]>::try_from(tail) else { return false };
    let src_port = datagram.src.port();
    match (datagram.src.ip(), datagram.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let id = datagram.ip_id.unwrap_or(0);
            let net = IcrcV4 { src, dst, id, flags_frag: FLAGS_DF, src_port };
            match (datagram.ip_id, check) {
                (Some(_), _) => {
                    let right = |net: &IcrcV4| icrc_v4(net, body).to_le_bytes() == received;
                    right(&net) || right(&IcrcV4 { flags_frag: 0, ..net })
                }
                (None, IcrcCheck::HiddenId) => HiddenId::new().verify(&net, body, received).is_some(),
                (None, IcrcCheck::Full) => {
                    let hidden = HiddenId::new().verify(&net, body, received);
                    hidden.is_some_and(|hidden| hidden.df && hidden.id < OUR_IDS)
                }
            }
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            icrc_v6(&IcrcV6 { src, dst, src_port }, body).to_le_bytes() == received
        }
        _ => false,
    }
}
