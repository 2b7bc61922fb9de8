//! The door's bounds, seen from a program that does what it may and no more: it never drops a packet, and never grows.

use std::time::{Duration, Instant};

use everywire_fabric::ib::mad_packet::MadRoute;
use everywire_wire::mad::{class, method};
use everywire_wire::{Lid, MAD_LEN, Mtu, PKey, QKey, Qpn};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, socketpair};

use super::super::tests::{PATIENCE, plan, start, wait_for};
use super::super::{FabricEvent, FabricOptions, place};
use super::Client;
use crate::fabric_port::FabricPort;
use crate::fabric_port::channel::Channel;
use crate::fabric_port::credits::Credits;
use crate::fabric_port::message::{Message, PortValues, VERSION, WINDOW, Welcome, lane_of};

/// A program that decides itself when it has taken a packet.
struct Program {
    channel: Channel,
    credits: Credits,
    welcome: Welcome,
}

impl Program {
    fn attach(fabric: &str, port: &str) -> Program {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&fd, &SocketAddrUnix::new(place::attach_socket(fabric)).unwrap()).unwrap();
        let mut channel = Channel::new(fd);
        channel.send(&Message::Hello { version: VERSION, port }.bytes()).unwrap();
        let until = Instant::now() + PATIENCE;
        while channel.receive().unwrap() == 0 {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        let Some(Message::Welcome(welcome)) = Message::parse(channel.message(0)) else { panic!("refused") };
        Program { channel, credits: Credits::default(), welcome: *welcome }
    }

    /// Reads all there is: numbers of packets, with credits taken and none given.
    fn read(&mut self, numbers: &mut Vec<u32>) {
        loop {
            let count = self.channel.receive().expect("the fabric is there");
            for index in 0..count {
                match Message::parse(self.channel.message(index)).unwrap() {
                    Message::Packet(packet) => {
                        assert!(self.credits.received(lane_of(packet).unwrap()));
                        let mad = MadRoute::parse(packet).expect("a whole packet").1;
                        numbers.push(u32::from_be_bytes([mad[0], mad[1], mad[2], mad[3]]));
                    }
                    Message::Credit { lane, total } => assert!(self.credits.granted(lane, total)),
                    Message::Port(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            if count == 0 {
                return;
            }
        }
    }
}

fn packet(slid: Lid, dlid: Lid, number: u32) -> Vec<u8> {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&number.to_be_bytes());
    MadRoute { dest_qp: Qpn::new(77), ..MadRoute::services(slid, dlid, 0) }.packet(&mad)
}

/// Room for what a program sends to itself is its own: it stops when it takes nothing out, and goes on when it does. (IBTA
/// §7.9: credits are for room that there is.)
#[test]
fn a_program_that_floods_itself_stops_itself_only() {
    const ENOUGH: u32 = 6000;
    let (fabric, events) = start(plan("flood"), &FabricOptions::default());
    wait_for(&events, |event| *event == FabricEvent::Ready);
    let mut program = Program::attach(fabric.name(), "h1/1");
    let own = program.welcome.port.lid;
    let (mut sent, mut numbers, mut last) = (0, Vec::new(), Instant::now());
    while last.elapsed() < Duration::from_millis(300) && sent < ENOUGH {
        program.read(&mut numbers);
        while program.credits.may_send(0)
            && program.channel.send(&Message::Packet(&packet(own, own, sent)).bytes()).unwrap()
        {
            program.credits.sent(0);
            (sent, last) = (sent + 1, Instant::now());
        }
    }
    assert!((WINDOW..=2 * WINDOW).contains(&sent), "{sent}: a window delivered, one on its way");
    let (until, mut taken) = (Instant::now() + PATIENCE, 0);
    while numbers.len() < ENOUGH as usize {
        assert!(Instant::now() < until, "{sent} sent, {} arrived", numbers.len());
        program.read(&mut numbers);
        (taken..numbers.len()).for_each(|_| program.credits.consumed(0));
        taken = numbers.len();
        while let Some((lane, total)) = program.credits.next_grant() {
            assert!(program.channel.send(&Message::Credit { lane, total }.bytes()).unwrap());
        }
        while sent < ENOUGH
            && program.credits.may_send(0)
            && program.channel.send(&Message::Packet(&packet(own, own, sent)).bytes()).unwrap()
        {
            program.credits.sent(0);
            sent += 1;
        }
    }
    assert!(numbers.into_iter().eq(0..ENOUGH), "in order");
}

/// IBTA §7.7.5: the SLID is a LID of the port that a packet comes from.
#[test]
fn a_packet_in_anothers_name_goes_nowhere() {
    let (fabric, events) = start(plan("forge"), &FabricOptions::default());
    wait_for(&events, |event| *event == FabricEvent::Ready);
    let (mut sender, mine) = FabricPort::attach(fabric.name(), "h1/1").unwrap();
    let mut receiver = Program::attach(fabric.name(), "h2/1");
    let (own, other) = (mine.port.lid, receiver.welcome.port.lid);
    let packets = [packet(other, other, 1), packet(Lid(77), other, 2), packet(own, other, 3)];
    assert_eq!(sender.send(packets.iter().map(Vec::as_slice)), 3);
    let (until, mut numbers) = (Instant::now() + PATIENCE, Vec::new());
    while numbers.is_empty() {
        assert!(Instant::now() < until);
        receiver.read(&mut numbers);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(numbers, [3]);
}

/// A key that does not fit, from one program to another: the port counts it, and the manager hears of it and tells, be it a
/// MAD that the port's agent refuses at QP1, what the program's queue pair has dropped, or a partition that the switch refuses.
#[test]
fn wrong_keys_are_told_of_by_the_subnet_manager() {
    let (fabric, events) = start(plan("keys"), &FabricOptions::default());
    wait_for(&events, |event| *event == FabricEvent::Ready);
    // The manager is at h1.
    let (mut sender, mine) = FabricPort::attach(fabric.name(), "h1/1").unwrap();
    let (mut receiver, theirs) = FabricPort::attach(fabric.name(), "h2/1").unwrap();
    let services = MadRoute::services(mine.port.lid, theirs.port.lid, 0);
    let mut perf = [0; MAD_LEN];
    (perf[0], perf[1], perf[2], perf[3]) = (1, class::PERF_MGT, 1, method::GET);
    let told = |words: [&str; 3]| {
        wait_for(&events, |event| match event {
            FabricEvent::SubnetManager { text, warning, .. } => {
                *warning && words.iter().all(|w| text.contains(w))
            }
            _ => false,
        });
    };
    let at_qp1 = MadRoute { qkey: QKey(0x4321), ..services }.packet(&perf);
    assert_eq!(sender.send(std::iter::once(&at_qp1[..])), 1);
    told(["h2 (LID", "Q_Key 0x00004321", "from h1 (LID"]);
    let apart = MadRoute { pkey: PKey(0x9234), ..services }.packet(&perf);
    assert_eq!(sender.send(std::iter::once(&apart[..])), 1);
    told(["s1 (LID", "P_Key 0x9234", "from h1 (LID"]);
    // A packet of a queue pair with the wrong P_Key, which no switch saw to: the program tells.
    let dropped = MadRoute { pkey: PKey(0x8765), dest_qp: Qpn::new(0x77), ..services }.packet(&perf);
    receiver.report_wrong_key(false, &dropped[..60]);
    told(["h2 (LID", "P_Key 0x8765", "queue pair 0x77"]);
}

#[test]
fn a_program_that_does_not_listen_is_told_the_latest_of_its_port_only() {
    let (end, _other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let values = |lid: u16, reregister| PortValues {
        state: 4,
        lid: Lid(lid),
        lmc: 0,
        sm_lid: Lid(1),
        sm_sl: 0,
        subnet_timeout: 18,
        mtu: Mtu::M4096,
        data_bits: 32_000_000_000,
        gid_prefix: 0xfe80 << 48,
        pkeys: Vec::new(),
        reregister,
    };
    let mut client = Client::new(Channel::new(end), 1, values(1, false));
    assert_eq!(client.next_message(), None);
    for flap in 0..10_000 {
        client.tell_port(values(flap, flap == 5));
    }
    let said = client.next_message().unwrap();
    let expected = values(9_999, true);
    assert_eq!(Message::parse(&said), Some(Message::Port(Box::new(expected))), "and to register anew");
    assert_eq!(client.next_message(), None);
    client.tell_port(values(7, false));
    let said = client.next_message().unwrap();
    assert_eq!(Message::parse(&said), Some(Message::Port(Box::new(values(7, false)))));
}
