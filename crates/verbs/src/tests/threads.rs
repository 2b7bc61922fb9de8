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

#[test]
fn threads_share_a_device_and_its_driver() {
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
    std::thread::scope(|scope| {
        for kind in 0..3 {
            let devices = &devices;
            scope.spawn(move || {
                let (a, b) = (Side::new(&devices[0], QpType::Rc), Side::new(&devices[1], QpType::Rc));
                connect(&a.qp, &b.qp);
                program(kind, &a, &b);
            });
        }
    });
    cable.end.store(true, Ordering::SeqCst);
    cable.bed.ring();
    driver.join().unwrap();
    for device in &devices {
        assert_eq!(device.usage(), Usage::default());
    }
}
