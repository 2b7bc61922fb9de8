//! RC against raw UDP on loopback, in one process with two spinning threads; no CM, so that nothing else is measured.
//! `cargo run --release -p everywire-net --example rcbench [write|ping|read|all] [SECONDS]`
//!
//! `everywire perf` is the tool for users; this one is small enough to read under a profiler.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use everywire_net::baseline::{BaselineOptions, BaselineResult, Client, with_thread};
use everywire_net::{Host, OpenOptions};
use everywire_verbs::{
    Access, Completion, Cq, MemoryRegion, Mtu, Path, Psn, Qp, QpAttr, QpCaps, QpInit, QpState, QpType,
    RecvWr, SendOp, SendWr, WcOpcode, WcStatus,
};

struct Side {
    host: Host,
    cq: Cq,
    qp: Qp,
    mr: MemoryRegion,
}

fn side(address: &str) -> Side {
    let host = Host::open(&format!("rocev2:{address}"), &OpenOptions::default()).expect("open");
    let pd = host.device().alloc_pd().expect("pd");
    let cq = host.device().create_cq(4096).expect("cq");
    let caps = QpCaps { max_send_wr: 512, max_recv_wr: 512, ..QpCaps::default() };
    let qp = pd.create_qp(&QpInit { caps, ..QpInit::new(QpType::Rc, &cq) }).expect("qp");
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = pd.register(1 << 20, access).expect("mr");
    qp.to_init(access).expect("init");
    Side { host, cq, qp, mr }
}

fn connect(a: &Side, b: &Side) {
    let ip = |s: &Side| -> IpAddr { s.host.device().gids()[0].ip };
    for (own, peer) in [(a, b), (b, a)] {
        let port = own.host.device().config().source_ports[1];
        let rtr = QpAttr {
            path: Some(Path::new(ip(own), ip(peer), port)),
            path_mtu: Some(Mtu::M4096),
            dest_qp: Some(peer.qp.qpn()),
            rq_psn: Some(Psn::new(7)),
            max_dest_rd_atomic: Some(32),
            min_rnr_timer: Some(12),
            ..QpAttr::to(QpState::Rtr)
        };
        own.qp.modify(&rtr).expect("RTR");
        let rts = QpAttr {
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            sq_psn: Some(Psn::new(7)),
            max_rd_atomic: Some(32),
            ..QpAttr::to(QpState::Rts)
        };
        own.qp.modify(&rts).expect("RTS");
    }
}

fn poll(cq: &Cq, done: &mut Vec<Completion>) {
    done.clear();
    cq.poll(done, 64).expect("poll");
    for d in done.iter() {
        assert_eq!(d.status, WcStatus::Success, "{d:?}");
    }
}

/// Messages of `size` with `depth` posted; the other side only polls.
fn stream(read: bool, size: usize, depth: usize, run: Duration) -> (f64, f64, Vec<f64>) {
    let (a, b) = (side("127.0.0.93"), side("127.0.0.94"));
    connect(&a, &b);
    let stop = AtomicBool::new(false);
    let mut count = 0u64;
    let mut times = Vec::new();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                poll(&b.cq, &mut done);
            }
        });
        let post = |n: u64| {
            let offset = (n as usize * size) % 65_536;
            let remote = b.mr.remote(offset);
            let op = if read { SendOp::Read { remote } } else { SendOp::Write { remote } };
            a.qp.post_send(SendWr::new(n, op).with_sges([a.mr.sge(offset..offset + size)])).expect("post");
        };
        let mut started = std::collections::VecDeque::new();
        let mut next = 0;
        let mut done = Vec::new();
        while begin.elapsed() < run {
            while started.len() < depth {
                post(next);
                started.push_back(Instant::now());
                next += 1;
            }
            poll(&a.cq, &mut done);
            let now = Instant::now();
            for _ in &done {
                count += 1;
                times.push((now - started.pop_front().expect("started")).as_secs_f64() * 1e6);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let elapsed = begin.elapsed().as_secs_f64();
    println!("  client {:?}", a.host.socket_counters());
    println!("  server {:?}", b.host.socket_counters());
    println!("  client {:?}", a.host.device().counters());
    times.sort_by(f64::total_cmp);
    (count as f64 * size as f64 * 8.0 / elapsed / 1e9, count as f64 / elapsed, times)
}

fn ping(size: usize, run: Duration) -> Vec<f64> {
    let (a, b) = (side("127.0.0.93"), side("127.0.0.94"));
    connect(&a, &b);
    let stop = AtomicBool::new(false);
    let mut times = Vec::new();
    let recv = |s: &Side| s.qp.post_recv(RecvWr::new(0, [s.mr.sge(..4096)])).expect("recv");
    let send = |s: &Side| {
        s.qp.post_send(SendWr::new(1, SendOp::Send).with_sges([s.mr.sge(8192..8192 + size)])).expect("send");
    };
    for _ in 0..64 {
        recv(&a);
        recv(&b);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                poll(&b.cq, &mut done);
                for d in &done {
                    if d.opcode == WcOpcode::Recv {
                        send(&b);
                        recv(&b);
                    }
                }
            }
        });
        let begin = Instant::now();
        let mut done = Vec::new();
        while begin.elapsed() < run {
            let start = Instant::now();
            send(&a);
            recv(&a);
            let mut back = false;
            while !back {
                poll(&a.cq, &mut done);
                back = done.iter().any(|d| d.opcode == WcOpcode::Recv);
            }
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("  client {:?}", a.host.socket_counters());
    println!("  client {:?}", a.host.device().counters());
    times.sort_by(f64::total_cmp);
    times
}

/// Round trips on one thread: what two spinning threads take, without their waiting. Beside it the same with bare sockets.
fn solo_pong(count: u32) {
    let (a, b) = (side("127.0.0.93"), side("127.0.0.94"));
    connect(&a, &b);
    for s in [&a, &b] {
        for _ in 0..64 {
            s.qp.post_recv(RecvWr::new(0, [s.mr.sge(..4096)])).expect("recv");
        }
    }
    let mut done = Vec::new();
    let begin = thread_time();
    for _ in 0..count {
        for (from, to) in [(&a, &b), (&b, &a)] {
            let wr = SendWr::new(1, SendOp::Send).with_sges([from.mr.sge(8192..8192 + 64)]);
            from.qp.post_send(wr).expect("send");
            from.qp.post_recv(RecvWr::new(0, [from.mr.sge(..4096)])).expect("recv");
            // A queue with something in it is not driven: poll until it is empty, so that the message leaves.
            while {
                poll(&from.cq, &mut done);
                !done.is_empty()
            } {}
            for turn in 1.. {
                poll(&to.cq, &mut done);
                if turn % 1024 == 0 {
                    // Off the processor for so long that a timer fired: the sender has something to say first.
                    poll(&from.cq, &mut Vec::new());
                }
                if done.iter().any(|d| d.opcode == WcOpcode::Recv) {
                    break;
                }
            }
        }
    }
    let ours = (thread_time() - begin) / f64::from(count);
    println!("  {:?}", a.host.device().counters());
    if std::env::var("NORAW").is_ok() {
        println!("{ours:.2}");
        return;
    }
    let bind = |address: &str| {
        let socket = std::net::UdpSocket::bind((address, 4791)).expect("a socket");
        socket.set_nonblocking(true).expect("non-blocking");
        socket
    };
    let (a, b) = (bind("127.0.0.95"), bind("127.0.0.96"));
    let mut bytes = [0; 2048];
    let begin = thread_time();
    for _ in 0..count {
        for (from, to) in [(&a, &b), (&b, &a)] {
            from.send_to(&bytes[..80], to.local_addr().expect("bound")).expect("sent");
            let _ = from.recv_from(&mut bytes);
            to.recv_from(&mut bytes).expect("received");
        }
    }
    let raw = (thread_time() - begin) / f64::from(count);
    println!(
        "a round trip takes {ours:.2} us of processor; with bare sockets {raw:.2}; ratio {:.2}",
        ours / raw
    );
}

/// Processor time of this thread, in microseconds.
fn thread_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// What a poll in vain costs, beside the system call that it has to make.
fn empty() {
    let a = side("127.0.0.93");
    let cpu = || thread_time() * 1e3;
    let mut done = Vec::new();
    let (begin, rounds) = (cpu(), 1_000_000);
    for _ in 0..rounds {
        poll(&a.cq, &mut done);
    }
    let ours = (cpu() - begin) / f64::from(rounds);
    let socket = std::net::UdpSocket::bind("127.0.0.95:0").expect("a socket");
    socket.set_nonblocking(true).expect("non-blocking");
    let begin = cpu();
    let mut bytes = [0; 2048];
    for _ in 0..rounds {
        let _ = socket.recv_from(&mut bytes);
    }
    println!("an empty poll: {ours:.0} ns; recvfrom alone: {:.0} ns", (cpu() - begin) / f64::from(rounds));
}

/// Both ends polled by one thread in turn: processor time a message, which other programs hardly disturb.
fn solo(what: &str, count: u64) {
    let (a, b) = (side("127.0.0.93"), side("127.0.0.94"));
    connect(&a, &b);
    let size = if what == "solo-ping" { 64 } else { 65_536 };
    let size = if what == "solo-read" { 4096 } else { size };
    let (mut posted, mut finished, mut done) = (0, 0, Vec::new());
    let cpu = thread_time;
    let begin = cpu();
    let depth = if what == "solo-ping" { 1 } else { 16 };
    for _ in 0..64 {
        b.qp.post_recv(RecvWr::new(0, [b.mr.sge(..4096)])).expect("recv");
    }
    while finished < count {
        while posted < finished + depth && posted < count {
            let remote = b.mr.remote((posted % 8) as usize * 65_536);
            let op = match what {
                "solo-ping" => SendOp::Send,
                "solo-read" => SendOp::Read { remote },
                _ => SendOp::Write { remote },
            };
            a.qp.post_send(SendWr::new(posted, op).with_sges([a.mr.sge(..size)])).expect("post");
            posted += 1;
        }
        poll(&a.cq, &mut done);
        finished += done.len() as u64;
        poll(&b.cq, &mut done);
        for _ in &done {
            b.qp.post_recv(RecvWr::new(0, [b.mr.sge(..4096)])).expect("recv");
        }
    }
    println!("{what}: {:.2} us of processor a message", (cpu() - begin) / count as f64);
    println!("  client {:?}", a.host.socket_counters());
    println!("  server {:?}", b.host.socket_counters());
}

fn at(times: &[f64], q: f64) -> f64 {
    times.get((times.len().saturating_sub(1) as f64 * q) as usize).copied().unwrap_or(0.0)
}

fn main() {
    let what = std::env::args().nth(1).unwrap_or_else(|| "all".to_owned());
    let run = Duration::from_secs_f64(std::env::args().nth(2).map_or(1.0, |s| s.parse().expect("seconds")));
    if what == "empty" {
        return empty();
    }
    if what == "solo-pong" {
        return solo_pong(std::env::args().nth(2).map_or(50_000, |n| n.parse().expect("a count")));
    }
    if what.starts_with("solo") {
        return solo(&what, std::env::args().nth(2).map_or(20_000, |n| n.parse().expect("a count")));
    }
    let base = BaselineOptions { duration: run, ..BaselineOptions::default() };
    let baseline = |options: BaselineOptions, f: fn(&mut Client) -> std::io::Result<BaselineResult>| {
        with_thread([127, 0, 0, 91].into(), [127, 0, 0, 92].into(), &options, f).expect("baseline")
    };
    if ["all", "write"].contains(&what.as_str()) {
        let raw = baseline(base, Client::bandwidth);
        let (gbit, _, times) = stream(false, 65_536, 16, run);
        println!(
            "WRITE 64 KiB: {gbit:.1} Gbit/s, p50 {:.1}; raw {:.1}, p50 {:.1}; ratio {:.2}",
            at(&times, 0.5),
            raw.gbit_per_s,
            raw.p50_us,
            gbit / raw.gbit_per_s
        );
    }
    if ["all", "ping"].contains(&what.as_str()) {
        let raw = baseline(BaselineOptions { size: 64, ..base }, Client::ping_pong);
        let times = ping(64, run);
        println!(
            "ping-pong 64 B: p50 {:.2} p99 {:.2} us; raw {:.2} {:.2}; ratio {:.2}",
            at(&times, 0.5),
            at(&times, 0.99),
            raw.p50_us,
            raw.p99_us,
            at(&times, 0.5) / raw.p50_us
        );
    }
    if ["all", "read"].contains(&what.as_str()) {
        for depth in [1, 32] {
            let options = BaselineOptions { size: 4096, depth: depth as u32, ..base };
            let raw = baseline(options, Client::read_loop);
            let (_, per_s, times) = stream(true, 4096, depth, run);
            println!(
                "READ 4 KiB depth {depth}: {per_s:.0}/s p50 {:.1}; raw {:.0}/s p50 {:.1}; ratio {:.2}",
                at(&times, 0.5),
                raw.msg_per_s,
                raw.p50_us,
                per_s / raw.msg_per_s
            );
        }
    }
}
