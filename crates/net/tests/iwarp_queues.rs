//! Completion queues of iWARP devices while traffic flows through real TCP sockets: resized, overflowed, polled on one core.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use everywire_net::{Host, OpenOptions, block_on};
use everywire_verbs::{
    Access, Completion, ConnParam, ConnectOptions, Connection, Cq, ListenOptions, MemoryRegion, Qp, QpCaps,
    QpInit, QpState, QpType, RecvWr, SendOp, SendWr, WcStatus,
};

/// Receives posted, sends outstanding.
const DEPTH: u32 = 32;
/// Bytes of a receive.
const SLOT: usize = 64;
/// Longer than any of this takes, also on a slow machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

struct Side {
    host: Host,
    send_cq: Cq,
    recv_cq: Cq,
    qp: Qp,
    mr: MemoryRegion,
}

/// A device of its own; `thread` drives it, else whoever polls.
fn side(ip: &str, thread: bool) -> Side {
    let host = Host::open(&format!("iwarp:{ip}"), &OpenOptions::default()).unwrap();
    if thread {
        host.spawn_thread().unwrap();
    }
    let device = host.device();
    let pd = device.alloc_pd().unwrap();
    let (send_cq, recv_cq) = (device.create_cq(DEPTH).unwrap(), device.create_cq(DEPTH).unwrap());
    let caps = QpCaps { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..QpCaps::default() };
    let qp = pd.create_qp(&QpInit { recv_cq: &recv_cq, caps, ..QpInit::new(QpType::Rc, &send_cq) });
    let mr = pd.register(DEPTH as usize * SLOT, Access::LOCAL_WRITE).unwrap();
    Side { host, send_cq, recv_cq, qp: qp.unwrap(), mr }
}

impl Side {
    fn recv(&self, id: u64) {
        let at = (id % u64::from(DEPTH)) as usize * SLOT;
        self.qp.post_recv(RecvWr::new(id, [self.mr.sge(at..at + SLOT)])).unwrap();
    }

    fn send(&self, id: u64) {
        self.qp.post_send(SendWr::new(id, SendOp::Send).with_inline(id.to_be_bytes())).unwrap();
    }

    /// What message `id` said.
    fn heard(&self, id: u64) -> u64 {
        let bytes = self.mr.read_vec((id % u64::from(DEPTH)) as usize * SLOT, 8).unwrap();
        u64::from_be_bytes(bytes.try_into().unwrap())
    }
}

/// Connects them, with the receiver's buffers posted before.
fn connect(client: &Side, server: &Side, ip: &str) -> [Connection; 2] {
    let addr = SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 0);
    let listener = server.host.device().listen(addr, ListenOptions::default()).unwrap();
    for side in [client, server] {
        side.qp.to_init(Access::LOCAL_WRITE).unwrap();
        (0..DEPTH.into()).for_each(|id| side.recv(id));
    }
    std::thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let request = block_on(listener.next_request()).unwrap();
            block_on(request.accept(&server.qp, ConnParam::default())).unwrap()
        });
        let options = ConnectOptions::new(listener.local_addr(), &client.qp);
        let active = block_on(client.host.device().connect(options)).unwrap();
        [active, passive.join().unwrap()]
    })
}

/// The ids that a queue gives within a poll, all of them successes.
fn ids(cq: &Cq, out: &mut Vec<Completion>) -> VecDeque<u64> {
    out.clear();
    cq.poll(out, 7).unwrap();
    assert!(out.iter().all(|c| c.status == WcStatus::Success), "{out:?}");
    out.iter().map(|c| c.wr_id).collect()
}

/// Cases IW-07: both queues of a connection are resized all the time while completions flow; none is lost, doubled or out of
/// order.
#[test]
fn resized_while_completions_flow() {
    const COUNT: u64 = 3000;
    let ips = ["127.0.0.71", "127.0.0.72"];
    let [client, server] = ips.map(|ip| side(ip, true));
    let connections = connect(&client, &server, ips[1]);
    let done = AtomicBool::new(false);
    let mut resized = 0u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut out, mut next, mut sent) = (Vec::new(), 0, 0);
            let begun = Instant::now();
            while next < COUNT && begun.elapsed() < PATIENCE {
                // No further ahead than the other end has receives for, which it tells by answering.
                while sent < COUNT && sent < next + u64::from(DEPTH) / 2 {
                    client.send(sent);
                    sent += 1;
                }
                ids(&client.send_cq, &mut out);
                for id in ids(&client.recv_cq, &mut out) {
                    assert_eq!((id, client.heard(id)), (next, next));
                    client.recv(id + u64::from(DEPTH));
                    next += 1;
                }
            }
            assert_eq!(next, COUNT, "answers");
            done.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            let (mut out, mut next) = (Vec::new(), 0);
            let begun = Instant::now();
            while next < COUNT && begun.elapsed() < PATIENCE {
                ids(&server.send_cq, &mut out);
                for id in ids(&server.recv_cq, &mut out) {
                    assert_eq!((id, server.heard(id)), (next, next));
                    server.recv(id + u64::from(DEPTH));
                    server.send(id);
                    next += 1;
                }
            }
            assert_eq!(next, COUNT, "requests");
        });
        let begun = Instant::now();
        for depth in [DEPTH + 1, 4096, DEPTH, 100, 2 * DEPTH].into_iter().cycle() {
            for cq in [&client.send_cq, &client.recv_cq, &server.send_cq, &server.recv_cq] {
                cq.resize(depth).unwrap();
                assert_eq!(cq.depth(), depth);
            }
            resized += 1;
            if done.load(Ordering::Relaxed) || begun.elapsed() > PATIENCE {
                break;
            }
        }
    });
    assert!(resized > 3, "resized {resized} times only");
    drop(connections);
}

/// A completion queue that overflows takes its queue pair to ERR, and the peer hears of it at once, by a TERMINATE.
#[test]
fn an_overflow_ends_the_connection() {
    let ips = ["127.0.0.73", "127.0.0.74"];
    let [client, server] = ips.map(|ip| side(ip, true));
    let connections = connect(&client, &server, ips[1]);
    server.recv_cq.resize(2).unwrap();
    (0..3).for_each(|id| client.send(id));
    block_on(connections[0].closed());
    block_on(connections[1].closed());
    assert_eq!([&client, &server].map(|side| side.qp.state()), [QpState::Err; 2]);
}

/// Cases IW-09: both ends spin in poll on one core, and neither keeps the other from getting on: connecting over the queue
/// pairs' own connection, then a ping-pong.
#[test]
fn both_spin_on_one_core() {
    const ROUNDS: u64 = 200;
    let mut core = rustix::thread::CpuSet::new();
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    core.set((0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap());
    // Of this thread, and so of every thread that begins from here on.
    rustix::thread::sched_setaffinity(None, &core).unwrap();
    let ips = ["127.0.0.75", "127.0.0.76"];
    let [client, server] = ips.map(|ip| side(ip, false));
    let connections = connect(&client, &server, ips[1]);
    std::thread::scope(|scope| {
        for (side, first) in [(&client, true), (&server, false)] {
            scope.spawn(move || {
                let (mut out, begun) = (Vec::new(), Instant::now());
                let (mut next, mut sent) = (0, 0);
                if first {
                    side.send(0);
                }
                // The last answer is sent by polling, too: nobody else drives the device.
                while next < ROUNDS || sent < ROUNDS {
                    assert!(begun.elapsed() < PATIENCE, "stuck at {next}");
                    sent += ids(&side.send_cq, &mut out).len() as u64;
                    for id in ids(&side.recv_cq, &mut out) {
                        assert_eq!((id, side.heard(id)), (next, next));
                        side.recv(id + u64::from(DEPTH));
                        next += 1;
                        match first {
                            true if next < ROUNDS => side.send(next),
                            true => {}
                            false => side.send(id),
                        }
                    }
                }
            });
        }
    });
    drop(connections);
}
