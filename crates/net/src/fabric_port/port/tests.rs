//! The attaching end of the socket against a peer that counts: lanes are apart, and what waits is bounded.

use rustix::net::socketpair;

use super::*;
use crate::fabric_port::message::WINDOW;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

fn pair() -> (FabricPort, Channel) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    (FabricPort::new(Channel::new(a)), Channel::new(b))
}

/// So many packets of a service level, each with its number.
fn packets(sl: u8, numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    numbers.map(|number| [&[0, sl << 4 | 2][..], &number.to_be_bytes()].concat()).collect()
}

fn send(port: &mut FabricPort, packets: &[Vec<u8>]) -> usize {
    port.send(packets.iter().map(Vec::as_slice))
}

/// Service levels and numbers of all that has arrived.
fn arrived(channel: &mut Channel) -> Vec<(u8, u32)> {
    let mut out = Vec::new();
    while let count @ 1.. = channel.receive().unwrap() {
        for index in 0..count {
            let Some(Message::Packet(packet)) = Message::parse(channel.message(index)) else { panic!() };
            let number = u32::from_be_bytes(packet[2..].try_into().unwrap());
            out.push((packet[1] >> 4, number));
        }
    }
    out
}

#[test]
fn a_service_level_that_stands_still_stops_no_other() {
    let (mut port, mut fabric) = pair();
    let slow = packets(3, 0..WINDOW + 10);
    let mixed = [&slow[..], &packets(5, 0..20), &packets(3, 100..101), &packets(5, 20..21)].concat();
    assert_eq!(send(&mut port, &mixed), mixed.len(), "those without credit wait in the port");
    let got = arrived(&mut fabric);
    assert!(got.iter().filter(|one| one.0 == 3).map(|one| one.1).eq(0..WINDOW));
    assert!(got.iter().filter(|one| one.0 == 5).map(|one| one.1).eq(0..21));
    assert!(!port.is_full(), "no room in the socket is waited for");
    assert!(fabric.send(&Message::Credit { lane: 3, total: WINDOW + 11 }.bytes()).unwrap());
    port.receive(|_| panic!("no packet"));
    let got = arrived(&mut fabric);
    assert!(got.iter().map(|one| one.1).eq((WINDOW..WINDOW + 10).chain([100])), "in order: {got:?}");
}

#[test]
fn what_waits_for_credit_is_bounded() {
    let (mut port, mut fabric) = pair();
    let most = WINDOW as usize + MAX_QUEUED;
    assert_eq!(send(&mut port, &packets(3, 0..2 * most as u32)), most);
    assert_eq!(send(&mut port, &packets(3, 0..1)), 0);
    assert_eq!(send(&mut port, &packets(4, 0..1)), 1);
    assert_eq!(arrived(&mut fabric).len(), WINDOW as usize + 1);
}

/// A fabric that ends with something of the program's unread resets the socket: why it ends is heard all the same, whether
/// the program notices by receiving or by sending.
#[test]
fn last_words_are_heard_behind_a_reset() {
    for sends in [false, true] {
        let (mut port, mut fabric) = pair();
        port.resolve(1, Gid::default());
        assert!(fabric.send(&Message::Refused("the fabric ends").bytes()).unwrap());
        drop(fabric);
        if sends {
            port.resolve(2, Gid::default());
        } else {
            assert!(!port.receive(|_| {}));
        }
        assert_eq!(port.gone(), Some("the fabric ends"), "by sending: {sends}");
    }
}
