//! Whole devices over a veth pair: raw Ethernet against UDP, link-local addresses, a small MTU.
//! They need CAP_NET_RAW and CAP_SYS_ADMIN; without, they say so and pass. Loopback is in `tests/loopback.rs`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use everywire_verbs::{
    Access, AhAttr, AsyncEvent, ConnParam, ConnectOptions, Cq, Device, GidType, ListenOptions, MemoryRegion,
    PortState, Psn, QKey, Qp, QpAttr, QpInit, QpState, QpType, Qpn, RKey, RecvWr, Remote, SendOp, SendWr,
    WcStatus,
};
use everywire_wire::MacAddr;

use super::*;
use crate::block_on;
use crate::testing::Pair;

const LEN: usize = 50_000;

struct Side {
    cq: Cq,
    qp: Qp,
    mr: MemoryRegion,
}

fn side(device: &Device) -> Side {
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(64).unwrap();
    let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = pd.register(LEN, access).unwrap();
    qp.to_init(access).unwrap();
    Side { cq, qp, mr }
}

async fn one(cq: &Cq) {
    let mut done = Vec::new();
    cq.wait(&mut done, 1).await.unwrap();
    assert_eq!(done[0].status, WcStatus::Success, "{done:?}");
}

fn bytes(seed: u8) -> Vec<u8> {
    (0..LEN).map(|i| (i / 7) as u8 ^ seed).collect()
}

/// Listens, tells the address through `tell`, receives a message and serves a WRITE and a READ until the peer is done.
fn serve(host: &Host, tell: &std::sync::mpsc::Sender<SocketAddr>) {
    let device = host.device();
    let gid = &device.gids()[0];
    let local = route::with_scope(gid.ip, 0, gid.scope_id);
    let listener = device.listen(local, ListenOptions::default()).unwrap();
    tell.send(listener.local_addr()).unwrap();
    let side = side(device);
    side.mr.write_at(0, &bytes(1)).unwrap();
    side.qp.post_recv(RecvWr::new(1, [side.mr.sge(..0)])).unwrap();
    let mut region = side.mr.addr().to_be_bytes().to_vec();
    region.extend(side.mr.rkey().0.to_be_bytes());
    block_on(async {
        let request = listener.next_request().await.unwrap();
        let connection = request.accept(&side.qp, ConnParam::with_private_data(region)).await.unwrap();
        one(&side.cq).await;
        connection.closed().await;
    });
    assert_eq!(side.mr.read_vec(0, LEN).unwrap(), bytes(2));
}

fn ask(host: &Host, mut dst: SocketAddr) {
    let device = host.device();
    if let SocketAddr::V6(v6) = &mut dst {
        v6.set_scope_id(device.gids()[0].scope_id);
    }
    let side = side(device);
    block_on(async {
        let connection = device.connect(ConnectOptions::new(dst, &side.qp)).await.unwrap();
        let data = connection.private_data();
        let remote = Remote {
            addr: u64::from_be_bytes(data[..8].try_into().unwrap()),
            rkey: RKey(u32::from_be_bytes(data[8..12].try_into().unwrap())),
        };
        let post = |op| side.qp.post_send(SendWr::new(1, op).with_sges([side.mr.sge(..)])).unwrap();
        post(SendOp::Read { remote });
        one(&side.cq).await;
        assert_eq!(side.mr.read_vec(0, LEN).unwrap(), bytes(1));
        side.mr.write_at(0, &bytes(2)).unwrap();
        post(SendOp::Write { remote });
        one(&side.cq).await;
        side.qp.post_send(SendWr::new(2, SendOp::Send)).unwrap();
        one(&side.cq).await;
        connection.disconnect().await;
    });
}

/// Opens `names` in the two namespaces and has the second talk to the first; `check` sees both hosts before.
fn talk(pair: &Pair, names: [&str; 2], check: impl Fn(&Host) + Sync) {
    let (tell, told) = std::sync::mpsc::channel();
    let open = |end: usize| {
        pair.enter(end);
        let host = Host::open(names[end], &OpenOptions::default()).unwrap();
        host.spawn_thread().unwrap();
        check(&host);
        host
    };
    let open = &open;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let host = open(0);
            serve(&host, &tell);
        });
        scope.spawn(move || {
            let host = open(1);
            let dst = told.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
            ask(&host, dst);
            println!("{names:?}: {:?}", host.socket_counters());
        });
    });
}

#[test]
fn raw_against_udp_and_raw() {
    let Some(pair) = Pair::new("r", 9000) else { return };
    let mtu = |host: &Host| assert_eq!(host.device().port().active_mtu, Mtu::M4096);
    talk(&pair, ["rocev2-raw:eth0/10.99.0.1", "rocev2:10.99.0.2"], mtu);
    talk(&pair, ["rocev2:10.99.0.1", "rocev2-raw:eth0/10.99.0.2"], mtu);
    talk(&pair, ["rocev2-raw:eth0/fd99::1", "rocev2:fd99::2"], mtu);
    talk(&pair, ["rocev2-raw:eth0/fd99::1", "rocev2-raw:eth0/fd99::2"], mtu);
}

/// GIDs made from IPv4 addresses, link-local ones, and frames with a VLAN tag; and a raw device of either preference takes
/// whichever kind of frame its peer has chosen.
#[test]
fn roce_v1() {
    let Some(pair) = Pair::new("v", 9000) else { return };
    let mtu = |host: &Host| assert_eq!(host.device().port().active_mtu, Mtu::M4096);
    talk(&pair, ["rocev1:eth0/10.99.0.1", "rocev1:eth0/10.99.0.2"], mtu);
    talk(&pair, ["rocev1:eth0/fe80::1", "rocev1:eth0/fe80::2"], mtu);
    talk(&pair, ["rocev1:eth0/10.99.0.1,vlan=100,priority=3", "rocev1:eth0/10.99.0.2,vlan=100"], mtu);
    talk(&pair, ["rocev1:eth0/fd99::1,priority=5", "rocev1:eth0/fd99::2"], mtu);
    talk(&pair, ["rocev1:eth0/10.99.0.1", "rocev2-raw:eth0/10.99.0.2"], mtu);
    talk(&pair, ["rocev2-raw:eth0/10.99.0.1", "rocev1:eth0/10.99.0.2"], mtu);
}

/// RoCE v1 crosses no router: a peer behind one is not looked for.
#[test]
fn roce_v1_stays_on_its_link() {
    let Some(pair) = Pair::new("w", 1500) else { return };
    pair.ip(0, "route add 10.98.0.0/24 via 10.99.0.2");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pair.enter(0);
            let host = Host::open("rocev1:eth0/10.99.0.1", &OpenOptions::default()).unwrap();
            host.spawn_thread().unwrap();
            let side = side(host.device());
            let dst = "10.98.0.7:1000".parse().unwrap();
            let error = block_on(host.device().connect(ConnectOptions::new(dst, &side.qp))).unwrap_err();
            assert!(error.to_string().contains("cannot be reached"), "{error}");
        });
    });
}

#[test]
fn link_local_addresses() {
    let Some(pair) = Pair::new("l", 1500) else { return };
    // facts: path MTU 1024 at Ethernet's 1500.
    let mtu = |host: &Host| assert_eq!(host.device().port().active_mtu, Mtu::M1024);
    talk(&pair, ["rocev2:fe80::1%eth0", "rocev2:fe80::2%eth0"], mtu);
    talk(&pair, ["rocev2-raw:eth0/fe80::1", "rocev2:fe80::2%eth0"], mtu);
    talk(&pair, ["rocev2:10.99.0.1", "rocev2:10.99.0.2"], mtu);
}

/// Waits for the next asynchronous event of a host that a thread drives.
fn next_event(host: &Host) -> AsyncEvent {
    let (tell, told) = std::sync::mpsc::channel();
    let events = host.device().async_events();
    std::thread::spawn(move || tell.send(block_on(events.next())));
    told.recv_timeout(Duration::from_secs(5)).expect("an event")
}

/// IBTA §11.6.3.3: the port's state is the link's, whichever end takes it down.
#[test]
fn the_port_goes_down_and_up_with_the_interface() {
    let Some(pair) = Pair::new("p", 1500) else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pair.enter(0);
            let host = Host::open("rocev2:10.99.0.1", &OpenOptions::default()).unwrap();
            host.spawn_thread().unwrap();
            let state = || host.device().port().state;
            assert_eq!((state(), host.device().async_events().try_next()), (PortState::Active, None));
            for end in [0, 1] {
                pair.ip(end, "link set eth0 down");
                assert_eq!((next_event(&host), state()), (AsyncEvent::PortError, PortState::Down));
                let late = Host::open("rocev2:127.0.0.9", &OpenOptions::default()).unwrap();
                assert_eq!(late.device().port().state, PortState::Active, "loopback has not changed");
                pair.ip(end, "link set eth0 up");
                assert_eq!((next_event(&host), state()), (AsyncEvent::PortActive, PortState::Active));
            }
            assert_eq!(host.device().counters().by_name("link_downed"), Some(2));
            pair.ip(1, "link set eth0 down");
            assert_eq!(next_event(&host), AsyncEvent::PortError);
            drop(host);
            let host = Host::open("rocev2:10.99.0.1", &OpenOptions::default()).unwrap();
            assert_eq!(host.device().port().state, PortState::Down, "as it was found");
        });
    });
}

/// Whoever waits for something else drives hosts without a driver; one that has got a driver meanwhile is left to it, who
/// would not hear of what such a turn leaves to be done.
#[test]
fn a_host_with_a_driver_is_left_to_it() {
    let host = Host::open("rocev2:127.83.4.10", &OpenOptions::default()).unwrap();
    host.shared.claim(Mode::Task).unwrap();
    crate::runtime::drive(std::slice::from_ref(&host.shared), &mut Patience::default());
    assert!(host.shared.has_work(), "its first turn is its driver's");
    host.shared.release();
    crate::runtime::drive(std::slice::from_ref(&host.shared), &mut Patience::default());
    assert!(!host.shared.has_work());
}

/// An interface that is deleted and made again is another one to the kernel: a raw device is on it again by itself, with its
/// groups; what fails meanwhile is the device's own interface, by name.
#[test]
fn a_raw_device_is_back_when_its_interface_is() {
    let Some(pair) = Pair::new("z", 1500) else { return };
    for (a, b, group, v1_group) in [
        ("10.99.0.1", "10.99.0.2", "239.7.7.7", "239.8.8.8"),
        ("fd99::1", "fd99::2", "ff15::77", "ff15::88"),
        ("fe80::1", "fe80::2", "ff15::77", "ff15::88"),
    ] {
        for wire in ["rocev1", "rocev2-raw"] {
            let open = |end: usize, ip: &str| {
                std::thread::scope(|scope| {
                    let opened = scope.spawn(|| {
                        pair.enter(end);
                        let name = format!("{wire}:eth0/{ip}");
                        let host = Host::open(&name, &OpenOptions::default()).unwrap();
                        host.spawn_thread().unwrap();
                        host
                    });
                    opened.join().unwrap()
                })
            };
            let (server, client) = (open(0, a), open(1, b));
            let mut joins = server.shared.lock();
            let Engine::Datagrams(engine) = &mut *joins else { panic!("RoCE") };
            engine.wire.join(group.parse().unwrap(), GidType::RoceV2).unwrap();
            engine.wire.join(v1_group.parse().unwrap(), GidType::RoceV1).unwrap();
            drop(joins);
            pair.ip(0, "link del eth0");
            for host in [&server, &client] {
                assert_eq!(next_event(host), AsyncEvent::PortError);
            }
            let blamed = side(client.device());
            let dst = route::with_scope(a.parse().unwrap(), 1000, client.device().gids()[0].scope_id);
            let error = block_on(client.device().connect(ConnectOptions::new(dst, &blamed.qp))).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("own interface eth0 is down or gone"), "{wire}: {text}");
            pair.link_again(1500);
            for host in [&server, &client] {
                assert_eq!(next_event(host), AsyncEvent::PortActive);
            }
            // A frame's way in: the hardware's filter; and what IGMP and MLD tell of.
            let groups = pair.shows(0, "maddr show dev eth0");
            let mac = MacAddr::for_multicast(v1_group.parse().unwrap());
            assert!(groups.contains(&mac.to_string()) && groups.contains(group), "{wire}: {groups}");
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                scope.spawn(|| serve(&server, &tell));
                ask(&client, told.recv_timeout(Duration::from_secs(10)).unwrap());
            });
        }
    }
}

/// So is the membership of a device on ordinary sockets, by its driver.
#[test]
fn a_device_joins_its_groups_again_when_its_interface_is_back() {
    let Some(pair) = Pair::new("y", 1500) else { return };
    for (ip, group) in [("10.99.0.1", "239.7.7.8"), ("fd99::1", "ff15::78")] {
        let host = std::thread::scope(|scope| {
            let opened = scope.spawn(|| {
                pair.enter(0);
                let host = Host::open(&format!("rocev2:{ip}"), &OpenOptions::default()).unwrap();
                host.spawn_thread().unwrap();
                let mut engine = host.shared.lock();
                let Engine::Datagrams(datagrams) = &mut *engine else { panic!("RoCE") };
                datagrams.wire.join(group.parse().unwrap(), GidType::RoceV2).unwrap();
                drop(engine);
                host
            });
            opened.join().unwrap()
        });
        assert!(pair.shows(0, "maddr show dev eth0").contains(group));
        pair.ip(0, "link del eth0");
        assert_eq!(next_event(&host), AsyncEvent::PortError);
        pair.link_again(1500);
        assert_eq!(next_event(&host), AsyncEvent::PortActive);
        let until = Instant::now() + Duration::from_secs(10);
        while !pair.shows(0, "maddr show dev eth0").contains(group) {
            assert!(Instant::now() < until, "{}", pair.shows(0, "maddr show dev eth0"));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A path that becomes narrower than what was agreed on: the sender's own kernel says so, and the device counts it.
#[test]
fn a_path_that_has_become_narrow_is_noticed() {
    let Some(pair) = Pair::new("n", 1500) else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pair.enter(0);
            let host = Host::open("rocev2:10.99.0.1", &OpenOptions::default()).unwrap();
            host.spawn_thread().unwrap();
            let pd = host.device().alloc_pd().unwrap();
            let cq = host.device().create_cq(64).unwrap();
            let qp = pd.create_qp(&QpInit::new(QpType::Ud, &cq)).unwrap();
            let qkey = QKey(0x1234);
            let init =
                QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(qkey), ..QpAttr::to(QpState::Init) };
            let rts = QpAttr { sq_psn: Some(Psn::new(1)), ..QpAttr::to(QpState::Rts) };
            for attr in [init, QpAttr::to(QpState::Rtr), rts] {
                qp.modify(&attr).unwrap();
            }
            let mr = pd.register(1000, Access::empty()).unwrap();
            let ah = block_on(pd.create_ah(AhAttr::new("10.99.0.2".parse().unwrap()))).unwrap();
            let send = || {
                let dest = ah.dest(Qpn::new(77), qkey);
                let send = SendWr::new(1, SendOp::Send).with_sges([mr.sge(..)]);
                qp.post_send(SendWr { ud: Some(dest), ..send }).unwrap();
                block_on(one(&cq));
                host.device().counters().by_name("path_too_big").unwrap()
            };
            assert_eq!(send(), 0);
            pair.ip(0, "link set eth0 mtu 600");
            let until = std::time::Instant::now() + Duration::from_secs(5);
            while send() == 0 {
                assert!(std::time::Instant::now() < until, "nobody noticed");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(host.socket_counters().too_big > 0);
        });
    });
}

/// A call of `block_on` on another thread may hold a host's shared part for a moment yet: the address is free all the same.
#[test]
fn a_closed_host_leaves_its_address_at_once() {
    let open = || Host::open("rocev2:127.83.4.9", &OpenOptions::default()).unwrap();
    let host = open();
    let held = host.shared.clone();
    drop(host);
    drop(open());
    let mut closed = held.lock();
    assert_eq!(
        (held.turn(&mut closed), closed.deadline(), closed.going_idle()),
        (engine::Turn::default(), None, false)
    );
}
