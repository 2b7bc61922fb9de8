//! Two ports on loopback addresses: what one sends, the other receives, and errors come back in words.
//! Addresses are 127.x of this process, so that tests of several processes do not meet.

use super::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use everywire_wire::{IcrcV4, icrc_v4};

/// An address of 127.0.0.0/8 that no other test of this process uses, and hardly one of another process.
fn loopback() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    IpAddr::V4(Ipv4Addr::new(127, (pid >> 8) as u8 | 0x80, pid as u8, NEXT.fetch_add(1, Ordering::Relaxed)))
}

fn open(ip: IpAddr) -> UdpPort {
    UdpPort::open(ip, 0, 0, &PortOptions::default(), 7).unwrap()
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    src: SocketAddr,
    dst: IpAddr,
    tos: u8,
    ttl: u8,
    datagrams: Vec<Vec<u8>>,
}

fn receive(port: &mut UdpPort, want: usize) -> (Vec<Seen>, Vec<PathEvent>) {
    let mut seen: Vec<Seen> = Vec::new();
    let mut paths = Vec::new();
    let until = Instant::now() + Duration::from_secs(5);
    while seen.iter().map(|s| s.datagrams.len()).sum::<usize>() < want && Instant::now() < until {
        port.receive(&mut 0, &mut paths, |r| {
            seen.push(Seen {
                src: r.src,
                dst: r.dst,
                tos: r.tos,
                ttl: r.ttl,
                datagrams: r.segments().map(<[u8]>::to_vec).collect(),
            });
        });
    }
    (seen, paths)
}

fn datagram<'a>(from: &UdpPort, to: IpAddr, bytes: &'a [u8]) -> Outgoing<'a> {
    let src_port = from.source_ports()[0];
    Outgoing {
        src_port,
        dst: SocketAddr::new(to, ROCE_V2_PORT),
        tos: 0,
        ttl: 64,
        segment: None,
        bytes,
        roce_v1: false,
    }
}

#[test]
fn a_datagram_keeps_its_addresses_and_header_fields() {
    let (mut a, mut b) = (open(loopback()), open(loopback()));
    let port = a.source_ports()[0];
    assert!(port >= 49152);
    let out = Outgoing { tos: 0x6a, ttl: 3, ..datagram(&a, b.local_addr().ip(), b"hello") };
    assert_eq!(a.send(&[out], &mut Vec::new()), 1);
    let (seen, _) = receive(&mut b, 1);
    let want = Seen {
        src: SocketAddr::new(a.local_addr().ip(), port),
        dst: b.local_addr().ip(),
        tos: 0x6a,
        ttl: 3,
        datagrams: vec![b"hello".to_vec()],
    };
    assert_eq!(seen, [want]);
    // The answer goes to 4791, not to the port that it came from.
    let out = datagram(&b, a.local_addr().ip(), b"you");
    assert_eq!(b.send(&[out], &mut Vec::new()), 1);
    assert_eq!(receive(&mut a, 1).0[0].datagrams, [b"you".to_vec()]);
}

#[test]
fn ipv6_too() {
    let (Ok(mut a), true) = (
        UdpPort::open(std::net::Ipv6Addr::LOCALHOST.into(), 0, 1, &PortOptions::default(), 1),
        std::path::Path::new("/proc/net/if_inet6").exists(),
    ) else {
        everywire_testkit::skipped("::1 is not free here");
        return;
    };
    let ip = a.local_addr().ip();
    let out = Outgoing { tos: 0x41, ttl: 9, ..datagram(&a, ip, &[5; 3000]) };
    let train = Outgoing { segment: Some(1000), ..out };
    assert_eq!(a.send(&[out, train], &mut Vec::new()), 2);
    let (seen, _) = receive(&mut a, 4);
    assert_eq!((seen[0].src.ip(), seen[0].dst, seen[0].tos, seen[0].ttl), (ip, ip, 0x41, 9));
    assert_eq!(seen[0].datagrams, [vec![5; 3000]]);
    assert_eq!(seen[1..].iter().flat_map(|s| &s.datagrams).collect::<Vec<_>>(), [&vec![5; 1000]; 3]);
}

#[test]
fn trains_arrive_cut_as_they_were_sent() {
    let (mut a, mut b) = (open(loopback()), open(loopback()));
    let mut bytes: Vec<u8> = (0..3 * 4112).map(|i| (i / 4112) as u8).collect();
    bytes.extend([9; 100]);
    let single = [8u8; 60];
    let train = Outgoing { segment: Some(4112), ..datagram(&a, b.local_addr().ip(), &bytes) };
    let alone = datagram(&a, b.local_addr().ip(), &single);
    assert_eq!(a.send(&[alone, train, alone], &mut Vec::new()), 3);
    let (seen, _) = receive(&mut b, 6);
    let datagrams: Vec<&Vec<u8>> = seen.iter().flat_map(|s| &s.datagrams).collect();
    let lengths: Vec<usize> = datagrams.iter().map(|d| d.len()).collect();
    assert_eq!(lengths, [60, 4112, 4112, 4112, 100, 60]);
    assert_eq!(datagrams[2], &vec![1; 4112]);
    assert!(a.has_gso() && b.has_gro(), "this kernel has both");
    assert_eq!(a.counters().send_calls, 1, "one system call for all three pieces");
}

#[test]
fn without_gso_trains_are_cut_and_the_icrc_says_identification_0() {
    let (src, dst) = (loopback(), loopback());
    let options = PortOptions { gso: false, ..PortOptions::default() };
    let mut a = UdpPort::open(src, 0, 0, &options, 3).unwrap();
    let mut b = open(dst);
    let (IpAddr::V4(v4_src), IpAddr::V4(v4_dst)) = (src, dst) else { unreachable!() };
    let bytes: Vec<u8> = (0..250u32).map(|i| i as u8).collect();
    let train = Outgoing { segment: Some(100), ..datagram(&a, dst, &bytes) };
    assert_eq!(a.send(&[train], &mut Vec::new()), 1);
    let (seen, _) = receive(&mut b, 3);
    let datagrams: Vec<&Vec<u8>> = seen.iter().flat_map(|s| &s.datagrams).collect();
    assert_eq!(datagrams.iter().map(|d| d.len()).collect::<Vec<_>>(), [100, 100, 50]);
    for (datagram, sent) in datagrams.iter().zip(bytes.chunks(100)) {
        let (covered, icrc) = datagram.split_at(datagram.len() - 4);
        assert_eq!(covered, &sent[..covered.len()]);
        let net =
            IcrcV4 { src: v4_src, dst: v4_dst, id: 0, flags_frag: 0x4000, src_port: a.source_ports()[0] };
        assert_eq!(icrc, icrc_v4(&net, covered).to_le_bytes());
    }
    assert_eq!(a.counters().trains_cut, 1);
}

#[test]
fn nobody_at_4791_is_reported_with_the_destination() {
    let mut a = open(loopback());
    let nobody = loopback();
    let out = datagram(&a, nobody, b"anybody?");
    assert_eq!(a.send(&[out], &mut Vec::new()), 1);
    let until = Instant::now() + Duration::from_secs(5);
    let mut paths = Vec::new();
    while paths.is_empty() && Instant::now() < until {
        a.drain_errors(&mut paths);
    }
    let Some(PathEvent::Unreachable { dst, errno, why }) = paths.first() else { panic!("{paths:?}") };
    assert_eq!((*dst, *errno), (nobody, libc::ECONNREFUSED));
    assert!(why.contains("nothing listens on UDP port 4791") && why.contains("ICMP"), "{why}");
    // The error is out of the way: the next datagram leaves.
    let mut b = open(loopback());
    let out = datagram(&a, b.local_addr().ip(), b"x");
    assert_eq!(a.send(&[out, out], &mut Vec::new()), 2);
    assert_eq!(receive(&mut b, 2).0.iter().map(|s| s.datagrams.len()).sum::<usize>(), 2);
}

#[test]
fn a_full_receive_buffer_is_counted_by_the_receiver() {
    let socket = SocketOptions { recv_buffer: 8192, force_buffers: false, ..SocketOptions::default() };
    let mut b =
        UdpPort::open(loopback(), 0, 0, &PortOptions { socket, ..PortOptions::default() }, 1).unwrap();
    let mut a = open(loopback());
    let bytes = [0u8; 1000];
    let out = datagram(&a, b.local_addr().ip(), &bytes);
    for _ in 0..64 {
        assert_eq!(a.send(&[out], &mut Vec::new()), 1);
    }
    let mut lost = 0;
    let mut got = 0;
    while b.receive(&mut lost, &mut Vec::new(), |r| got += r.segments().count()) {}
    // The count comes with the next datagram that fits.
    assert_eq!(a.send(&[out], &mut Vec::new()), 1);
    b.receive(&mut lost, &mut Vec::new(), |r| got += r.segments().count());
    assert!(lost > 0);
    assert_eq!(got as u64 + lost, 65);
    assert_eq!(b.counters().receive_overflows, lost);
}

#[test]
fn each_socket_has_its_own_count_of_losses() {
    // SO_RXQ_OVFL counts per socket; a device has one for itself and one a group.
    let group: IpAddr = "239.77.1.10".parse().unwrap();
    let socket = SocketOptions { recv_buffer: 8192, force_buffers: false, ..SocketOptions::default() };
    let mut b =
        UdpPort::open(loopback(), 0, 0, &PortOptions { socket, ..PortOptions::default() }, 1).unwrap();
    let mut a = open(loopback());
    if let Err(error) = b.join(group) {
        println!("skipped: {error}");
        return;
    }
    let bytes = [0u8; 1000];
    let (to_main, to_group) = (datagram(&a, b.local_addr().ip(), &bytes), datagram(&a, group, &bytes));
    let (mut got, mut lost, mut sent) = (0, 0, 0);
    for burst in [64, 1, 40, 1] {
        for out in [to_main, to_group] {
            for _ in 0..burst {
                assert_eq!(a.send(&[out], &mut Vec::new()), 1);
                sent += 1;
            }
        }
        while b.receive(&mut lost, &mut Vec::new(), |r| got += r.segments().count() as u64) {}
        b.receive(&mut lost, &mut Vec::new(), |r| got += r.segments().count() as u64);
        b.receive(&mut lost, &mut Vec::new(), |r| got += r.segments().count() as u64);
    }
    assert!(lost > 50, "{lost}");
    assert_eq!((got + lost, b.counters().receive_overflows), (sent, lost));
}

#[test]
fn a_taken_address_names_its_owner_and_a_foreign_one_is_refused() {
    let ip = loopback();
    let _first = open(ip);
    let error = UdpPort::open(ip, 0, 0, &PortOptions::default(), 1).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("process {}", std::process::id())) && text.contains(":4791"), "{text}");
    let text = UdpPort::open("192.0.2.1".parse().unwrap(), 0, 0, &PortOptions::default(), 1)
        .unwrap_err()
        .to_string();
    assert!(text.contains("192.0.2.1 is not an address of this host"), "{text}");
    for (ip, word) in [("0.0.0.0", "wildcard"), ("::", "wildcard"), ("224.0.0.9", "multicast")] {
        let text =
            UdpPort::open(ip.parse().unwrap(), 0, 0, &PortOptions::default(), 1).unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    }
}

/// A child between its fork and its exec holds what has just been closed here for a moment more.
#[test]
fn an_address_that_is_given_up_this_moment_can_be_taken() {
    let ip = loopback();
    let held = open(ip);
    let (leaving, left) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            leaving.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            drop(held);
        });
        left.recv().unwrap();
        drop(open(ip));
    });
}

#[test]
fn a_send_only_socket_hears_nothing() {
    let (mut a, mut b) = (open(loopback()), open(loopback()));
    let to_sender = SocketAddr::new(b.local_addr().ip(), b.source_ports()[0]);
    let out = Outgoing { dst: to_sender, ..datagram(&a, b.local_addr().ip(), b"stray") };
    assert_eq!(a.send(&[out], &mut Vec::new()), 1);
    let real = datagram(&a, b.local_addr().ip(), b"real");
    assert_eq!(a.send(&[real], &mut Vec::new()), 1);
    assert_eq!(receive(&mut b, 1).0[0].datagrams, [b"real".to_vec()]);
}

#[test]
fn multicast_reaches_members_only() {
    let group: IpAddr = "239.77.1.9".parse().unwrap();
    let (mut a, mut b) = (open(loopback()), open(loopback()));
    let out = datagram(&a, group, b"all");
    if let Err(error) = b.join(group) {
        everywire_testkit::skipped(format_args!("no multicast: {error}"));
        return;
    }
    a.send(&[out], &mut Vec::new());
    let (seen, _) = receive(&mut b, 1);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].dst, group);
    b.leave(group);
    assert!(b.fds().count() == 1 + b.source_ports().len());
}
