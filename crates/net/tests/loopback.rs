//! Two devices on loopback addresses, connected by CM, driven in every way there is: bytes arrive, nothing is lost.
//!
//! What is expected is what the verbs promise: every work request completes once, in order, with the bytes that were sent.
//! Addresses are 127.x of this process, so that several test processes do not meet.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use everywire_net::udp::{PortOptions, SocketOptions};
use everywire_net::{Host, OpenOptions, TokioRt, block_on};
use everywire_verbs::{
    Access, CmErrorKind, Completion, ConnParam, ConnectOptions, Connection, Cq, Device, ListenOptions,
    MemoryRegion, Pd, Qp, QpCaps, QpInit, QpType, RecvWr, SendOp, SendWr, WcOpcode, WcStatus,
};

/// An address of 127.0.0.0/8 that no other test of this process uses, and hardly one of another process.
fn loopback() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    IpAddr::V4(Ipv4Addr::new(127, 0x20 | (pid >> 8) as u8 & 0x1f, pid as u8, n))
}

fn open_with(options: &OpenOptions) -> Host {
    Host::open(&format!("rocev2:{}", loopback()), options).unwrap()
}

fn open() -> Host {
    open_with(&OpenOptions::default())
}

fn ip(host: &Host) -> IpAddr {
    host.device().gids()[0].ip
}

/// Everything one side of a connection needs.
struct Side {
    pd: Pd,
    cq: Cq,
    qp: Qp,
    mr: MemoryRegion,
}

const REGION: usize = 1 << 20;

fn side(device: &Device) -> Side {
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(1024).unwrap();
    let caps = QpCaps { max_send_wr: 256, max_recv_wr: 256, ..QpCaps::default() };
    let qp = pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) }).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let mr = pd.register(REGION, access).unwrap();
    qp.to_init(access).unwrap();
    Side { pd, cq, qp, mr }
}

/// Where the other side's region is: address and key, as private data.
fn advertise(mr: &MemoryRegion) -> ConnParam {
    let mut data = mr.addr().to_be_bytes().to_vec();
    data.extend(mr.rkey().0.to_be_bytes());
    ConnParam::with_private_data(data)
}

fn advertised(connection: &Connection, offset: u64) -> everywire_verbs::Remote {
    let data = connection.private_data();
    let addr = u64::from_be_bytes(data[..8].try_into().unwrap());
    let rkey = u32::from_be_bytes(data[8..12].try_into().unwrap());
    everywire_verbs::Remote { addr: addr + offset, rkey: everywire_verbs::RKey(rkey) }
}

async fn connect(server: &Device, client: &Device) -> (Side, Connection, Side, Connection) {
    let listener = server.listen(SocketAddr::new(server.gids()[0].ip, 0), ListenOptions::default()).unwrap();
    let (s, c) = (side(server), side(client));
    let connecting =
        client.connect(ConnectOptions::new(listener.local_addr(), &c.qp).param(advertise(&c.mr)));
    let accepting = async {
        let request = listener.next_request().await.unwrap();
        request.accept(&s.qp, advertise(&s.mr)).await.unwrap()
    };
    let (c_conn, s_conn) = join(connecting, accepting).await;
    (s, s_conn, c, c_conn.unwrap())
}

/// Both, at once.
async fn join<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut got_a, mut got_b) = (None, None);
    std::future::poll_fn(|cx| {
        if got_a.is_none()
            && let std::task::Poll::Ready(value) = a.as_mut().poll(cx)
        {
            got_a = Some(value);
        }
        if got_b.is_none()
            && let std::task::Poll::Ready(value) = b.as_mut().poll(cx)
        {
            got_b = Some(value);
        }
        if got_a.is_some() && got_b.is_some() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    (got_a.unwrap(), got_b.unwrap())
}

async fn completions(cq: &Cq, count: usize) -> Vec<Completion> {
    let mut out = Vec::new();
    while out.len() < count {
        let missing = count - out.len();
        cq.wait(&mut out, missing).await.unwrap();
    }
    for completion in &out {
        assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
    }
    out
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

/// SENDs both ways, a WRITE, a READ and atomics, of sizes from nothing to many packets.
async fn exercise(server: &Device, client: &Device) {
    let (s, s_conn, c, c_conn) = connect(server, client).await;
    for (i, len) in [0, 1, 64, 4096, 4097, 100_000].into_iter().enumerate() {
        let data = pattern(len, i as u8);
        c.mr.write_at(0, &data).unwrap();
        s.qp.post_recv(RecvWr::new(i as u64, [s.mr.sge(200_000..400_000)])).unwrap();
        c.qp.post_send(SendWr::new(i as u64, SendOp::Send).with_sges([c.mr.sge(..len)])).unwrap();
        let got = completions(&s.cq, 1).await.remove(0);
        assert_eq!((got.wr_id, got.byte_len, got.opcode), (i as u64, len as u32, WcOpcode::Recv));
        assert_eq!(s.mr.read_vec(200_000, len).unwrap(), data);
        assert_eq!(completions(&c.cq, 1).await[0].opcode, WcOpcode::Send);
    }
    // The other way.
    c.qp.post_recv(RecvWr::new(9, [c.mr.sge(..100)])).unwrap();
    s.qp.post_send(SendWr::new(8, SendOp::SendImm(77)).with_inline(b"back".to_vec())).unwrap();
    let got = completions(&c.cq, 1).await.remove(0);
    assert_eq!((got.wr_id, got.byte_len, got.imm), (9, 4, Some(77)));
    completions(&s.cq, 1).await;

    let data = pattern(REGION / 2, 42);
    c.mr.write_at(0, &data).unwrap();
    let write = SendOp::Write { remote: advertised(&c_conn, 4096) };
    c.qp.post_send(SendWr::new(1, write).with_sges([c.mr.sge(..data.len())])).unwrap();
    completions(&c.cq, 1).await;
    assert_eq!(s.mr.read_vec(4096, data.len()).unwrap(), data);
    c.mr.write_at(0, &vec![0; data.len()]).unwrap();
    let read = SendOp::Read { remote: advertised(&c_conn, 4096) };
    c.qp.post_send(SendWr::new(2, read).with_sges([c.mr.sge(..data.len())])).unwrap();
    completions(&c.cq, 1).await;
    assert_eq!(c.mr.read_vec(0, data.len()).unwrap(), data);

    s.mr.write_at(8, &40u64.to_ne_bytes()).unwrap();
    let add = SendOp::FetchAdd { remote: advertised(&c_conn, 8), add: 2 };
    c.qp.post_send(SendWr::new(3, add).with_sges([c.mr.sge(..8)])).unwrap();
    completions(&c.cq, 1).await;
    assert_eq!(s.mr.read_vec(8, 8).unwrap(), 42u64.to_ne_bytes());

    c_conn.disconnect().await;
    s_conn.closed().await;
}

#[test]
fn two_devices_with_threads() {
    let (a, b) = (open(), open());
    a.spawn_thread().unwrap();
    b.spawn_thread().unwrap();
    assert!(a.spawn_thread().is_err(), "one driver a device");
    block_on(exercise(a.device(), b.device()));
}

#[test]
fn two_devices_as_tasks() {
    let runtime = TokioRt::new().unwrap();
    let (a, b) = (open(), open());
    a.run(&runtime).unwrap();
    b.run(&runtime).unwrap();
    runtime.block_on(exercise(a.device(), b.device()));
}

#[test]
fn two_devices_inline() {
    let (a, b) = (open(), open());
    block_on(exercise(a.device(), b.device()));
}

#[test]
fn one_device_with_itself() {
    let a = open();
    a.spawn_thread().unwrap();
    block_on(exercise(a.device(), a.device()));
}

#[test]
fn over_ipv6() {
    let Ok(host) = Host::open("rocev2:::1", &OpenOptions::default()) else {
        everywire_testkit::skipped("::1 is not free here");
        return;
    };
    host.spawn_thread().unwrap();
    block_on(exercise(host.device(), host.device()));
}

#[test]
fn without_gso_and_gro_and_with_small_buffers() {
    let socket =
        SocketOptions { recv_buffer: 65_536, gro: false, force_buffers: false, ..SocketOptions::default() };
    let port = PortOptions { socket, gso: false, ..PortOptions::default() };
    let options = OpenOptions { port, ..OpenOptions::default() };
    let (a, b) = (open_with(&options), open_with(&options));
    a.spawn_thread().unwrap();
    b.spawn_thread().unwrap();
    block_on(exercise(a.device(), b.device()));
}

/// A program that polls drives the device itself, whether or not a thread does too.
#[test]
fn polling_beside_a_thread() {
    for threads in [false, true] {
        let (a, b) = (open(), open());
        if threads {
            a.spawn_thread().unwrap();
            b.spawn_thread().unwrap();
        }
        let (s, _s_conn, c, _c_conn) = block_on(connect(a.device(), b.device()));
        let rounds = 2000;
        let finished = AtomicU8::new(0);
        let run = |side: &Side, first| {
            ping_pong(side, rounds, first);
            finished.fetch_add(1, Ordering::SeqCst);
            // Without a thread nobody else acknowledges what the other side sent last.
            while finished.load(Ordering::SeqCst) < 2 {
                side.cq.poll(&mut Vec::new(), 1).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| run(&s, false));
            scope.spawn(|| run(&c, true));
        });
    }
}

fn ping_pong(side: &Side, rounds: usize, first: bool) {
    let until = Instant::now() + Duration::from_secs(60);
    let mut done = Vec::new();
    side.qp.post_recv(RecvWr::new(0, [side.mr.sge(..64)])).unwrap();
    let send = || {
        side.qp.post_send(SendWr::new(1, SendOp::Send).with_sges([side.mr.sge(64..128)])).unwrap();
    };
    if first {
        send();
    }
    let (mut sent, mut received) = (usize::from(first), 0);
    let mut acknowledged = 0;
    while received < rounds || acknowledged < rounds {
        assert!(Instant::now() < until, "stuck at {received} received, {acknowledged} acknowledged");
        done.clear();
        if side.cq.poll(&mut done, 16).unwrap() == 0 {
            std::thread::yield_now();
        }
        for completion in &done {
            assert_eq!(completion.status, WcStatus::Success);
            if completion.opcode == WcOpcode::Send {
                acknowledged += 1;
                continue;
            }
            received += 1;
            if received < rounds {
                side.qp.post_recv(RecvWr::new(0, [side.mr.sge(..64)])).unwrap();
            }
            if sent < rounds {
                send();
                sent += 1;
            }
        }
    }
}

/// 32 queue pairs of four devices write into one socket with an unprivileged process' buffer: packets may be lost on the
/// way, work may not.
#[test]
fn many_queue_pairs_into_one_socket() {
    let socket = SocketOptions { recv_buffer: 106_496, force_buffers: false, ..SocketOptions::default() };
    let port = PortOptions { socket, ..PortOptions::default() };
    let server = open_with(&OpenOptions { port, ..OpenOptions::default() });
    server.spawn_thread().unwrap();
    let clients: Vec<Host> = (0..4).map(|_| open()).collect();
    for client in &clients {
        client.spawn_thread().unwrap();
    }
    let mut sides = Vec::new();
    for i in 0..32 {
        sides.push(block_on(connect(server.device(), clients[i % 4].device())));
    }
    let (messages, len) = (20usize, 65_536usize);
    for (i, (_, _, c, conn)) in sides.iter().enumerate() {
        c.mr.write_at(0, &pattern(len, i as u8)).unwrap();
        for n in 0..messages {
            let remote = advertised(conn, (n % 8 * len) as u64);
            let wr = SendWr::new(n as u64, SendOp::Write { remote }).with_sges([c.mr.sge(..len)]);
            c.qp.post_send(wr).unwrap();
        }
    }
    for (i, (s, _, c, _)) in sides.iter().enumerate() {
        let done = block_on(completions(&c.cq, messages));
        assert!(done.iter().map(|d| d.wr_id).eq(0..messages as u64), "in order");
        for slot in 0..8 {
            assert_eq!(s.mr.read_vec(slot * len, len).unwrap(), pattern(len, i as u8));
        }
    }
    println!("{:?}", server.socket_counters());
    for client in &clients {
        println!("{:?}", client.device().counters());
    }
    drop(sides.iter().map(|(s, ..)| s.pd.clone()).collect::<Vec<_>>());
}

/// Nobody at the peer's port 4791: the attempt fails at once and says so.
#[test]
fn connecting_to_nobody() {
    let a = open();
    a.spawn_thread().unwrap();
    let c = side(a.device());
    let dst = SocketAddr::new(loopback(), 7);
    let start = Instant::now();
    let error = match block_on(a.device().connect(ConnectOptions::new(dst, &c.qp))) {
        Ok(_) => panic!("connected to nobody"),
        Err(error) => error.to_string(),
    };
    assert!(start.elapsed() < Duration::from_secs(5), "{error}");
    assert!(error.contains(&dst.ip().to_string()), "{error}");
}

/// The capture of a whole life has every packet, and tshark finds none malformed.
#[test]
fn a_capture_opens_in_wireshark() {
    let path = std::env::temp_dir().join(format!("everywire-net-{}.pcapng", std::process::id()));
    let a = open();
    let b = open_with(&OpenOptions { capture: Some(path.clone()), ..OpenOptions::default() });
    a.spawn_thread().unwrap();
    b.spawn_thread().unwrap();
    block_on(exercise(a.device(), b.device()));
    let client = ip(&b).to_string();
    drop(b);
    let mut tshark = std::process::Command::new("tshark");
    tshark.args(["-n", "--disable-protocol", "rpcordma", "-r"]).arg(&path);
    tshark.args(["-T", "fields", "-e", "ip.src", "-e", "infiniband.bth.opcode", "-e", "_ws.malformed"]);
    tshark.args(["-e", "frame.comment"]);
    match tshark.output() {
        Err(error) => everywire_testkit::skipped(format_args!("tshark: {error}")),
        Ok(output) => {
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.lines().count() > 300, "{}", text.lines().count());
            assert!(text.lines().any(|line| line.starts_with(&client)));
            // Opcodes of the RC WRITE and READ RESPONSE packets, and of UD SEND, which the CM uses.
            for opcode in ["6", "7", "8", "13", "14", "15", "17", "100"] {
                assert!(
                    text.lines().any(|line| line.split('\t').nth(1) == Some(opcode)),
                    "no opcode {opcode}"
                );
            }
            for line in text.lines() {
                let mut rest = line.split('\t').skip(2);
                assert!(rest.all(str::is_empty), "malformed, or a wrong ICRC: {line}");
            }
        }
    }
    std::fs::remove_file(path).unwrap();
}

/// Set, to the address to connect to, in the process that is to be killed.
const VICTIM: &str = "EVERYWIRE_TEST_VICTIM";

/// A process that does not outlive the test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CM-04: the kernel of a client that was killed answers REP with "port unreachable"; nobody waits for the retries' end.
#[test]
fn a_client_killed_between_req_and_rtu_is_missed_at_once() {
    let host = open();
    host.spawn_thread().unwrap();
    let own = side(host.device());
    if let Ok(server) = std::env::var(VICTIM) {
        let _ = block_on(host.device().connect(ConnectOptions::new(server.parse().unwrap(), &own.qp)));
        return;
    }
    let listener = host.device().listen(SocketAddr::new(ip(&host), 0), ListenOptions::default()).unwrap();
    let client = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_client_killed_between_req_and_rtu_is_missed_at_once"])
        .env(VICTIM, listener.local_addr().to_string())
        .stdout(std::process::Stdio::null())
        .spawn();
    let client = Killed(client.unwrap());
    let request = block_on(listener.next_request()).unwrap();
    drop(client);
    let start = Instant::now();
    let error = block_on(request.accept(&own.qp, ConnParam::default())).unwrap_err();
    assert_eq!(error.kind(), &CmErrorKind::PortUnreachable);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}
