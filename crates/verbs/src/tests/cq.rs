//! Completion queues: cases RX-26 (overflow), RX-27 (arm, poll, sleep), RX-28 (events cannot be over-acknowledged).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use everywire_transport::ib::QpEnv;

use crate::test_support::*;
use crate::*;

fn entry(wr_id: u64, status: WcStatus) -> Completion {
    Completion {
        wr_id,
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        imm: None,
        invalidated: None,
        qpn: Qpn::new(2),
        src_qp: Qpn::default(),
        grh: false,
        slid: everywire_wire::Lid(0),
        sl: 0,
        dlid_path_bits: 0,
        solicited: false,
        vendor_err: 0,
    }
}

fn complete(cq: &Cq, wr_id: u64) {
    cq.device().lock().core.complete(cq.id(), entry(wr_id, WcStatus::Success), false);
}

fn complete_solicited(cq: &Cq) {
    cq.device().lock().core.complete(cq.id(), entry(0, WcStatus::Success), true);
}

fn complete_in_error(cq: &Cq) {
    cq.device().lock().core.complete(cq.id(), entry(0, WcStatus::WrFlushErr), false);
}

fn ids(cq: &Cq, max: usize) -> Vec<u64> {
    let mut out = Vec::new();
    cq.poll(&mut out, max).unwrap();
    out.iter().map(|entry| entry.wr_id).collect()
}

fn device() -> Device {
    Device::new(DeviceConfig::roce_v2([10, 0, 0, 1].into()))
}

#[test]
fn depth_is_exact_and_order_kept() {
    let cq = device().create_cq(3).unwrap();
    assert_eq!(cq.depth(), 3);
    for round in 0..4 {
        (0..3).for_each(|n| complete(&cq, round * 3 + n));
        assert_eq!(ids(&cq, 2), [round * 3, round * 3 + 1]);
        assert_eq!(ids(&cq, 2), [round * 3 + 2]);
        assert_eq!(ids(&cq, 2), [0u64; 0]);
    }
}

#[test]
fn overflow_is_reported_and_keeps_what_was_there() {
    // RX-26.
    let device = device();
    let cq = device.create_cq(2).unwrap();
    let events = device.async_events();
    (0..2).for_each(|n| complete(&cq, n));
    assert_eq!(events.try_next(), None, "full is not an error yet");
    complete(&cq, 2);
    complete(&cq, 3);
    assert_eq!(events.try_next(), Some(AsyncEvent::CqError(cq.id())));
    assert_eq!(events.try_next(), None, "once");
    assert_eq!(ids(&cq, 10), [0, 1]);
    let mut out = Vec::new();
    assert_eq!(cq.poll(&mut out, 10), Err(CqError { id: cq.id(), depth: 2 }));
    complete(&cq, 4);
    assert!(cq.poll(&mut out, 10).is_err() && out.is_empty(), "it stays in error");
    let counters = device.counters();
    assert_eq!(counters.device(DeviceCounter::CqOverflow), 1);
    assert_eq!(counters.device(DeviceCounter::CompletionsLost), 3);
}

#[test]
fn overflow_wakes_those_who_sleep() {
    let cq = device().create_cq(1).unwrap();
    complete(&cq, 0);
    cq.arm(Arm::Any);
    let mut event = Box::pin(cq.next_event());
    let waker = FlagWaker::new();
    assert!(event.as_mut().poll_with(&waker).is_pending());
    complete(&cq, 1);
    assert!(waker.is_set() && event.as_mut().poll_with(&waker).is_ready());
    assert_eq!(ids(&cq, 1), [0]);
    let mut out = Vec::new();
    let mut wait = Box::pin(cq.wait(&mut out, 1));
    assert!(matches!(wait.as_mut().poll_with(&waker), Poll::Ready(Err(_))));
}

trait PollWith: Future {
    fn poll_with(self: std::pin::Pin<&mut Self>, waker: &Arc<FlagWaker>) -> Poll<Self::Output> {
        waker.take();
        self.poll(&mut Context::from_waker(&waker.waker()))
    }
}

impl<F: Future> PollWith for F {}

#[test]
fn arming_counts_from_the_call() {
    // RX-27: what was there before the call raises nothing, what comes after it does.
    let cq = device().create_cq(16).unwrap();
    complete(&cq, 0);
    assert!(!cq.try_event(), "not armed");
    cq.arm(Arm::Any);
    assert!(!cq.try_event(), "the completion is older than the call");
    complete(&cq, 1);
    assert!(cq.try_event());
    complete(&cq, 2);
    assert!(!cq.try_event(), "one event for one call");
    assert_eq!(ids(&cq, 10), [0, 1, 2], "events have nothing to do with entries");
}

#[test]
fn two_calls_without_an_event_are_one() {
    let cq = device().create_cq(16).unwrap();
    cq.arm(Arm::Any);
    cq.arm(Arm::Any);
    complete(&cq, 0);
    complete(&cq, 1);
    assert!(cq.try_event());
    assert!(!cq.try_event());
    // But an event that nobody has fetched yet is not swallowed by the next call.
    cq.arm(Arm::Any);
    complete(&cq, 2);
    cq.arm(Arm::Any);
    complete(&cq, 3);
    assert!(cq.try_event() && cq.try_event() && !cq.try_event());
}

#[test]
fn solicited_arming_fires_for_solicited_and_errors_only() {
    let cq = device().create_cq(16).unwrap();
    cq.arm(Arm::Solicited);
    complete(&cq, 0);
    assert!(!cq.try_event());
    complete_solicited(&cq);
    assert!(cq.try_event());
    cq.arm(Arm::Solicited);
    complete_in_error(&cq);
    assert!(cq.try_event());
    // IBTA §11.4.2.2: asking for any wins over asking for solicited, in either order.
    for arms in [[Arm::Solicited, Arm::Any], [Arm::Any, Arm::Solicited]] {
        arms.into_iter().for_each(|arm| cq.arm(arm));
        complete(&cq, 1);
        assert!(cq.try_event());
    }
}

#[test]
fn events_are_values_and_cannot_be_acknowledged_too_often() {
    // RX-28: asking without an event delivers nothing, however often; the queue can go at any time.
    let device = device();
    let cq = device.create_cq(4).unwrap();
    assert!((0..100).all(|_| !cq.try_event()));
    cq.arm(Arm::Any);
    complete(&cq, 0);
    assert!(cq.try_event());
    assert!((0..100).all(|_| !cq.try_event()));
    cq.arm(Arm::Any);
    complete(&cq, 1);
    drop(cq); // with an event nobody fetched
    assert_eq!(device.usage(), Usage::default());
}

#[test]
fn waiting_needs_no_arming() {
    let mut net = Net::pair();
    let cq = net.devices[0].create_cq(16).unwrap();
    let mut out = Vec::new();
    let waker = FlagWaker::new();
    {
        let mut wait = Box::pin(cq.wait(&mut out, 1));
        assert!(wait.as_mut().poll_with(&waker).is_pending());
        complete(&cq, 7);
        complete(&cq, 8);
        assert!(waker.is_set());
        assert!(matches!(wait.as_mut().poll_with(&waker), Poll::Ready(Ok(1))));
    }
    assert_eq!(net.block_on(cq.wait(&mut out, 10)), Ok(1));
    assert_eq!(out.iter().map(|entry| entry.wr_id).collect::<Vec<_>>(), [7, 8]);
    assert!(!cq.try_event(), "and raises no event");
}

#[test]
fn dropped_futures_take_nothing_and_leave_nothing() {
    let cq = device().create_cq(16).unwrap();
    let waker = FlagWaker::new();
    let mut out = Vec::new();
    {
        let mut wait = Box::pin(cq.wait(&mut out, 1));
        let mut event = Box::pin(cq.next_event());
        assert!(wait.as_mut().poll_with(&waker).is_pending());
        assert!(event.as_mut().poll_with(&waker).is_pending());
        assert!(Arc::strong_count(&waker) > 1);
        cq.arm(Arm::Any);
        complete(&cq, 1);
        assert!(waker.is_set());
    }
    assert_eq!(Arc::strong_count(&waker), 1, "no waker stays behind");
    assert!(out.is_empty());
    assert!(cq.try_event());
    assert_eq!(ids(&cq, 10), [1]);
}

#[test]
fn several_tasks_share_a_queue() {
    let cq = device().create_cq(16).unwrap();
    let (first, second) = (FlagWaker::new(), FlagWaker::new());
    let (mut out1, mut out2) = (Vec::new(), Vec::new());
    let mut wait1 = Box::pin(cq.wait(&mut out1, 1));
    let mut wait2 = Box::pin(cq.wait(&mut out2, 1));
    assert!(wait1.as_mut().poll_with(&first).is_pending());
    assert!(wait2.as_mut().poll_with(&second).is_pending());
    complete(&cq, 1);
    assert!(first.is_set() && second.is_set());
    assert!(wait1.as_mut().poll_with(&first).is_ready());
    assert!(wait2.as_mut().poll_with(&second).is_pending(), "one entry, one of them");
    complete(&cq, 2);
    assert!(second.is_set() && wait2.as_mut().poll_with(&second).is_ready());
}

#[test]
fn resize_keeps_entries_and_is_exact() {
    let device = device();
    let cq = device.create_cq(4).unwrap();
    (0..3).for_each(|n| complete(&cq, n));
    assert_eq!(cq.resize(2).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(cq.depth(), 4);
    cq.resize(3).unwrap();
    complete(&cq, 3);
    assert_eq!(device.counters().device(DeviceCounter::CqOverflow), 1, "three, not four");
    let cq = device.create_cq(1).unwrap();
    cq.resize(100).unwrap();
    (0..100).for_each(|n| complete(&cq, n));
    assert_eq!(ids(&cq, 1000).len(), 100);
    assert!(cq.resize(0).is_err());
    let max = device.limits().max_cqe;
    let error = cq.resize(max + 1).unwrap_err();
    assert!(error.what().contains("max_cqe") && error.what().contains(&max.to_string()), "{error}");
}

#[test]
fn arm_poll_sleep_never_misses_across_threads() {
    // RX-27, as hard as it can be driven: a producer and a consumer that goes to sleep by the protocol alone.
    const COUNT: u64 = 20_000;
    let cq = device().create_cq(COUNT as u32).unwrap();
    let producer = {
        let cq = cq.clone();
        std::thread::spawn(move || {
            for n in 0..COUNT {
                complete(&cq, n);
                if n % 64 == 0 {
                    std::thread::yield_now();
                }
            }
        })
    };
    let mut got = Vec::new();
    while got.len() < COUNT as usize {
        got.extend(ids(&cq, 1000));
        cq.arm(Arm::Any);
        let late = ids(&cq, 1000);
        if !late.is_empty() {
            got.extend(late);
            continue;
        }
        if got.len() < COUNT as usize {
            park_on(cq.next_event());
        }
    }
    producer.join().unwrap();
    assert!(got.into_iter().eq(0..COUNT));
}

#[test]
fn waiting_never_misses_across_threads() {
    const COUNT: u64 = 20_000;
    let cq = device().create_cq(COUNT as u32).unwrap();
    let producer = {
        let cq = cq.clone();
        std::thread::spawn(move || (0..COUNT).for_each(|n| complete(&cq, n)))
    };
    let mut got = Vec::new();
    while got.len() < COUNT as usize {
        park_on(cq.wait(&mut got, 7)).unwrap();
    }
    producer.join().unwrap();
    assert!(got.iter().map(|entry| entry.wr_id).eq(0..COUNT));
}

/// Blocks this thread on a future; ten seconds without a wake-up are a missed event.
fn park_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        let start = std::time::Instant::now();
        std::thread::park_timeout(Duration::from_secs(10));
        assert!(start.elapsed() < Duration::from_secs(10), "an event was missed");
    }
}

#[test]
fn polling_an_empty_queue_drives_inline_and_a_full_one_does_not() {
    struct Inline(std::sync::atomic::AtomicU64, std::sync::Mutex<Option<Cq>>);
    impl Progress for Inline {
        fn kick(&self) {}
        fn drive_inline(&self) -> bool {
            self.0.fetch_add(1, Ordering::SeqCst);
            if let Some(cq) = self.1.lock().unwrap().take() {
                complete(&cq, 9);
            }
            true
        }
    }
    let device = device();
    let cq = device.create_cq(4).unwrap();
    let inline = Arc::new(Inline(Default::default(), Default::default()));
    assert!(device.install_progress(inline.clone()));
    assert_eq!(ids(&cq, 1), [0u64; 0]);
    assert_eq!(inline.0.load(Ordering::SeqCst), 1);
    *inline.1.lock().unwrap() = Some(cq.clone());
    assert_eq!(ids(&cq, 1), [9], "what the driver brought is seen by the same call");
    complete(&cq, 1);
    assert_eq!(ids(&cq, 1), [1]);
    assert_eq!(inline.0.load(Ordering::SeqCst), 2, "the driver is left alone while there are entries");
}
