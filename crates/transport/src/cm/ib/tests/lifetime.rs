//! Many lives: memory and time stay flat, and the same seed gives the same MADs.

use std::time::{Duration, Instant};

use super::harness::*;
use crate::cm::ib::*;

/// RX-12: 100,000 connections, made and ended by either side in turn. No table grows; the last is as fast as the first.
#[test]
fn a_hundred_thousand_connections() {
    const CYCLES: u32 = 100_000;
    const BLOCK: u32 = 10_000;
    let mut net = Net::new();
    net.listen(8);
    net.flight = Duration::from_millis(1);
    let mut largest = 0;
    let mut blocks = Vec::new();
    let mut block = Instant::now();
    for cycle in 0..CYCLES {
        let (a, b) = net.connected(0x1000 + cycle, 0x20_0000 + cycle);
        if cycle % 2 == 0 {
            net.a.cm.disconnect(net.now, a, &[]).unwrap();
        } else {
            net.b.cm.disconnect(net.now, b, &[]).unwrap();
        }
        net.settle();
        net.a.cm.handle_timeout(net.now);
        net.b.cm.handle_timeout(net.now);
        net.a.events.clear();
        net.b.events.clear();
        net.log.clear();
        if cycle % BLOCK == BLOCK - 1 {
            largest = largest.max(net.a.cm.footprint() + net.b.cm.footprint());
            blocks.push(block.elapsed());
            block = Instant::now();
        }
    }
    // 5 MADs of 1 ms each: a time-wait of 2.147 s holds 430 connections, with 4 entries each.
    assert!(largest < 2 * 450 * 5, "{largest} entries");
    net.run_out();
    assert_eq!((net.a.cm.footprint(), net.b.cm.footprint()), (0, 1));
    let (first, last) = (blocks[0], *blocks.last().unwrap());
    assert!(last < first * 4, "10,000 connections took {first:?} at first and {last:?} in the end");
}

/// Failures leave nothing behind either.
#[test]
fn failed_attempts_leave_nothing() {
    let mut net = Net::new();
    for round in 0..2000 {
        net.cut = (round % 3 == 0, round % 3 == 1);
        net.connect(0x1000 + round);
        net.settle();
        net.run_out();
        net.log.clear();
        assert!(!net.a.events.is_empty());
        net.a.events.clear();
        net.b.events.clear();
    }
    assert_eq!((net.a.cm.footprint(), net.b.cm.footprint()), (0, 0));
}

#[test]
fn a_seed_replays() {
    let run = |seed| {
        let mut cm = Cm::new(CmConfig::default(), seed);
        let start = Instant::now();
        let mads: Vec<_> = (0x10..0x20)
            .map(|qpn| {
                cm.connect(start, &connect_params(path(A, B), qpn)).unwrap();
                cm.poll_transmit().unwrap().1
            })
            .collect();
        mads
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
