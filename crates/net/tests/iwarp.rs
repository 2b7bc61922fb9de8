//! iWARP devices on loopback, through real TCP sockets: connecting, refusing, disconnecting, shared ports.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use everywire_net::{Host, OpenOptions, TokioRt, block_on};
use everywire_verbs::{
    Access, CmErrorKind, ConnParam, ConnectOptions, Connection, Cq, Device, DisconnectReason, ErrorKind,
    IwarpOptions, ListenOptions, Listener, MemoryRegion, MpaFailure, NodeType, Qp, QpInit, QpType, RecvWr,
    Remote, Rtr, SendOp, SendWr, StreamError, WcOpcode, WcStatus, Wire,
};

const LEN: usize = 1 << 20;

fn open(ip: &str, iwarp: IwarpOptions) -> Host {
    let host = Host::open(&format!("iwarp:{ip}"), &OpenOptions { iwarp, ..OpenOptions::default() }).unwrap();
    host.spawn_thread().unwrap();
    host
}

fn any(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), 0)
}

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
    Side { cq, qp, mr }
}

async fn one(cq: &Cq) -> WcOpcode {
    let mut done = Vec::new();
    cq.wait(&mut done, 1).await.unwrap();
    assert_eq!(done[0].status, WcStatus::Success, "{done:?}");
    done[0].opcode
}

async fn accept(listener: &Listener, side: &Side, data: &[u8]) -> Connection {
    let request = listener.next_request().await.unwrap();
    request.accept(&side.qp, ConnParam::with_private_data(data)).await.unwrap()
}

#[test]
fn what_the_wire_lacks_is_told_and_refused() {
    let host = open("127.0.0.3", IwarpOptions::default());
    let device = host.device();
    let attr = device.attributes();
    assert_eq!((attr.wire, attr.node_type), (Wire::Iwarp, NodeType::Rnic));
    assert!(!attr.uc && !attr.ud && !attr.multicast && !attr.immediate);
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(4).unwrap();
    for ty in [QpType::Uc, QpType::Ud] {
        let error = pd.create_qp(&QpInit::new(ty, &cq)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSupported);
        assert!(error.to_string().contains("iWARP"), "{error}");
    }
    let qp = pd.create_qp(&QpInit::new(QpType::Rc, &cq)).unwrap();
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    assert!(qp.attach_multicast(group).unwrap_err().to_string().contains("two ends"));
    assert_eq!(qp.post_send(SendWr::new(1, SendOp::SendImm(1))).unwrap_err().errno(), 95);
    assert!(device.listen_udp(any("127.0.0.3"), ListenOptions::default()).is_err());
}

#[test]
fn connecting_carries_private_data_and_disconnecting_is_heard() {
    for (ip, version) in [("127.0.0.4", 2), ("::1", 2), ("127.0.0.5", 1)] {
        let host = open(ip, IwarpOptions { mpa_version: version, ..IwarpOptions::default() });
        let device = host.device();
        let listener = device.listen(any(ip), ListenOptions::default()).unwrap();
        let (server, client) = (side(device), side(device));
        let dst = listener.local_addr();
        assert_ne!(dst.port(), 0);
        let (ours, theirs) = std::thread::scope(|scope| {
            let passive = scope.spawn(|| block_on(accept(&listener, &server, b"welcome")));
            let param = ConnParam { responder_resources: 3, ..ConnParam::with_private_data(*b"hello") };
            let connection = block_on(device.connect(ConnectOptions::new(dst, &client.qp).param(param)));
            (connection.unwrap(), passive.join().unwrap())
        });
        assert_eq!((ours.private_data(), theirs.private_data()), (&b"welcome"[..], &b"hello"[..]));
        assert_eq!((ours.peer(), theirs.peer()), (dst, ours.local()));
        if version == 2 {
            assert_eq!(theirs.param().responder_resources, 3, "the peer holds three READs");
        }
        assert_eq!(block_on(ours.disconnect()), DisconnectReason::Local);
        assert_eq!(block_on(theirs.closed()), DisconnectReason::Peer);
        drop((ours, theirs, listener));
        drop((client, server));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(device.cm_footprint(), 0, "nothing is left of it");
    }
}

#[test]
fn refusals_say_who_refused() {
    let host = open("127.0.0.6", IwarpOptions::default());
    let device = host.device();
    let listener = device.listen(any("127.0.0.6"), ListenOptions::default()).unwrap();
    let dst = listener.local_addr();
    // The port is taken, by a socket of the kernel's.
    let error = device.listen(dst, ListenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), &CmErrorKind::AddressInUse);
    let client = side(device);
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| block_on(listener.next_request()).unwrap().reject(b"not today").unwrap());
        block_on(device.connect(ConnectOptions::new(dst, &client.qp))).unwrap_err()
    });
    let CmErrorKind::Rejected { private_data, .. } = refused.kind() else { panic!("{refused}") };
    assert_eq!(private_data, b"not today");
    drop(listener);
    std::thread::sleep(Duration::from_millis(20));
    let nobody = block_on(device.connect(ConnectOptions::new(dst, &side(device).qp))).unwrap_err();
    assert_eq!(nobody.kind(), &CmErrorKind::Stream(StreamError::Refused));
    assert!(nobody.to_string().contains(&dst.to_string()), "{nobody}");
    assert_eq!(nobody.errno(), 111);
}

#[test]
fn a_peer_that_speaks_something_else_or_nothing_is_named() {
    let host = open("127.0.0.7", IwarpOptions::default());
    let device = host.device();
    let plain = std::net::TcpListener::bind(any("127.0.0.7")).unwrap();
    let dst = plain.local_addr().unwrap();
    let talker = std::thread::spawn(move || {
        let mut stream = plain.accept().unwrap().0;
        stream.write_all(b"220 mail.example ESMTP ready\r\n").unwrap();
        let (mut silent, _) = plain.accept().unwrap();
        let mut rest = Vec::new();
        let _ = silent.read_to_end(&mut rest);
        assert!(rest.starts_with(b"MPA ID Req Frame"));
    });
    let error = block_on(device.connect(ConnectOptions::new(dst, &side(device).qp))).unwrap_err();
    assert!(matches!(error.kind(), CmErrorKind::Mpa(MpaFailure::Frame(_))), "{error}");
    let options = ConnectOptions::new(dst, &side(device).qp).timeout(Duration::from_millis(50));
    let error = block_on(device.connect(options)).unwrap_err();
    assert!(error.to_string().contains("50"), "{error}");
    talker.join().unwrap();
}

#[test]
fn the_first_bytes_decide_whose_a_connection_is() {
    let runtime = TokioRt::new().unwrap();
    let host = Host::open("iwarp:127.0.0.8", &OpenOptions::default()).unwrap();
    host.run(&runtime).unwrap();
    let device = host.device();
    let plain = host.listen_plain(any("127.0.0.8")).unwrap();
    let dst = plain.local_addr();
    let listener = device.listen(dst, ListenOptions::default()).unwrap();
    assert!(host.listen_plain(dst).is_err(), "one service a port");
    let talker = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(dst).unwrap();
        // The key's beginning, then something else: byte by byte.
        for byte in b"MPA is not what I speak" {
            stream.write_all(&[*byte]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"fine.");
    });
    let (server, client) = (side(device), side(device));
    runtime.block_on(async {
        let connecting = device.connect(ConnectOptions::new(dst, &client.qp));
        let serving = async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let (mut stream, _) = plain.accept().await.unwrap();
            let mut said = [0; 23];
            stream.read_exact(&mut said).await.unwrap();
            assert_eq!(&said, b"MPA is not what I speak");
            stream.write_all(b"fine.").await.unwrap();
        };
        let (ours, theirs, ()) = tokio::join!(connecting, accept(&listener, &server, b"rdma"), serving);
        assert_eq!(ours.unwrap().private_data(), b"rdma");
        drop(theirs);
    });
    talker.join().unwrap();
}

#[test]
fn messages_go_both_ways_with_every_option() {
    let rows = [
        ("127.0.0.9", true, false, None),
        ("127.0.0.10", false, false, None),
        ("127.0.0.11", true, true, None),
        ("127.0.0.12", true, false, Some(Rtr::Send)),
        ("127.0.0.13", false, true, Some(Rtr::Write)),
        ("::1", true, false, Some(Rtr::Read)),
    ];
    for (ip, crc, markers, peer_to_peer) in rows {
        let host = open(ip, IwarpOptions { crc, markers, peer_to_peer, ..IwarpOptions::default() });
        let device = host.device();
        let listener = device.listen(any(ip), ListenOptions::default()).unwrap();
        let (server, client) = (side(device), side(device));
        let pattern: Vec<u8> = (0..LEN).map(|i| (i / 251) as u8 ^ i as u8).collect();
        server.mr.write_at(0, &pattern).unwrap();
        let (addr, rkey) = (server.mr.addr(), server.mr.rkey());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                block_on(async {
                    server
                        .qp
                        .to_init(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)
                        .unwrap();
                    server.qp.post_recv(RecvWr::new(9, [server.mr.sge(..64)])).unwrap();
                    let connection = accept(&listener, &server, b"").await;
                    assert_eq!(one(&server.cq).await, WcOpcode::Recv);
                    let hello = SendWr::new(1, SendOp::Send).with_inline(*b"bye");
                    server.qp.post_send(hello).unwrap();
                    one(&server.cq).await;
                    connection.closed().await;
                });
            });
            block_on(async {
                let connection =
                    device.connect(ConnectOptions::new(listener.local_addr(), &client.qp)).await.unwrap();
                client.qp.post_recv(RecvWr::new(8, [client.mr.sge(..64)])).unwrap();
                let remote = Remote { addr, rkey };
                let post =
                    |op| client.qp.post_send(SendWr::new(1, op).with_sges([client.mr.sge(..)])).unwrap();
                post(SendOp::Read { remote });
                assert_eq!(one(&client.cq).await, WcOpcode::RdmaRead);
                assert_eq!(client.mr.read_vec(0, LEN).unwrap(), pattern);
                let back: Vec<u8> = pattern.iter().rev().copied().collect();
                client.mr.write_at(0, &back).unwrap();
                post(SendOp::Write { remote });
                assert_eq!(one(&client.cq).await, WcOpcode::RdmaWrite);
                client.qp.post_send(SendWr::new(2, SendOp::Send).with_inline(*b"done")).unwrap();
                let mut seen = [one(&client.cq).await, one(&client.cq).await];
                seen.sort_by_key(|opcode| *opcode as u8);
                assert_eq!(seen, [WcOpcode::Send, WcOpcode::Recv]);
                connection.disconnect().await;
            });
        });
        let got = server.mr.read_vec(64, LEN - 64).unwrap();
        let want: Vec<u8> = pattern.iter().rev().copied().skip(64).collect();
        assert!(got == want, "{ip}: what was written is there");
    }
}
