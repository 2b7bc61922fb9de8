//! Programs on several threads, a driver on its own that sleeps whenever it may, and inline drivers in between: no kick and
//! no wake-up is lost, and nothing deadlocks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::test_support::*;
use crate::*;

/// Work requests of each program.
const ROUNDS: u64 = 1500;

/// Longer than anything takes that is not stuck.
const STUCK: Duration = Duration::from_secs(30);

/// The driver's bed: it sleeps until kicked or due.
#[derive(Default)]
struct Bed {
    kicked: Mutex<bool>,
    rung: Condvar,
}

impl Bed {
    fn ring(&self) {
        *self.kicked.lock().unwrap() = true;
        self.rung.notify_one();
    }

    fn sleep(&self, until: Option<Instant>) {
        let mut kicked = self.kicked.lock().unwrap();
        while !std::mem::take(&mut *kicked) {
            let left = until.map_or(STUCK, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return;
            }
            kicked = self.rung.wait_timeout(kicked, left).unwrap().0;
        }
    }
}

/// Two devices and the packets between them, driven by whoever holds the lock.
struct Cable {
    bed: Bed,
    line: Mutex<Line>,
    end: AtomicBool,
}

struct Line {
    devices: [Device; 2],
    transmit: Transmit,
}

impl Cable {
    /// Moves everything there is to move, and says when to come back.
    fn turn(&self, line: &mut Line) -> Option<Instant> {
        let mut flying = Vec::new();
        let mut deadline = None;
        loop {
            let mut quiet = true;
            for device in &line.devices {
                let mut drive = device.drive();
                let now = Instant::now();
                drive.handle_timeout(now);
                while drive.poll_transmit(now, &mut line.transmit) {
                    quiet = false;
                    let src = std::net::SocketAddr::new(line.transmit.src, line.transmit.src_port);
                    let dst = line.transmit.dst.ip();
                    flying.extend(line.transmit.segments().map(|bytes| (src, dst, bytes.to_vec())));
                }
                deadline = [deadline, drive.poll_timeout()].into_iter().flatten().min();
            }
            if quiet {
                return deadline;
            }
            deadline = None;
            for (src, dst, bytes) in flying.drain(..) {
                let device = &line.devices[usize::from(line.devices[1].gids()[0].ip == dst)];
                let mut drive = device.drive();
                let datagram = Datagram { src, dst, tos: 0, ttl: 64, ip_id: None, bytes: &bytes };
                drive.handle_datagram(Instant::now(), datagram);
            }
        }
    }

    /// The background driver.
    fn run(&self) {
        while !self.end.load(Ordering::SeqCst) {
            let deadline = self.turn(&mut self.line.lock().unwrap());
            self.bed.sleep(deadline);
        }
    }
}

struct Wires(Arc<Cable>);

impl Progress for Wires {
    fn kick(&self) {
        self.0.bed.ring();
    }

    fn drive_inline(&self) -> bool {
        let Ok(mut line) = self.0.line.try_lock() else { return false };
        self.0.turn(&mut line);
        true
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread on a future; a wake-up that does not come is a failure.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    let start = Instant::now();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        assert!(start.elapsed() < STUCK, "a wake-up or a kick was lost");
        std::thread::park_timeout(STUCK);
    }
}

/// One program: writes, and waits in its own way for each write.
fn program(kind: usize, a: &Side, b: &Side) {
    let mut out = Vec::new();
    for round in 0..ROUNDS {
        a.fill(0, &round.to_ne_bytes());
        let write = SendOp::Write { remote: b.mr.remote(64) };
        a.qp.post_send(SendWr::new(round, write).with_sges([a.mr.sge(..8)])).unwrap();
        let start = Instant::now();
        match kind {
            0 => _ = block_on(a.cq.wait(&mut out, 1)).unwrap(),
            1 => loop {
                // Arm, poll, sleep, by the book.
                if a.cq.poll(&mut out, 1).unwrap() > 0 {
                    break;
                }
                a.cq.arm(Arm::Any);
                if a.cq.poll(&mut out, 1).unwrap() > 0 {
                    break;
                }
                block_on(a.cq.next_event());
            },
            _ => {
                while a.cq.poll(&mut out, 1).unwrap() == 0 {
                    assert!(start.elapsed() < STUCK, "polling brings nothing");
                    std::thread::yield_now();
                }
            }
        }
        assert_eq!((out.len(), out[0].wr_id, out[0].status), (1, round, WcStatus::Success));
        assert_eq!(b.bytes(64, 8), round.to_ne_bytes());
        out.clear();
    }
}

/// Two devices, their driver on a thread of its own, and `programs` on others; nothing is left of them afterwards.
fn under_way(programs: impl FnOnce(&[Device; 2])) {
    let net = Net::pair();
    let devices = [net.devices[0].clone(), net.devices[1].clone()];
    let line = Mutex::new(Line { devices: devices.clone(), transmit: Transmit::default() });
    let cable = Arc::new(Cable { bed: Bed::default(), line, end: AtomicBool::new(false) });
    for device in &devices {
        assert!(device.install_progress(Arc::new(Wires(cable.clone()))));
    }
    let driver = {
        let cable = cable.clone();
        std::thread::spawn(move || cable.run())
    };
    programs(&devices);
    cable.end.store(true, Ordering::SeqCst);
    cable.bed.ring();
    driver.join().unwrap();
    for device in &devices {
        assert_eq!(device.usage(), Usage::default());
    }
}

#[test]
fn threads_share_a_device_and_its_driver() {
    under_way(|devices| {
        std::thread::scope(|scope| {
            for kind in 0..3 {
                scope.spawn(move || {
                    let (a, b) = (Side::new(&devices[0], QpType::Rc), Side::new(&devices[1], QpType::Rc));
                    connect(&a.qp, &b.qp);
                    program(kind, &a, &b);
                });
            }
        });
    });
}

/// How many lives of a pair of queue pairs, instead of as many as go into two seconds: 1000000 for a soak.
const LIVES: &str = "EVERYWIRE_CHURN_LIVES";

/// One life: work is posted both ways, some of it completes, and everything goes, each time in another order.
fn life(devices: &[Device; 2], n: u64) {
    let small = |init: &mut QpInit<'_>| init.caps = QpCaps { max_send_wr: 16, max_recv_wr: 16, ..init.caps };
    let [a, b] = [0, 1].map(|end: usize| {
        let pd = devices[end].alloc_pd().unwrap();
        let cq = devices[end].create_cq(64).unwrap();
        let mut init = QpInit::new(QpType::Rc, &cq);
        init.sq_sig_all = true;
        small(&mut init);
        let qp = pd.create_qp(&init).unwrap();
        let mr = pd.register(16 << 10, all_access()).unwrap();
        Side { pd, cq, qp, mr }
    });
    connect(&a.qp, &b.qp);
    b.qp.post_recv(RecvWr::new(0, [b.mr.sge(..8192)])).unwrap();
    for wr_id in 0..n % 7 {
        let remote = b.mr.remote(64);
        let (op, len) = match wr_id {
            0 => (SendOp::Send, 5000),
            1 | 2 => (SendOp::Write { remote }, 8192),
            3 | 4 => (SendOp::Read { remote }, 8192),
            _ => (SendOp::FetchAdd { remote, add: 1 }, 8),
        };
        a.qp.post_send(SendWr::new(wr_id, op).with_sges([a.mr.sge(..len)])).unwrap();
    }
    let mut out = Vec::new();
    if n.is_multiple_of(3) && !n.is_multiple_of(7) {
        block_on(a.cq.wait(&mut out, 1)).unwrap();
        assert_eq!((out[0].wr_id, out[0].status), (0, WcStatus::Success));
    }
    let Side { pd, cq, qp, mr } = b;
    match n % 5 {
        0 => drop((mr, a, qp, cq, pd)),
        1 => drop((qp, mr, cq, pd, a)),
        2 => drop((cq, pd, mr, a.mr, qp, a.qp)),
        3 => drop((a.qp, a.cq, a.mr, qp)),
        _ => {
            a.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
            a.cq.poll(&mut out, usize::MAX).unwrap();
            assert!(out.len() as u64 <= n % 7, "each completes once: {out:?}");
        }
    }
}

/// RX-13: one thread drives while others make, use and drop queue pairs, completion queues and regions.
#[test]
fn objects_come_and_go_while_their_packets_fly() {
    let lives: Option<u64> = std::env::var(LIVES).ok().map(|lives| lives.parse().expect(LIVES));
    let start = Instant::now();
    let next = std::sync::atomic::AtomicU64::new(0);
    under_way(|devices| {
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        if lives.map_or(start.elapsed() > Duration::from_secs(2), |lives| n >= lives) {
                            return;
                        }
                        life(devices, n);
                    }
                });
            }
        });
    });
    let lived = next.into_inner() - 3;
    println!("{lived} lives in {:?}", start.elapsed());
    assert!(lived >= lives.unwrap_or(100));
}
