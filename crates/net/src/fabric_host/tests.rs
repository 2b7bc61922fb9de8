//! A fabric that runs, seen from its doors: packets from port to port with nothing lost, and a client of ibsim.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use everywire_fabric::ib::mad_packet::MadRoute;
use everywire_wire::mad::{MadHeader, class, method};
use everywire_wire::perf::{self, PerfMad, PortCounters};
use everywire_wire::smp::{NodeInfo, Smp, attribute};
use everywire_wire::{Guid, Lid, MAD_LEN, Qpn};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, bind, connect, recv, send, sendto,
    socket,
};

use super::plan::LinkShape;
pub(super) use super::two_hosts::plan;
use super::{Fabric, FabricEvent, FabricOptions, Plan};
use crate::fabric_port::{FabricPort, Said};

/// How long anything here may take on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn start(plan: Plan, options: &FabricOptions) -> (Fabric, Receiver<FabricEvent>) {
    let (sender, events) = channel();
    let fabric = Fabric::start(plan, options, move |event| drop(sender.send(event))).expect("a fabric");
    (fabric, events)
}

pub(super) fn wait_for(events: &Receiver<FabricEvent>, wanted: impl Fn(&FabricEvent) -> bool) {
    while !wanted(&events.recv_timeout(PATIENCE).expect("the event")) {}
}

/// Many windows, to a receiver that does not look for a while: the sender is stopped by credits, and every packet arrives in
/// its order.
#[test]
fn nothing_is_lost_on_the_way_to_a_slow_receiver() {
    const PACKETS: u32 = 3000;
    let (fabric, events) = start(plan("slow"), &FabricOptions::default());
    wait_for(&events, |event| *event == FabricEvent::Ready);
    let (mut sender, mine) = FabricPort::attach(fabric.name(), "h1/1").expect("a port");
    let (mut receiver, theirs) = FabricPort::attach(fabric.name(), "h2/1").expect("a port");
    assert!(FabricPort::attach(fabric.name(), "h2/1").unwrap_err().to_string().contains("taken by process"));
    let route = MadRoute { dest_qp: Qpn::new(77), ..MadRoute::services(mine.port.lid, theirs.port.lid, 3) };
    let packet = |number: u32| {
        let mut mad = [0; MAD_LEN];
        mad[..4].copy_from_slice(&number.to_be_bytes());
        route.packet(&mad)
    };
    let until = Instant::now() + PATIENCE;
    let (mut sent, mut stalls, mut received) = (0, 0, Vec::new());
    while received.len() < PACKETS as usize {
        assert!(Instant::now() < until, "{sent} sent, {} received", received.len());
        let batch: Vec<Vec<u8>> = (sent..PACKETS.min(sent + 32)).map(packet).collect();
        let went = sender.send(batch.iter().map(Vec::as_slice)) as u32;
        sent += went;
        stalls = if went == 0 { stalls + 1 } else { 0 };
        sender.receive(|_| panic!("nobody sends to it"));
        if stalls > 50 || sent == PACKETS {
            receiver.receive(|packet| {
                let (_, mad) = MadRoute::parse(packet).expect("a whole packet");
                received.push(u32::from_be_bytes([mad[0], mad[1], mad[2], mad[3]]));
            });
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    assert!(received.into_iter().eq(0..PACKETS), "in order");
    sender.resolve(5, std::net::Ipv4Addr::new(10, 77, 0, 2).into());
    let answer = loop {
        assert!(Instant::now() < until);
        sender.receive(|_| {});
        let resolved =
            |said| if let Said::Resolved { token, gid, .. } = said { Some((token, gid)) } else { None };
        if let Some(answer) = sender.said().into_iter().find_map(resolved) {
            break answer;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(answer, (5, Some(everywire_wire::Gid::link_local(theirs.port_guid))));
    drop(fabric);
    while receiver.gone().is_none() {
        assert!(Instant::now() < until);
        receiver.receive(|_| {});
    }
    assert_eq!(receiver.gone(), Some("the fabric ends"));
}

/// What the wire damages is lost and counted where it would have arrived; with link-level retry nothing is, and its errors are
/// counted all the same. The counters are read as perfquery reads them (IBTA §16.1.3.5).
#[test]
fn bit_errors_lose_packets_unless_the_link_sends_them_again() {
    const PACKETS: usize = 1000;
    for retry in [false, true] {
        let mut plan = plan(if retry { "retry" } else { "errors" });
        plan.links[1].shape = LinkShape { retry, bit_errors_ppm: 50_000, ..LinkShape::default() };
        let (fabric, events) = start(plan, &FabricOptions::default());
        wait_for(&events, |event| *event == FabricEvent::Ready);
        let (mut sender, mine) = FabricPort::attach(fabric.name(), "h1/1").expect("a port");
        let (mut receiver, theirs) = FabricPort::attach(fabric.name(), "h2/1").expect("a port");
        let services = MadRoute::services(mine.port.lid, theirs.port.lid, 0);
        let route = MadRoute { dest_qp: Qpn::new(77), ..services };
        let (mut sent, mut received, mut quiet) = (0, 0, Instant::now());
        let until = Instant::now() + PATIENCE;
        while received < PACKETS && (sent < PACKETS || quiet.elapsed() < Duration::from_secs(1)) {
            assert!(Instant::now() < until, "{sent} sent, {received} received");
            let batch: Vec<Vec<u8>> =
                (sent..PACKETS.min(sent + 32)).map(|_| route.packet(&[0; MAD_LEN])).collect();
            let (before, went) = (received, sender.send(batch.iter().map(Vec::as_slice)));
            sent += went;
            sender.receive(|_| panic!("nobody sends to it"));
            receiver.receive(|_| received += 1);
            if went > 0 || received > before {
                quiet = Instant::now();
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let counters = port_counters(&mut sender, &MadRoute { src_qp: Qpn::new(78), ..services });
        let lost = PACKETS - received;
        // 50 of 1000 on average; the manager's own MADs on the way in are damaged too.
        assert!((10..150).contains(&counters.symbol_errors), "{retry}: {counters:?}");
        if retry {
            assert_eq!((lost, counters.rcv_errors), (0, 0));
        } else {
            assert!((10..150).contains(&lost), "{lost} lost");
            assert!(usize::from(counters.rcv_errors) >= lost, "{lost} lost, {counters:?}");
        }
    }
}

/// PortCounters of port 1 at the end of a route; asked again when the wire has swallowed the question or the answer.
fn port_counters(port: &mut FabricPort, route: &MadRoute) -> PortCounters {
    let header = MadHeader {
        base_version: 1,
        mgmt_class: class::PERF_MGT,
        class_version: perf::CLASS_VERSION,
        method: method::GET,
        attribute_id: perf::attribute::PORT_COUNTERS,
        transaction_id: 7,
        ..MadHeader::default()
    };
    let mut request = PerfMad { header, ..PerfMad::default() };
    PortCounters { port_select: 1, ..PortCounters::default() }.emit(&mut request.data);
    let mut mad = [0; MAD_LEN];
    request.emit(&mut mad);
    for _ in 0..50 {
        port.send(std::iter::once(&route.packet(&mad)[..]));
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            let mut answer = None;
            port.receive(|packet| answer = MadRoute::parse(packet).ok());
            if let Some((_, mad)) = answer {
                let answer = PerfMad::parse(&mad).expect("a MAD");
                return PortCounters::parse(&answer.data).expect("counters");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    panic!("the counters do not answer")
}

/// As libumad2sim does it: bind, connect, NODEINFO, a directed route to the switch, and out again.
#[test]
fn a_client_of_ibsim_looks_around() {
    let name = format!("ibsim-{}", std::process::id());
    let options = FabricOptions { subnet_manager: false, ibsim: Some(name.clone()), capture: None };
    let (_fabric, events) = start(plan("ibsim"), &options);
    let address =
        |what: &str| SocketAddrUnix::new_abstract_name(format!("{name}:{what}\0").as_bytes()).unwrap();
    // A process may see itself by another number than the fabric does.
    let pid = std::process::id() + 10_000_000;
    let dgram = |what: &str| {
        let fd = socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        rustix::net::sockopt::set_socket_timeout(&fd, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE))
            .unwrap();
        bind(&fd, &address(what)).unwrap();
        fd
    };
    let (control, inbox) = (dgram(&format!("ctl{pid}")), dgram(&format!("in{pid}")));
    let ask = |kind: u32, client: u32, data: &[u8]| {
        let mut message = [0u8; 80];
        for (at, word) in [(0, 0xdead_beef), (4, client), (8, kind), (12, data.len() as u32)] {
            message[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        message[16..16 + data.len()].copy_from_slice(data);
        sendto(&control, &message, SendFlags::empty(), &address("ctl")).unwrap();
        let mut reply = [0u8; 80];
        assert_eq!(recv(&control, &mut reply[..], RecvFlags::empty()).unwrap().0, 80);
        reply
    };
    let word = |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut hello = [0u8; 44];
    hello[..4].copy_from_slice(&pid.to_ne_bytes());
    hello[12..14].copy_from_slice(b"h2");
    let welcome = ask(1, 0, &hello);
    let client = word(&welcome, 16);
    assert_eq!(word(&welcome, 8), 1, "no error");
    let connected = format!("process {} is connected", std::process::id());
    let expected = FabricEvent::Ibsim { port: "h2/1".to_owned(), what: connected };
    wait_for(&events, |event| *event == expected);
    let info = NodeInfo::parse(&ask(7, client, &[0; 64])[16..]).unwrap();
    assert_eq!((info.node_guid, info.num_ports), (Guid(0x0245_5700_0100_0020), 1));
    assert_eq!(word(&ask(99, client, &[]), 8), 0, "an error");

    connect(&inbox, &address(&format!("out{client}"))).unwrap();
    let exchange = |smp: &Smp| {
        let mut packet = [0u8; 288];
        packet[..2].copy_from_slice(&Lid::PERMISSIVE.0.to_be_bytes());
        packet[32..].copy_from_slice(&smp.to_mad());
        send(&inbox, &packet, SendFlags::empty()).unwrap();
        let mut reply = [0u8; 288];
        assert_eq!(recv(&inbox, &mut reply[..], RecvFlags::empty()).unwrap().0, 288);
        let status = u32::from_be_bytes(reply[16..20].try_into().unwrap());
        (status, Smp::parse(&reply[32..]).unwrap())
    };
    let transaction_id = 0x0001_0003_1234_5678;
    let request = Smp::directed(method::GET, attribute::NODE_INFO, 0, transaction_id, &[1]);
    let (status, response) = exchange(&request);
    let MadHeader { mgmt_class, method: got, transaction_id: back, .. } = response.header;
    assert_eq!((status, got, mgmt_class), (0, method::GET_RESP, class::SUBN_DIRECTED_ROUTE));
    assert_eq!(back, transaction_id, "the client's own");
    let switch = NodeInfo::parse(&response.data).unwrap();
    assert_eq!((switch.node_guid, switch.local_port_num), (Guid(0x0245_5700_0200_0000), 2));
    // Nobody is behind the host at the switch's port 1, so nobody answers; the request comes back.
    let nowhere = Smp::directed(method::GET, attribute::NODE_INFO, 0, transaction_id + 1, &[1, 1, 1]);
    let (status, same) = exchange(&nowhere);
    assert_eq!(
        (status, same.header.method, same.header.transaction_id),
        (110, method::GET, transaction_id + 1)
    );
    assert_eq!(word(&ask(2, client, &[]), 8), 2);
    wait_for(&events, |event| matches!(event, FabricEvent::Ibsim { what, .. } if what.contains("has left")));
}

/// Abstract sockets have no permissions, so the server itself has to look whose a message is. (Only root can be another user.)
#[test]
fn another_users_client_of_ibsim_is_not_let_in() {
    const NOBODY: libc::uid_t = 65_534;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let name = format!("strangers-{}", std::process::id());
    let options = FabricOptions { subnet_manager: false, ibsim: Some(name.clone()), capture: None };
    let (_fabric, _events) = start(plan("strangers"), &options);
    let ask = move |uid: Option<libc::uid_t>, pid: u32| {
        if let Some(uid) = uid {
            // SAFETY: the system call, other than libc's function, changes this thread's user alone.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0);
        }
        let address =
            |what: &str| SocketAddrUnix::new_abstract_name(format!("{name}:{what}\0").as_bytes()).unwrap();
        let [control, _inbox] = [format!("ctl{pid}"), format!("in{pid}")].map(|what| {
            let fd = socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
            bind(&fd, &address(&what)).unwrap();
            fd
        });
        rustix::net::sockopt::set_socket_timeout(
            &control,
            rustix::net::sockopt::Timeout::Recv,
            Some(PATIENCE),
        )
        .unwrap();
        let mut message = [0u8; 80];
        for (at, word) in [(0, 0xdead_beef), (8, 1), (12, 44), (16, pid)] {
            message[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        sendto(&control, &message, SendFlags::empty(), &address("ctl")).unwrap();
        recv(&control, &mut message[..], RecvFlags::empty()).unwrap();
        u32::from_ne_bytes(message[8..12].try_into().unwrap())
    };
    let stranger = ask.clone();
    assert_eq!(std::thread::spawn(move || stranger(Some(NOBODY), 1)).join().unwrap(), 0, "an error");
    assert_eq!(std::thread::spawn(move || ask(None, 2)).join().unwrap(), 1, "let in");
}
