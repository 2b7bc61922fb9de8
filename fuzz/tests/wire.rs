//! Targets for everything that `everywire-wire` parses: no bytes make it panic, and what parses re-emits bit for bit.

use std::net::IpAddr;

use everywire_fuzz::{captures, target};
use everywire_wire::cm::{self, CmMad};
use everywire_wire::ddp::DdpHeader;
use everywire_wire::eth::EthHeader;
use everywire_wire::grh::Grh;
use everywire_wire::ip::{IpHeader, Ipv4Header, Ipv6Header};
use everywire_wire::ip_cm::IpCmHeader;
use everywire_wire::lrh::Lrh;
use everywire_wire::mad::{MadHeader, RmppHeader};
use everywire_wire::mpa::{self, Enhanced, Fpdu, StartFrame, StartKind};
use everywire_wire::notice;
use everywire_wire::perf::{PerfMad, PortCounters, PortCountersExtended};
use everywire_wire::rdmap::{AtomicRequest, AtomicResponse, ReadRequest, Terminate};
use everywire_wire::sa::{self, Record, SaMad};
use everywire_wire::smp::{self, Smp};
use everywire_wire::tcp::TcpHeader;
use everywire_wire::udp::UdpHeader;
use everywire_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, HiddenId, IcrcHasher, IcrcV4, Ieth, ImmDt, Reth, RocePacket,
    UdpFrame, icrc_ib, icrc_v4, vcrc,
};

/// Asserts that `parse` then `emit` gives the bytes back. `$len` is how many of them the value stands for.
macro_rules! re_emits {
    ($bytes:expr, $ty:ty, $value:ident => $len:expr) => {
        if let Ok($value) = <$ty>::parse($bytes) {
            let len = $len;
            let mut out = [0xa5; 512];
            $value.emit(&mut out);
            assert_eq!(&out[..len], &$bytes[..len]);
            assert!(out[len..].iter().all(|b| *b == 0xa5), "wrote past its end");
        }
    };
    ($bytes:expr, $ty:ty) => {
        re_emits!($bytes, $ty, value => <$ty>::LEN)
    };
}

/// The seeds from byte `at` on.
fn from(at: usize, seeds: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    seeds.into_iter().filter_map(|s| s.get(at..).map(<[u8]>::to_vec)).collect()
}

fn mads() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = captures::mads().iter().map(|m| m.to_vec()).collect();
    // The captures have no MRA, LAP, APR or SIDR: the same bytes under their attributes.
    for attribute in 0x10..=0x1a {
        let mut mad = seeds[0].clone();
        mad[17] = attribute;
        seeds.push(mad);
    }
    seeds
}

target!(eth, captures::frames(), |bytes| re_emits!(bytes, EthHeader, v => v.header_len()));
target!(ip, from(14, captures::frames()), |bytes| re_emits!(bytes, IpHeader, v => v.header_len()));
target!(ipv4, from(14, captures::frames()), |bytes| re_emits!(bytes, Ipv4Header));
target!(ipv6, from(14, captures::frames()), |bytes| re_emits!(bytes, Ipv6Header));
target!(udp, from(34, captures::frames()), |bytes| re_emits!(bytes, UdpHeader));
target!(tcp, from(34, captures::frames()), |bytes| {
    if let Ok(header) = TcpHeader::parse(bytes) {
        let mut out = [0xa5; 64];
        header.emit(&mut out);
        // Options and the reserved bits (RFC 9293 §3.1) are not kept.
        let mut want = bytes[..TcpHeader::LEN].to_vec();
        want[12] &= 0xf0;
        assert_eq!(out[..TcpHeader::LEN], want);
        assert!(out[TcpHeader::LEN..].iter().all(|b| *b == 0xa5), "wrote past its end");
        let len = usize::from(header.header_len);
        assert!((TcpHeader::LEN..=bytes.len()).contains(&len) && len % 4 == 0);
        let (src, dst) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let _ = header.expected_checksum(src, dst, &bytes[len..]);
    }
});
target!(grh, from(14, captures::frames()), |bytes| re_emits!(bytes, Grh));

target!(udp_frame, captures::frames(), |bytes| {
    if let Ok(frame) = UdpFrame::parse(bytes) {
        let mut out = Vec::new();
        frame.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(out.len(), frame.frame_len());
        let _ = frame.icrc_is_right();
        let mut filled = frame;
        filled.fill_lengths_and_checksums();
        out.clear();
        filled.emit(&mut out);
        assert_eq!(UdpFrame::parse(&out), Ok(filled));
    }
});

target!(bth, captures::roce_payloads(), |bytes| re_emits!(bytes, Bth));
target!(deth, from(12, captures::roce_payloads()), |bytes| re_emits!(bytes, Deth));
target!(reth, from(12, captures::roce_payloads()), |bytes| re_emits!(bytes, Reth));
target!(aeth, from(12, captures::roce_payloads()), |bytes| re_emits!(bytes, Aeth));
target!(atomic_eth, from(12, captures::roce_payloads()), |bytes| re_emits!(bytes, AtomicEth));
target!(atomic_ack_eth, from(16, captures::roce_payloads()), |bytes| re_emits!(bytes, AtomicAckEth));
target!(immdt, from(12, captures::roce_payloads()), |bytes| re_emits!(bytes, ImmDt));
target!(ieth, from(12, captures::roce_payloads()), |bytes| re_emits!(bytes, Ieth));

/// Packets of an InfiniBand link: what RoCE v2 carries, between an LRH and a VCRC.
fn ib_packets() -> Vec<Vec<u8>> {
    let framed = |payload: Vec<u8>| {
        let mut packet = vec![0x10, 0x22, 0, 7, 0, 0, 0, 9];
        packet.extend(payload);
        packet.resize(packet.len().next_multiple_of(4), 0);
        let words = (packet.len() / 4) as u16;
        packet[4..6].copy_from_slice(&words.to_be_bytes());
        packet.extend([0; 2]);
        vcrc::seal(&mut packet);
        packet
    };
    captures::roce_payloads().into_iter().map(framed).collect()
}

target!(perf, mads(), |bytes| {
    re_emits!(bytes, PerfMad);
    re_emits!(bytes, PortCounters);
    re_emits!(bytes, PortCountersExtended);
});

target!(lrh, ib_packets(), |bytes| re_emits!(bytes, Lrh));
target!(ib_packet, ib_packets(), |bytes| {
    let _ = icrc_ib(bytes);
    if let Ok(lrh) = vcrc::check_packet(bytes) {
        let mut moved = bytes.to_vec();
        vcrc::rewrite_vl(&mut moved, lrh.vl ^ 5);
        assert_eq!(vcrc::check_packet(&moved), Ok(Lrh { vl: lrh.vl ^ 5, ..lrh }));
    }
});

target!(roce_packet, captures::roce_payloads(), |bytes| {
    if let Ok(packet) = RocePacket::parse(bytes) {
        let mut out = Vec::new();
        packet.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(packet.covered_len() + 4, bytes.len());
        if let Some(aeth) = packet.aeth {
            let _ = aeth.syndrome.kind();
        }
    }
});

target!(icrc, captures::roce_payloads(), |bytes| {
    let net = IcrcV4 {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        id: 7,
        flags_frag: 0x4000,
        src_port: 49152,
    };
    let whole = icrc_v4(&net, bytes);
    // The first two bytes say how the pieces are cut.
    let piece = bytes.first_chunk::<2>().map_or(1, |b| usize::from(u16::from_be_bytes(*b)) % 300 + 1);
    let mut hasher = IcrcHasher::v4(&net, bytes.len());
    for piece in bytes.chunks(piece) {
        hasher.update(piece);
    }
    assert_eq!(hasher.finish(), whole);
    let unseen = IcrcV4 { id: 0, ..net };
    let fields = HiddenId.verify(&unseen, bytes, whole.to_le_bytes()).expect("the ICRC is right");
    assert_eq!((fields.id, fields.df), (7, true));
    // Any ICRC that passes must be right for the fields that were found.
    if let Some((covered, icrc)) = bytes.split_last_chunk::<4>()
        && let Some(fields) = HiddenId.verify(&unseen, covered, *icrc)
    {
        let found = IcrcV4 { id: fields.id, flags_frag: if fields.df { 0x4000 } else { 0 }, ..net };
        assert_eq!(icrc_v4(&found, covered).to_le_bytes(), *icrc);
    }
});

target!(mad_header, mads(), |bytes| re_emits!(bytes, MadHeader));
target!(rmpp_header, from(24, mads()), |bytes| re_emits!(bytes, RmppHeader));
target!(ip_cm_header, from(24 + 140, mads()), |bytes| {
    re_emits!(bytes, IpCmHeader);
    if let Ok(header) = IpCmHeader::parse(bytes)
        && let (Some(src), Some(dst)) = (header.src(), header.dst())
    {
        let again = IpCmHeader::new(src, dst);
        assert_eq!((again.src(), again.dst()), (Some(src), Some(dst)));
    }
});

target!(cm_mad, mads(), |bytes| {
    if let Ok(mad) = bytes.try_into()
        && let Ok(cm) = CmMad::parse(mad)
    {
        assert_eq!(&cm.emit(), mad);
    }
});

target!(cm_messages, from(24, mads()), |bytes| {
    re_emits!(bytes, cm::Req);
    re_emits!(bytes, cm::ReqPath);
    re_emits!(bytes, cm::Mra);
    re_emits!(bytes, cm::Rej);
    re_emits!(bytes, cm::Rep);
    re_emits!(bytes, cm::Rtu);
    re_emits!(bytes, cm::Dreq);
    re_emits!(bytes, cm::Drep);
    re_emits!(bytes, cm::SidrReq);
    re_emits!(bytes, cm::SidrRep);
    re_emits!(bytes, cm::Lap);
    re_emits!(bytes, cm::Apr);
});

/// Management datagrams of the subnet: the captured ones under the classes and attributes of subnet management.
fn subnet_mads() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (class, attributes) in [(0x01, 0x10..=0x20u8), (0x81, 0x10..=0x20), (0x03, 0x11..=0x38)] {
        for attribute in attributes {
            let mut mad = captures::mads()[0].to_vec();
            (mad[1], mad[16], mad[17]) = (class, 0, attribute);
            seeds.push(mad);
        }
    }
    seeds
}

target!(smp_mad, subnet_mads(), |bytes| {
    if let Ok(mad) = bytes.try_into()
        && let Ok(smp) = Smp::from_mad(mad)
    {
        assert_eq!(&smp.to_mad(), mad);
        let _ = (smp.is_directed(), smp.is_returning(), smp.status(), smp.hop_pointer(), smp.hop_count());
    }
});

target!(smp_attributes, from(64, subnet_mads()), |bytes| {
    re_emits!(bytes, smp::NodeDescription);
    re_emits!(bytes, smp::NodeInfo);
    re_emits!(bytes, smp::SwitchInfo);
    re_emits!(bytes, smp::GuidInfo);
    re_emits!(bytes, smp::PortInfo);
    re_emits!(bytes, smp::PKeyTable);
    re_emits!(bytes, smp::SlToVl);
    re_emits!(bytes, smp::VlArbitration);
    re_emits!(bytes, smp::LinearForwardingTable);
    re_emits!(bytes, smp::MulticastForwardingTable);
    re_emits!(bytes, smp::SmInfo);
    re_emits!(bytes, smp::LedInfo);
    if let Ok(description) = smp::NodeDescription::parse(bytes) {
        let _ = description.name();
    }
});

target!(notices, from(64, subnet_mads()), |bytes| {
    re_emits!(bytes, notice::Notice);
    re_emits!(bytes, notice::Report);
    re_emits!(bytes, notice::InformInfo);
    re_emits!(bytes, notice::TrapGid);
    re_emits!(bytes, notice::TrapPort);
    re_emits!(bytes, notice::TrapCapabilities);
    re_emits!(bytes, notice::TrapSystemImage);
    re_emits!(bytes, notice::TrapMKey);
    re_emits!(bytes, notice::TrapKey);
    re_emits!(bytes, notice::TrapSwitchKey);
});

target!(sa_mad, subnet_mads(), |bytes| {
    if let Ok(mad) = bytes.try_into()
        && let Ok(sa) = SaMad::from_mad(mad)
    {
        assert_eq!(&sa.to_mad(), mad);
        // Whatever the mask, a record matches itself.
        assert!(sa::ServiceRecord::components(sa.component_mask).match_bytes(&sa.data, &sa.data));
        assert!(sa::PortInfoRecord::components(sa.component_mask).match_bytes(&sa.data, &sa.data));
    }
});

target!(sa_records, from(56, subnet_mads()), |bytes| {
    re_emits!(bytes, sa::ClassPortInfo);
    re_emits!(bytes, sa::NodeRecord);
    re_emits!(bytes, sa::PortInfoRecord);
    re_emits!(bytes, sa::SlToVlRecord);
    re_emits!(bytes, sa::SwitchInfoRecord);
    re_emits!(bytes, sa::LftRecord);
    re_emits!(bytes, sa::MftRecord);
    re_emits!(bytes, sa::SmInfoRecord);
    re_emits!(bytes, sa::LinkRecord);
    re_emits!(bytes, sa::GuidInfoRecord);
    re_emits!(bytes, sa::PKeyTableRecord);
    re_emits!(bytes, sa::VlArbitrationRecord);
    re_emits!(bytes, sa::InformInfoRecord);
    re_emits!(bytes, sa::PathRecord);
    re_emits!(bytes, sa::McMemberRecord);
    re_emits!(bytes, sa::ServiceRecord);
});

fn start_frames() -> Vec<Vec<u8>> {
    captures::iwarp_payloads().into_iter().filter(|p| p.starts_with(b"MPA ID")).collect()
}

target!(mpa_start, start_frames(), |bytes| {
    for kind in [StartKind::Request, StartKind::Reply] {
        let length = StartFrame::length(kind, bytes);
        if let Ok(frame) = StartFrame::parse(kind, bytes) {
            let mut out = Vec::new();
            frame.emit(&mut out);
            assert_eq!(out, &bytes[..out.len()]);
            assert_eq!(length, Ok(Some(out.len())));
            if let Ok(block) = Enhanced::parse(frame.private_data) {
                assert_eq!(block.to_bytes(), frame.private_data[..4]);
            }
        }
    }
});

target!(mpa_fpdu, captures::iwarp_payloads(), |bytes| {
    if let Ok(fpdu) = Fpdu::parse(bytes) {
        let mut out = Vec::new();
        fpdu.emit(&mut out);
        assert_eq!(out, &bytes[..fpdu.len()]);
        mpa::seal(&mut out);
        assert_eq!(out[out.len() - 4..], fpdu.computed_crc());
    }
});

target!(ddp, from(2, captures::iwarp_payloads()), |bytes| re_emits!(bytes, DdpHeader, v => v.header_len()));
target!(rdmap_read, from(20, captures::iwarp_payloads()), |bytes| re_emits!(bytes, ReadRequest));
target!(rdmap_atomic, from(20, captures::iwarp_payloads()), |bytes| {
    re_emits!(bytes, AtomicRequest);
    re_emits!(bytes, AtomicResponse);
});

fn terminates() -> Vec<Vec<u8>> {
    let headers = [0x00, 0x20, 0x40, 0x60, 0x80, 0xa0, 0xc0, 0xe0];
    let message = |bits: u8| [vec![0x11, 0, bits, 0, 0, 0x20, 0xc1, 0x40], vec![1; 50]].concat();
    headers.map(message).to_vec()
}

target!(rdmap_terminate, terminates(), |bytes| {
    if let Ok(term) = Terminate::parse(bytes) {
        let mut out = Vec::new();
        term.emit(&mut out);
        assert_eq!(out, &bytes[..out.len()]);
        assert!(out.len() <= Terminate::MAX_LEN);
    }
});
