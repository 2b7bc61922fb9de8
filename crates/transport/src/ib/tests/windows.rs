//! Memory windows, fast registration and invalidation as work requests (cases RX-31): what the transport does with each,
//! and in which order.

use super::*;
use crate::memory::{BindWindow, FastRegister};

const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

/// Binds 100 bytes at 1000 of node 1's memory.
fn bind(bench: &Bench, window: RKey, new_rkey: RKey, length: u64) -> SendOp {
    let mr = LKey(bench.nodes[1].key);
    SendOp::BindMw(BindWindow { window, new_rkey, mr, addr: BASE + 1000, length, access: REMOTE })
}

/// Node 0 writes 8 bytes at `offset` through `rkey`; the status it gets.
fn touch(bench: &mut Bench, rkey: RKey, offset: u64) -> WcStatus {
    let from = bench.nodes[0].sge(0, 8);
    bench.nodes[0].send(write(77, from, Remote { addr: BASE + offset, rkey }));
    bench.run();
    bench.nodes[0].sent()[0].1
}

#[test]
fn a_bound_window_opens_exactly_its_range() {
    for type2 in [false, true] {
        for (offset, status) in [
            (1000, WcStatus::Success),
            (1092, WcStatus::Success),
            (999, WcStatus::RemAccessErr),
            (1093, WcStatus::RemAccessErr),
        ] {
            let mut bench = Bench::rc();
            let window = bench.nodes[1].env.memory.window(PD, type2);
            let new = RKey(window.0 + 1);
            let op = bind(&bench, window, new, 100);
            bench.nodes[1].send(SendWr::new(1, op));
            bench.run();
            let wc = bench.nodes[1].env.sends.pop_front().unwrap();
            assert_eq!(
                (wc.wr_id, wc.status, wc.opcode),
                (1, WcStatus::Success, super::super::WcOpcode::BindMw)
            );
            assert_eq!(touch(&mut bench, new, offset), status);
        }
        let mut bench = Bench::rc();
        let window = bench.nodes[1].env.memory.window(PD, type2);
        assert_eq!(touch(&mut bench, window, 1000), WcStatus::RemAccessErr, "before it is bound");
    }
}

#[test]
fn rebinding_and_unbinding_withdraw_the_old_key() {
    // Type 1: bound again, and bound with length 0.
    for (length, new_works) in [(100, true), (0, false)] {
        for old in [true, false] {
            let mut bench = Bench::rc();
            let window = bench.nodes[1].env.memory.window(PD, false);
            let (first, second) = (RKey(window.0 + 1), RKey(window.0 + 2));
            let ops = [bind(&bench, window, first, 100), bind(&bench, first, second, length)];
            ops.into_iter().for_each(|op| bench.nodes[1].send(SendWr::new(1, op)));
            bench.run();
            assert_eq!(bench.nodes[1].sent(), ok([1, 1]));
            let works = touch(&mut bench, if old { first } else { second }, 1000) == WcStatus::Success;
            assert_eq!(works, !old && new_works);
        }
    }
}

#[test]
fn binding_a_bound_type_2_window_fails_and_ends_the_queue_pair() {
    let mut bench = Bench::rc();
    let window = bench.nodes[1].env.memory.window(PD, true);
    let first = RKey(window.0 + 1);
    let ops = [bind(&bench, window, first, 100), bind(&bench, first, RKey(window.0 + 2), 100)];
    ops.into_iter().for_each(|op| bench.nodes[1].send(SendWr::new(1, op)));
    bench.nodes[1].send(SendWr::new(2, SendOp::Send));
    bench.run();
    let all = [(1, WcStatus::Success), (1, WcStatus::MwBindErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(bench.nodes[1].sent(), all);
    assert_eq!(bench.nodes[1].qp.state(), QpState::Err);
}

#[test]
fn invalidated_windows_are_closed() {
    for remotely in [false, true] {
        let mut bench = Bench::rc();
        let window = bench.nodes[1].env.memory.window(PD, true);
        let key = RKey(window.0 + 1);
        let op = bind(&bench, window, key, 100);
        bench.nodes[1].send(SendWr::new(1, op));
        bench.run();
        assert_eq!(touch(&mut bench, key, 1000), WcStatus::Success);
        if remotely {
            bench.nodes[1].recv(5, 0, 64);
            bench.nodes[0].send(SendWr::new(2, SendOp::SendInv(key)));
            bench.run();
            assert_eq!(bench.nodes[1].env.recvs.pop_front().unwrap().invalidated, Some(key));
            bench.nodes[0].sent();
        } else {
            bench.nodes[1].send(SendWr::new(2, SendOp::LocalInv(key)));
            bench.run();
            assert_eq!(bench.nodes[1].sent(), ok([1, 2]));
        }
        assert_eq!(touch(&mut bench, key, 1000), WcStatus::RemAccessErr);
        assert_eq!(bench.nodes[1].qp.state(), QpState::Err);
    }
}

/// The key must not vanish under a SEND that may still be sent again from it.
#[test]
fn local_invalidate_waits_for_all_before_it() {
    let mut bench = Bench::rc();
    let key = bench.nodes[0].env.memory.register(PD, 0, 5000, Access::LOCAL_WRITE);
    let mut lost = false;
    bench.judge = Box::new(move |from, p| {
        let drop = from == 0 && p.bth.opcode.is_last() && !std::mem::replace(&mut lost, true);
        if drop { Fate::Drop } else { Fate::Deliver }
    });
    bench.nodes[1].recv(1, 0, 5000);
    bench.nodes[0].send(send(1, Sge { addr: 0, length: 5000, lkey: LKey(key) }));
    bench.nodes[0].send(SendWr::new(2, SendOp::LocalInv(RKey(key))));
    let (from, remote) = (bench.nodes[0].sge(0, 8), bench.nodes[1].remote(0));
    bench.nodes[0].send(write(3, from, remote));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok(1..4));
    assert!(bench.nodes[0].count(Counter::RetransmittedPkts) > 0);
    assert!(!bench.nodes[0].env.memory.regions[1].valid);
}

#[test]
fn fast_registration_gives_a_region_its_contents_and_key() {
    let mut bench = Bench::rc();
    bench.nodes[1].bytes()[..16].copy_from_slice(&pattern(6, 16));
    let empty = bench.nodes[1].env.memory.register(PD, 0, 0, Access::empty());
    let pages = vec![bench.nodes[1].sge(8, 8), bench.nodes[1].sge(0, 8)];
    let new_key = RKey(empty + 1);
    let reg = FastRegister {
        mr: LKey(empty),
        new_key,
        iova: 0x7700_0000,
        length: 16,
        access: REMOTE,
        pages: pages.into(),
    };
    bench.nodes[1].send(SendWr::new(1, SendOp::FastReg(reg)));
    bench.run();
    assert_eq!(bench.nodes[1].sent(), ok([1]));
    let into = bench.nodes[0].sge(0, 16);
    bench.nodes[0].send(read(2, into, Remote { addr: 0x7700_0000, rkey: new_key }));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([2]));
    let data = pattern(6, 16);
    assert_eq!(bench.nodes[0].bytes()[..16], [&data[8..], &data[..8]].concat());
}

/// Local operations keep their place: a bind posted before a SEND is done when the peer hears of the key.
#[test]
fn local_operations_complete_in_order() {
    let mut bench = Bench::rc();
    let window = bench.nodes[1].env.memory.window(PD, true);
    let op = bind(&bench, window, RKey(window.0 + 1), 100);
    let (from, remote) = (bench.nodes[1].sge(0, 50_000), bench.nodes[0].remote(0));
    bench.nodes[1].send(write(1, from, remote));
    bench.nodes[1].send(SendWr::new(2, op).unsignaled());
    bench.nodes[1].send(SendWr::new(3, SendOp::LocalInv(RKey(window.0 + 1))));
    bench.nodes[1].send(write(4, from, remote));
    bench.run();
    assert_eq!(bench.nodes[1].sent(), ok([1, 3, 4]));
    bench.assert_idle();
}
