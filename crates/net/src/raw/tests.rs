//! A raw port at one end of a veth pair, an ordinary UDP port at the other, in network namespaces of this process' own.
//! They need CAP_NET_RAW and CAP_SYS_ADMIN; without, they say so and pass.

use super::RawPort;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::process::Command;
use std::time::{Duration, Instant};

use everywire_wire::ip::IpHeader;
use everywire_wire::{IcrcV4, UdpFrame, icrc_v4};
use socket2::{Domain, Protocol, Socket, Type};

use crate::testing::Pair;
use crate::udp::{Outgoing, PortOptions, ROCE_V2_PORT, UdpPort};

fn wait_for<T>(mut step: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(value) = step() {
            return value;
        }
        assert!(Instant::now() < until, "nothing came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Both ways, both families: the raw side sees Identifications as the kernel writes them for trains (0, 1, 2 …) and for
/// single datagrams (0), and what it writes is what a UDP socket receives.
#[test]
fn raw_and_udp_understand_each_other() {
    let Some(pair) = Pair::new("x", 9000) else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (own, peer) in [("10.99.0.1", "10.99.0.2"), ("fd99::1", "fd99::2")] {
                exchange(&pair, own.parse().unwrap(), peer.parse().unwrap());
            }
        });
    });
}

fn exchange(pair: &Pair, own: IpAddr, peer: IpAddr) {
    pair.enter(0);
    let mut raw = RawPort::open("eth0", own, 0, &PortOptions::default(), None).unwrap();
    pair.enter(1);
    let index = crate::route::interface("eth0").unwrap().index;
    let mut udp = UdpPort::open(peer, 0, index, &PortOptions::default(), 5).unwrap();
    let src_port = udp.source_ports()[0];
    let bytes: Vec<u8> = (0..5 * 1000u32).map(|i| (i / 1000) as u8).collect();
    let to_raw = Outgoing {
        src_port,
        dst: SocketAddr::new(own, ROCE_V2_PORT),
        tos: 2,
        ttl: 7,
        segment: Some(1000),
        bytes: &bytes,
        roce_v1: false,
    };
    let alone = Outgoing { segment: None, bytes: &bytes[..48], ..to_raw };
    assert_eq!(udp.send(&[to_raw, alone], &mut Vec::new()), 2);
    let mut seen = Vec::new();
    wait_for(|| {
        raw.receive(&mut 0, None, |received| {
            let first = received.ip_id;
            for (i, segment) in received.segments().enumerate() {
                seen.push((first.map(|id| id + i as u16), segment.to_vec()));
            }
            assert_eq!((received.src, received.tos, received.ttl), (SocketAddr::new(peer, src_port), 2, 7));
        });
        (seen.len() == 6).then_some(())
    });
    let ids: Vec<Option<u16>> = seen.iter().map(|(id, _)| *id).collect();
    let want = [0, 1, 2, 3, 4, 0].map(|id| own.is_ipv4().then_some(id));
    assert_eq!(ids, want);
    assert!(seen[..5].iter().enumerate().all(|(i, (_, segment))| *segment == vec![i as u8; 1000]));
    assert_eq!(seen[5].1, bytes[..48]);

    // The other way: the neighbour must be found first.
    let to_udp =
        Outgoing { src_port: 50_000, dst: SocketAddr::new(peer, ROCE_V2_PORT), tos: 1, ttl: 9, ..to_raw };
    pair.enter(0);
    assert_eq!(raw.send(Instant::now(), &[to_udp], None, &mut Vec::new()), 1);
    let mut got = Vec::new();
    wait_for(|| {
        raw.send_waiting(Instant::now(), None, &mut Vec::new());
        udp.receive(&mut 0, &mut Vec::new(), |received| {
            assert_eq!((received.src, received.tos, received.ttl), (SocketAddr::new(own, 50_000), 1, 9));
            got.extend(received.segments().map(<[u8]>::to_vec));
        });
        (got.len() == 5).then_some(())
    });
    assert!(got.iter().enumerate().all(|(i, segment)| *segment == vec![i as u8; 1000]));

    // To itself, and to nobody.
    let to_self = Outgoing { dst: SocketAddr::new(own, ROCE_V2_PORT), segment: None, ..alone };
    assert_eq!(raw.send(Instant::now(), &[to_self], None, &mut Vec::new()), 1);
    let mut back = 0;
    raw.receive(&mut 0, None, |received| back += usize::from(received.src.ip() == own));
    assert_eq!(back, 1);
}

/// What tcpdump-like programs show of the Identification is what `udp/` counts on when it writes ICRCs.
/// The flow label reaches the wire from raw frames and from unprivileged sockets, in trains too; the ICRC leaves it out.
#[test]
fn flow_labels_reach_the_wire() {
    let Some(pair) = Pair::new("f", 1500) else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pair.enter(1);
            let tap = Socket::new(
                Domain::PACKET,
                Type::RAW,
                Some(Protocol::from(i32::from((libc::ETH_P_ALL as u16).to_be()))),
            )
            .unwrap();
            tap.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let label = || {
                let mut buffer = [0; 4096];
                loop {
                    let len = rustix::io::read(&tap, &mut buffer).unwrap();
                    if let Ok(frame) = UdpFrame::parse(&buffer[..len])
                        && frame.is_roce()
                        && let IpHeader::V6(ip) = frame.ip
                    {
                        return ip.flow_label;
                    }
                }
            };
            pair.enter(0);
            let own: IpAddr = "fd99::1".parse().unwrap();
            let mut paths = Vec::new();
            let bytes = [7; 300];
            for flow in [0, 1, 0xabcde, 0xfffff] {
                let dst = SocketAddrV6::new("fd99::2".parse().unwrap(), ROCE_V2_PORT, flow, 0).into();
                let mut udp = UdpPort::open(own, 0, 0, &PortOptions::default(), 3).unwrap();
                let src_port = udp.source_ports()[0];
                for (segment, count) in [(None, 1), (Some(100), 3)] {
                    let out =
                        Outgoing { src_port, dst, tos: 0, ttl: 64, segment, bytes: &bytes, roce_v1: false };
                    assert_eq!(udp.send(&[out], &mut paths), 1);
                    // A train may come whole or in pieces.
                    assert_eq!(label(), flow, "{count} datagrams");
                }
                assert_eq!(udp.counters().send_errors, 0);
                drop(udp);
                let mut raw = RawPort::open("eth0", own, 0, &PortOptions::default(), None).unwrap();
                let out = Outgoing {
                    src_port,
                    dst,
                    tos: 0,
                    ttl: 64,
                    segment: None,
                    bytes: &bytes[..64],
                    roce_v1: false,
                };
                assert_eq!(raw.send(Instant::now(), &[out], None, &mut paths), 1);
                wait_for(|| {
                    raw.send_waiting(Instant::now(), None, &mut paths);
                    (!raw.is_waiting()).then_some(())
                });
                while label() != flow {}
            }
        });
    });
}

/// A socket takes part in 20 groups at most (net.ipv4.igmp_max_memberships), so one that leaves none ends there.
/// An interface that is deleted and made again is another one to the kernel: an ordinary port is a member of its groups there, and
/// what it sends to groups leaves by it.
#[test]
fn a_udp_port_joins_its_groups_again() {
    let Some(pair) = Pair::new("j", 1500) else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (a, b, group) in [("10.99.0.1", "10.99.0.2", "239.7.7.9"), ("fd99::1", "fd99::2", "ff15::79")]
            {
                let group: IpAddr = group.parse().unwrap();
                let mut ports = [(0, a), (1, b)].map(|(end, ip)| {
                    pair.enter(end);
                    let index = crate::route::interface("eth0").unwrap().index;
                    let ip = ip.parse().unwrap();
                    let mut port = UdpPort::open(ip, 0, index, &PortOptions::default(), 5).unwrap();
                    port.join(group).unwrap();
                    port
                });
                pair.ip(0, "link del eth0");
                ports.iter_mut().for_each(|port| port.follow(None));
                pair.link_again(1500);
                for (end, port) in ports.iter_mut().enumerate() {
                    pair.enter(end);
                    port.follow(Some(&crate::route::interface("eth0").unwrap()));
                }
                let bytes = [7; 48];
                for from in [0, 1] {
                    let out = Outgoing {
                        src_port: ports[from].source_ports()[0],
                        dst: SocketAddr::new(group, ROCE_V2_PORT),
                        tos: 0,
                        ttl: 1,
                        segment: None,
                        bytes: &bytes,
                        roce_v1: false,
                    };
                    let own = ports[from].local_addr().ip();
                    let [near, far] = &mut ports;
                    let (near, far) = if from == 0 { (near, far) } else { (far, near) };
                    let mut tries = 0;
                    wait_for(|| {
                        // The first ones may come before the interface is ready.
                        if tries % 50 == 0 {
                            near.send(&[out], &mut Vec::new());
                        }
                        tries += 1;
                        let mut heard = false;
                        far.receive(&mut 0, &mut Vec::new(), |received| {
                            heard |= received.src.ip() == own && received.dst == group;
                        });
                        heard.then_some(())
                    });
                }
            }
        });
    });
}

#[test]
fn leaving_a_group_ends_the_membership() {
    let Some(pair) = Pair::new("g", 1500) else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pair.enter(0);
            for own in ["10.99.0.1", "fd99::1"] {
                let own: IpAddr = own.parse().unwrap();
                let mut raw = RawPort::open("eth0", own, 0, &PortOptions::default(), None).unwrap();
                for n in 1..50 {
                    let group = if own.is_ipv4() { format!("239.7.7.{n}") } else { format!("ff15::{n}") };
                    let group = group.parse().unwrap();
                    raw.join(group, false).unwrap();
                    raw.leave(group, false);
                    raw.leave(group, false);
                }
            }
        });
    });
}

#[test]
fn the_kernel_numbers_segments_as_the_icrc_expects() {
    let Some(pair) = Pair::new("y", 9000) else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pair.enter(0);
            // Trains arrive as separate frames where the interface does not take them whole.
            let off = Command::new("ethtool").args(["-K", "eth0", "tx-udp-segmentation", "off"]).output();
            let mut raw =
                RawPort::open("eth0", "10.99.0.1".parse().unwrap(), 0, &PortOptions::default(), None)
                    .unwrap();
            pair.enter(1);
            println!("ethtool: {:?}", off.map(|o| o.status));
            let _ = Command::new("ethtool").args(["-K", "eth0", "tx-udp-segmentation", "off"]).output();
            let peer: std::net::Ipv4Addr = "10.99.0.2".parse().unwrap();
            let own: std::net::Ipv4Addr = "10.99.0.1".parse().unwrap();
            let options = PortOptions { gso: false, ..PortOptions::default() };
            for options in [PortOptions::default(), options] {
                let mut udp = UdpPort::open(peer.into(), 0, 0, &options, 5).unwrap();
                let src_port = udp.source_ports()[0];
                let mut bytes = vec![0x33; 4 * 516];
                for (id, datagram) in bytes.chunks_mut(516).enumerate() {
                    let net = IcrcV4 { src: peer, dst: own, id: id as u16, flags_frag: 0x4000, src_port };
                    let icrc = icrc_v4(&net, &datagram[..512]).to_le_bytes();
                    datagram[512..].copy_from_slice(&icrc);
                }
                let dst = SocketAddr::new(own.into(), ROCE_V2_PORT);
                let train = Outgoing {
                    src_port,
                    dst,
                    tos: 0,
                    ttl: 64,
                    segment: Some(516),
                    bytes: &bytes,
                    roce_v1: false,
                };
                assert_eq!(udp.send(&[train], &mut Vec::new()), 1);
                let mut good = 0;
                wait_for(|| {
                    raw.receive(&mut 0, None, |received| {
                        for (i, segment) in received.segments().enumerate() {
                            let id = received.ip_id.unwrap() + i as u16;
                            let net = IcrcV4 { src: peer, dst: own, id, flags_frag: 0x4000, src_port };
                            assert_eq!(icrc_v4(&net, &segment[..512]).to_le_bytes(), segment[512..]);
                            good += 1;
                        }
                    });
                    (good == 4).then_some(())
                });
            }
        });
    });
}

/// Frames of every sort that a port refuses, faster than one look takes them: as a task, which sleeps on edges, the driver
/// must not leave any to wait for the next frame's wake-up.
#[test]
fn a_burst_of_refused_frames_is_taken_whole() {
    const EACH: u64 = 400;
    let Some(pair) = Pair::new("h", 1500) else { return };
    let eth = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x89, 0x15]].concat();
    let noise: Vec<u8> = (0..200u8).map(|i| i.wrapping_mul(89) ^ 0x5a).collect();
    // GRH (IBTA §8.3): version 6, 16 bytes of payload, IBA, from and to somebody else.
    let grh = [&[0x60, 0, 0, 0, 0, 16, 0x1b, 64][..], &[0xfe; 16], &[0xfd; 16], &[0; 16]].concat();
    // IPv4 and UDP to port 4791 whose lengths contradict each other.
    let ip = [0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 99, 0, 2, 10, 99, 0, 1];
    let udp = [&[0xc0, 0, 0x12, 0xb7, 0, 200, 0, 0][..], &[0; 20]].concat();
    let lies = [&eth[..12], &[8, 0], &ip, &udp].concat();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pair.enter(1);
            let stranger = Socket::new(Domain::PACKET, Type::RAW, None).unwrap();
            let peer = crate::route::interface("eth0").unwrap();
            stranger.bind(&super::socket::link_address(peer.index)).unwrap();
            pair.enter(0);
            for name in ["rocev1:eth0/10.99.0.1", "rocev2-raw:eth0/10.99.0.1"] {
                let runtime = crate::TokioRt::new().unwrap();
                let host = crate::Host::open(name, &crate::OpenOptions::default()).unwrap();
                host.run(&runtime).unwrap();
                for frame in [[&eth[..], &noise].concat(), [&eth[..], &grh].concat(), lies.clone()] {
                    for _ in 0..EACH {
                        stranger.send(&frame).unwrap();
                    }
                }
                let took = runtime.block_on(async {
                    for _ in 0..1000 {
                        let counters = host.socket_counters();
                        if counters.malformed + counters.not_ours == 3 * EACH {
                            break;
                        }
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    host.socket_counters()
                });
                assert_eq!((took.malformed, took.not_ours), (2 * EACH, EACH), "{name}: {took:?}");
                let counted = host.device().counters().by_name("drop_malformed_datagram");
                assert_eq!(counted, Some(2 * EACH), "{name}");
            }
        });
    });
}

/// A train leaves whole; where the interface neither cuts nor sums, the kernel does, with the numbers that ICRCs count on.
#[test]
fn a_train_is_cut_on_its_way() {
    const SEGMENT: usize = 516;
    let Some(pair) = Pair::new("t", 1500) else { return };
    let has_ethtool = std::thread::scope(|scope| {
        let cut = scope.spawn(|| {
            pair.enter(1);
            let protocol = Some(Protocol::from(i32::from((libc::ETH_P_ALL as u16).to_be())));
            let tap = Socket::new(Domain::PACKET, Type::RAW, protocol).unwrap();
            tap.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            pair.enter(0);
            let off = ["-K", "eth0", "tx-udp-segmentation", "off", "tx", "off"];
            if !Command::new("ethtool").args(off).output().is_ok_and(|done| done.status.success()) {
                return false;
            }
            for (own, peer) in [("10.99.0.1", "10.99.0.2"), ("fd99::1", "fd99::2")] {
                let (own, peer): (IpAddr, IpAddr) = (own.parse().unwrap(), peer.parse().unwrap());
                let mut raw = RawPort::open("eth0", own, 0, &PortOptions::default(), None).unwrap();
                let bytes: Vec<u8> = (0..3 * SEGMENT + 100).map(|i| (i / 3) as u8).collect();
                let (dst, mut paths) = (SocketAddr::new(peer, ROCE_V2_PORT), Vec::new());
                let one = |segment, bytes| Outgoing {
                    src_port: 50_000,
                    dst,
                    tos: 0,
                    ttl: 64,
                    segment,
                    bytes,
                    roce_v1: false,
                };
                // The neighbour is found with the first.
                raw.send(Instant::now(), &[one(None, &bytes[..8])], None, &mut paths);
                wait_for(|| {
                    raw.send_waiting(Instant::now(), None, &mut paths);
                    (!raw.is_waiting()).then_some(())
                });
                let before = raw.counters().sent_pieces;
                assert_eq!(raw.send(Instant::now(), &[one(Some(SEGMENT), &bytes)], None, &mut paths), 1);
                assert_eq!(raw.counters().sent_pieces, before + 1, "one piece");
                let mut got = Vec::new();
                while got.len() < bytes.len() {
                    let mut buffer = [0; 4096];
                    let len = rustix::io::read(&tap, &mut buffer).unwrap();
                    let Ok(frame) = UdpFrame::parse(&buffer[..len]) else { continue };
                    if !frame.is_roce() || frame.payload.len() == 8 {
                        continue;
                    }
                    if let IpHeader::V4(ip) = frame.ip {
                        assert_eq!(usize::from(ip.id), got.len() / SEGMENT, "the Identification");
                    }
                    let sum = frame.udp.expected_checksum(own, peer, frame.payload);
                    assert_eq!(frame.udp.checksum, sum, "{own}");
                    got.extend_from_slice(frame.payload);
                }
                assert!(got == bytes, "{own}");
            }
            true
        });
        cut.join().unwrap()
    });
    if !has_ethtool {
        everywire_testkit::skipped("no ethtool(8) here");
    }
}
