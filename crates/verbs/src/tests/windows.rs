//! Memory windows through queue pairs: case RX-31.

use crate::test_support::*;
use crate::*;

const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn statuses(side: &Side) -> Vec<(u64, WcStatus)> {
    side.completions().iter().map(|entry| (entry.wr_id, entry.status)).collect()
}

fn write(a: &Side, wr_id: u64, addr: u64, rkey: RKey) -> SendWr {
    SendWr::new(wr_id, SendOp::Write { remote: Remote { addr, rkey } }).with_sges([a.mr.sge(..16)])
}

/// Binds on `b`, and gives the new key.
fn bind(net: &mut Net, b: &Side, window: &MemoryWindow, offset: usize, length: u64) -> RKey {
    let bind = window.bind(&b.mr, offset, length, REMOTE);
    b.qp.post_send(SendWr::new(900, SendOp::BindMw(bind))).unwrap();
    net.settle();
    assert_eq!(statuses(b), [(900, WcStatus::Success)]);
    assert_eq!(window.rkey(), bind.new_rkey);
    bind.new_rkey
}

#[test]
fn every_way_to_end_a_window_ends_it() {
    type End = fn(&mut Net, &Side, &Side, &MemoryWindow, RKey);
    let ways: [(WindowType, End); 5] = [
        (WindowType::Type1, |net, _, b, window, _| _ = bind(net, b, window, 0, 64)),
        (WindowType::Type1, |net, _, b, window, _| _ = bind(net, b, window, 0, 0)),
        (WindowType::Type2, |net, _, b, _, key| {
            b.qp.post_send(SendWr::new(901, SendOp::LocalInv(key))).unwrap();
            net.settle();
            assert_eq!(statuses(b), [(901, WcStatus::Success)]);
        }),
        (WindowType::Type2, |net, a, b, _, key| {
            b.qp.post_recv(RecvWr::new(1, [])).unwrap();
            a.qp.post_send(SendWr::new(902, SendOp::SendInv(key))).unwrap();
            net.settle();
            assert_eq!(statuses(a), [(902, WcStatus::Success)]);
            let received = b.completions();
            assert_eq!(received[0].invalidated, Some(key));
        }),
        (WindowType::Type2, |net, a, b, window, key| {
            // Invalidated, then bound anew: the old key stays dead.
            b.qp.post_recv(RecvWr::new(1, [])).unwrap();
            a.qp.post_send(SendWr::new(902, SendOp::SendInv(key))).unwrap();
            net.settle();
            drop((a.completions(), b.completions()));
            bind(net, b, window, 0, 64);
        }),
    ];
    for (ty, end) in ways {
        let (mut net, a, b) = connected(QpType::Rc);
        let window = b.pd.alloc_mw(ty).unwrap();
        let key = bind(&mut net, &b, &window, 4096, 64);
        a.fill(0, b"through a window");
        a.qp.post_send(write(&a, 1, b.mr.addr() + 4100, key)).unwrap();
        net.settle();
        assert_eq!(statuses(&a), [(1, WcStatus::Success)]);
        assert_eq!(b.bytes(4100, 16), b"through a window");
        end(&mut net, &a, &b, &window, key);
        a.qp.post_send(write(&a, 2, b.mr.addr() + 4100, key)).unwrap();
        net.settle();
        assert_eq!(statuses(&a), [(2, WcStatus::RemAccessErr)], "{ty:?}");
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
    }
}

#[test]
fn a_region_with_windows_is_not_deregistered() {
    let (mut net, a, b) = connected(QpType::Rc);
    let region = b.pd.register(4096, all_access()).unwrap();
    let window = b.pd.alloc_mw(WindowType::Type2).unwrap();
    let request = window.bind(&region, 0, 64, REMOTE);
    b.qp.post_send(SendWr::new(1, SendOp::BindMw(request))).unwrap();
    net.settle();
    let (region, error) = region.deregister().unwrap_err();
    assert!(error.what().contains("windows are bound"), "{error}");
    b.qp.post_send(SendWr::new(2, SendOp::LocalInv(request.new_rkey))).unwrap();
    net.settle();
    region.deregister().unwrap();
    drop(a);
}

#[test]
fn a_refused_bind_completes_in_error() {
    let (mut net, _a, b) = connected(QpType::Rc);
    let read_only = b.pd.register(64, Access::REMOTE_READ).unwrap();
    let window = b.pd.alloc_mw(WindowType::Type1).unwrap();
    b.qp.post_send(SendWr::new(1, SendOp::BindMw(window.bind(&read_only, 0, 64, REMOTE)))).unwrap();
    net.settle();
    assert_eq!(statuses(&b), [(1, WcStatus::MwBindErr)]);
}
