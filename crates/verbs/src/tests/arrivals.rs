//! What arrives: real frames of Linux's rxe, and every reason to drop one, each counted and none answered.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use everywire_transport::ib::{Burst, Path};
use everywire_wire::eth::EthHeader;
use everywire_wire::frame::UdpFrame;
use everywire_wire::ip::IpHeader;
use everywire_wire::{Bth, Deth, Opcode, ROCE_UDP_PORT, RocePacket};

use crate::test_support::*;
use crate::*;

const CAPTURES: [&str; 11] = [
    "cm_reject_no_listener",
    "ib_atomic_lat",
    "ib_read_bw",
    "ib_send_bwUC",
    "ib_send_bwUD",
    "ib_send_lat",
    "lossy_write",
    "nvme_rdma",
    "rc_pingpong",
    "rping",
    "rping6",
];

/// A RoCE datagram of a capture, and its Identification.
struct Captured {
    src: SocketAddr,
    dst: IpAddr,
    id: Option<u16>,
    bytes: Vec<u8>,
}

impl Captured {
    fn datagram(&self, ip_id: Option<u16>) -> Datagram<'_> {
        Datagram { src: self.src, dst: self.dst, tos: 0, ttl: 64, ip_id, bytes: &self.bytes }
    }
}

/// The RoCE datagrams of a capture (libpcap's classic format, microseconds, little-endian).
fn captured(name: &str) -> Vec<Captured> {
    let path = format!("{}/../../captures/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut datagrams) = (24, Vec::new());
    while at < file.len() {
        let frame = &file[at + 16..][..word(at + 8)];
        at += 16 + frame.len();
        let Ok(frame) = UdpFrame::parse(frame) else { continue };
        if frame.udp.dst_port != ROCE_UDP_PORT {
            continue;
        }
        let (src, dst, id): (IpAddr, IpAddr, _) = match frame.ip {
            IpHeader::V4(ip) => (ip.src.into(), ip.dst.into(), Some(ip.id)),
            IpHeader::V6(ip) => (ip.src.into(), ip.dst.into(), None),
        };
        let src = SocketAddr::new(src, frame.udp.src_port);
        datagrams.push(Captured { src, dst, id, bytes: frame.payload.to_vec() });
    }
    assert!(!datagrams.is_empty() && EthHeader::LEN == 14);
    datagrams
}

/// Devices by address, made as datagrams for them come.
#[derive(Default)]
struct Hosts(HashMap<IpAddr, Device>);

impl Hosts {
    fn host(&mut self, ip: IpAddr, icrc_check: IcrcCheck) -> &Device {
        let config = DeviceConfig { icrc_check, ..DeviceConfig::roce_v2(ip) };
        self.0.entry(ip).or_insert_with(|| Device::new(config))
    }

    fn total(&self, counter: DeviceCounter) -> u64 {
        self.0.values().map(|device| device.counters().device(counter)).sum()
    }

    fn mads(&self) -> u64 {
        self.0.values().map(|device| device.counters().get(Counter::RcvdPkts)).sum()
    }
}

#[test]
fn every_frame_of_a_linux_kernel_passes_the_checks() {
    let now = Instant::now();
    for name in CAPTURES {
        let frames = captured(name);
        let mads = frames.iter().filter(|frame| frame.bytes[5..8] == [0, 0, 1]).count() as u64;
        for hidden in [true, false] {
            let mut hosts = Hosts::default();
            for frame in &frames {
                let id = if hidden { None } else { frame.id };
                hosts.host(frame.dst, IcrcCheck::HiddenId).drive().handle_datagram(now, frame.datagram(id));
            }
            assert_eq!(hosts.total(DeviceCounter::IcrcErrors), 0, "{name}");
            assert_eq!(hosts.mads(), mads, "{name}: all of them MADs for QP1");
            let unknown = hosts.total(DeviceCounter::DropUnknownQp);
            assert_eq!(unknown, frames.len() as u64 - mads, "{name}: the rest for queue pairs of long ago");
        }
    }
}

#[test]
fn a_flipped_bit_is_noticed() {
    let now = Instant::now();
    let mut frames = captured("rc_pingpong");
    frames.extend(captured("rping6"));
    let (mut hosts, mut flips) = (Hosts::default(), 0);
    for (index, frame) in frames.iter_mut().enumerate() {
        for bit in (index % 7..frame.bytes.len() * 8).step_by(211) {
            if bit / 8 == 4 {
                continue; // FECN, BECN and six reserved bits are outside the ICRC
            }
            frame.bytes[bit / 8] ^= 1 << (bit % 8);
            for id in [None, frame.id] {
                hosts.host(frame.dst, IcrcCheck::HiddenId).drive().handle_datagram(now, frame.datagram(id));
                flips += 1;
            }
            frame.bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
    assert_eq!(hosts.total(DeviceCounter::IcrcErrors), flips);
}

#[test]
fn the_strict_check_takes_only_identifications_of_our_own() {
    let now = Instant::now();
    let frames = captured("rc_pingpong");
    let foreign = frames.iter().filter(|frame| frame.id.is_some_and(|id| id >= 64)).count() as u64;
    let mut hosts = Hosts::default();
    for frame in &frames {
        hosts.host(frame.dst, IcrcCheck::Full).drive().handle_datagram(now, frame.datagram(None));
    }
    assert!(foreign > 0);
    assert_eq!(hosts.total(DeviceCounter::IcrcErrors), foreign);
}

/// A packet with a right ICRC, from 10.0.0.2 to `dst`.
fn packet(dst: IpAddr, headers: RocePacket<'_>, payload: &[u8]) -> Packet {
    let src: IpAddr = if dst.is_ipv4() { [10, 0, 0, 2].into() } else { "fd00::2".parse().unwrap() };
    let mut burst = Burst::default();
    let path = Path::new(src, dst, 0xc123);
    let fill = |out: &mut [u8]| {
        out.copy_from_slice(payload);
        Ok::<(), ()>(())
    };
    burst.push(&path, &headers, payload.len(), fill).unwrap();
    Packet {
        src: SocketAddr::new(src, 0xc123),
        dst,
        tos: 0,
        ttl: 64,
        ip_id: 0,
        bytes: burst.bytes().to_vec(),
    }
}

fn ud(dest_qp: Qpn) -> RocePacket<'static> {
    RocePacket {
        bth: Bth { opcode: Opcode::UD_SEND_ONLY, dest_qp, ..Bth::default() },
        deth: Some(Deth { qkey: QKey::GSI, src_qp: Qpn::GSI, ..Deth::default() }),
        ..RocePacket::default()
    }
}

#[test]
fn each_reason_to_drop_has_its_counter() {
    let ours: IpAddr = [10, 0, 0, 1].into();
    let device = Device::new(DeviceConfig::roce_v2(ours));
    let now = Instant::now();
    let mad = [0; 256];
    let version = |tver| RocePacket { bth: Bth { tver, ..ud(Qpn::GSI).bth }, ..ud(Qpn::GSI) };
    let with = |deth, bth| RocePacket { deth: Some(deth), bth, ..RocePacket::default() };
    let good = ud(Qpn::GSI);
    let qkey = with(Deth { qkey: QKey(1), ..good.deth.unwrap() }, good.bth);
    let pkey = with(good.deth.unwrap(), Bth { pkey: PKey(0x1234), ..good.bth });
    let cnp = RocePacket { bth: Bth { opcode: Opcode::CNP, dest_qp: Qpn::new(9), ..Bth::default() }, ..good };
    let cnp = RocePacket { deth: None, ..cnp };
    let group: IpAddr = [239, 1, 2, 3].into();
    let mut wrong = packet(ours, good, &mad);
    wrong.bytes[40] ^= 1;
    let rows = [
        (wrong, DeviceCounter::IcrcErrors),
        (packet([10, 0, 0, 9].into(), good, &mad), DeviceCounter::DropWrongAddress),
        (packet(ours, version(1), &mad), DeviceCounter::DropBadVersion),
        (packet(ours, ud(Qpn::SMI), &mad), DeviceCounter::DropSmi),
        (packet(ours, ud(Qpn::new(0x777)), &mad), DeviceCounter::DropUnknownQp),
        (packet(ours, good, &mad[..252]), DeviceCounter::DropGsi),
        (packet(ours, qkey, &mad), DeviceCounter::DropGsi),
        (packet(ours, pkey, &mad), DeviceCounter::DropGsi),
        (packet(ours, cnp, &[0; 16]), DeviceCounter::CnpReceived),
        (packet(group, ud(Qpn::MULTICAST), &mad), DeviceCounter::DropNoGroupMember),
        (packet(group, good, &mad), DeviceCounter::DropNoGroupMember),
        (packet(ours, ud(Qpn::MULTICAST), &mad), DeviceCounter::DropNoGroupMember),
    ];
    for (packet, counter) in rows {
        let before = device.counters().device(counter);
        device.drive().handle_datagram(now, packet.datagram());
        assert_eq!(device.counters().device(counter), before + 1, "{counter:?}");
    }
    device.drive().handle_datagram(now, packet(ours, good, &mad).datagram());
    assert_eq!(device.counters().get(Counter::RcvdPkts), 1, "only the good one got through");
    let mut transmit = Transmit::default();
    assert!(!device.drive().poll_transmit(now, &mut transmit), "and nothing is answered");
}

#[test]
fn lengths_and_opcodes_of_every_sort_are_survived() {
    let ours: IpAddr = [10, 0, 0, 1].into();
    let device = Device::new(DeviceConfig::roce_v2(ours));
    let now = Instant::now();
    let src = SocketAddr::new([10, 0, 0, 2].into(), 0xc000);
    let mut sent = 0;
    for length in (0..100).chain([4096, 9000, 65_507]) {
        let bytes = vec![0xff; length];
        let datagram = Datagram { src, dst: ours, tos: 0, ttl: 1, ip_id: Some(0), bytes: &bytes };
        device.drive().handle_datagram(now, datagram);
        sent += 1;
    }
    for opcode in 0..=255 {
        // A right ICRC over a bare BTH: too short for nearly every opcode.
        let headers = RocePacket {
            bth: Bth { opcode: Opcode(opcode), dest_qp: Qpn::new(0x777), ..Bth::default() },
            ..RocePacket::default()
        };
        device.drive().handle_datagram(now, packet(ours, headers, &[]).datagram());
        sent += 1;
    }
    let counters = device.counters();
    let dropped: u64 = [
        DeviceCounter::DropMalformed,
        DeviceCounter::IcrcErrors,
        DeviceCounter::DropUnknownQp,
        DeviceCounter::CnpReceived,
    ]
    .map(|counter| counters.device(counter))
    .iter()
    .sum();
    assert_eq!(dropped, sent);
}

#[test]
fn ipv6_is_checked_in_full() {
    let ours: IpAddr = "fd00::1".parse().unwrap();
    let device = Device::new(DeviceConfig::roce_v2(ours));
    let now = Instant::now();
    let mut good = packet(ours, ud(Qpn::GSI), &[0; 256]);
    device.drive().handle_datagram(now, good.datagram());
    assert_eq!(device.counters().get(Counter::RcvdPkts), 1);
    let mixed = Datagram { src: SocketAddr::new([10, 0, 0, 2].into(), 1), ..good.datagram() };
    device.drive().handle_datagram(now, mixed);
    good.src.set_port(0xc124);
    device.drive().handle_datagram(now, good.datagram());
    assert_eq!(
        device.counters().device(DeviceCounter::IcrcErrors),
        2,
        "mixed families; a port that was changed"
    );
}
