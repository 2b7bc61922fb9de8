//! Tests of the completion ledgers: each rule broken once.

use everywire_verbs::Qpn;

use super::*;

fn wc(wr_id: u64, status: WcStatus) -> Completion {
    Completion {
        wr_id,
        status,
        opcode: WcOpcode::Send,
        byte_len: 0,
        imm: None,
        invalidated: None,
        qpn: Qpn::new(7),
        src_qp: Qpn::new(9),
        grh: false,
        slid: everywire_wire::Lid(0),
        sl: 0,
        dlid_path_bits: 0,
        solicited: false,
        vendor_err: 0,
    }
}

fn recv_wc(wr_id: u64, status: WcStatus) -> Completion {
    Completion { opcode: WcOpcode::Recv, ..wc(wr_id, status) }
}

fn expect(wr_id: u64, signaled: bool) -> SendExpect {
    SendExpect { wr_id, signaled, opcode: WcOpcode::Send, byte_len: None, must_fail: Vec::new() }
}

fn ledger(requests: &[(u64, bool)]) -> SendLedger {
    let mut ledger = SendLedger::new("sq");
    for &(id, signaled) in requests {
        ledger.posted(expect(id, signaled));
    }
    ledger
}

#[test]
fn unsignalled_requests_end_with_the_next_completion() {
    let mut l = ledger(&[(1, false), (2, false), (3, true)]);
    assert_eq!((l.open(), l.owed()), (3, 1));
    let ended = l.completed(&wc(3, WcStatus::Success)).unwrap();
    assert_eq!(ended, [(1, Ended::Success), (2, Ended::Success), (3, Ended::Success)]);
}

#[test]
fn twice_out_of_order_and_unasked_completions_are_seen() {
    let mut l = ledger(&[(1, true), (2, true)]);
    assert!(l.clone().completed(&wc(2, WcStatus::Success)).is_err());
    assert!(l.clone().completed(&wc(5, WcStatus::Success)).is_err());
    l.completed(&wc(1, WcStatus::Success)).unwrap();
    assert!(l.clone().completed(&wc(1, WcStatus::Success)).is_err());
    let mut l = ledger(&[(1, false)]);
    assert!(l.completed(&wc(1, WcStatus::Success)).is_err());
}

#[test]
fn after_a_failure_everything_is_flushed_signalled_or_not() {
    let mut l = ledger(&[(1, true)]);
    l.posted(SendExpect { must_fail: vec![WcStatus::RemAccessErr], ..expect(2, false) });
    for id in 3..6 {
        l.posted(expect(id, false));
    }
    assert!(l.clone().completed(&wc(2, WcStatus::RemAccessErr)).is_err(), "1 is still owed");
    l.completed(&wc(1, WcStatus::Success)).unwrap();
    assert!(l.clone().completed(&wc(2, WcStatus::Success)).is_err());
    assert!(l.clone().completed(&wc(2, WcStatus::RemOpErr)).is_err());
    assert!(l.clone().completed(&wc(2, WcStatus::WrFlushErr)).is_err());
    let ended = l.completed(&wc(2, WcStatus::RemAccessErr)).unwrap();
    assert_eq!(ended, [(2, Ended::Failed(WcStatus::RemAccessErr))]);
    assert_eq!(l.owed(), 3);
    assert!(l.clone().completed(&wc(3, WcStatus::Success)).is_err());
    assert!(l.clone().completed(&wc(3, WcStatus::RemAccessErr)).is_err());
    assert!(l.clone().completed(&wc(4, WcStatus::WrFlushErr)).is_err(), "3 must be flushed first");
    for id in 3..6 {
        assert_eq!(l.completed(&wc(id, WcStatus::WrFlushErr)).unwrap(), [(id, Ended::Flushed)]);
    }
}

#[test]
fn the_environment_needs_an_excuse() {
    let mut l = ledger(&[(1, true)]);
    assert!(l.clone().completed(&wc(1, WcStatus::RetryExcErr)).is_err());
    assert!(l.clone().completed(&wc(1, WcStatus::RnrRetryExcErr)).is_err());
    l.excuses = Excuses { retry: true, ..Excuses::default() };
    assert!(l.clone().completed(&wc(1, WcStatus::RnrRetryExcErr)).is_err());
    assert!(l.clone().completed(&wc(1, WcStatus::RetryExcErr)).is_ok());
}

#[test]
fn receives_end_in_order() {
    let mut l = RecvLedger::new("rq");
    for id in 1..5 {
        l.posted(id);
    }
    assert!(l.clone().completed(&recv_wc(2, WcStatus::Success)).is_err());
    assert!(l.clone().completed(&wc(1, WcStatus::Success)).is_err(), "a receive completed as a send");
    assert_eq!(l.completed(&recv_wc(1, WcStatus::Success)).unwrap(), Ended::Success);
    assert!(l.clone().completed(&recv_wc(2, WcStatus::LocLenErr)).is_err());
    assert!(l.clone().completed(&recv_wc(2, WcStatus::WrFlushErr)).is_err());
    l.may_fail = vec![WcStatus::LocLenErr];
    l.completed(&recv_wc(2, WcStatus::LocLenErr)).unwrap();
    assert!(l.clone().completed(&recv_wc(3, WcStatus::Success)).is_err());
    assert_eq!(l.completed(&recv_wc(3, WcStatus::WrFlushErr)).unwrap(), Ended::Flushed);
    assert_eq!(l.open(), 1);
}

#[test]
fn a_shared_queue_is_accounted_for() {
    let mut l = SharedLedger::new("srq");
    for id in 1..5 {
        l.posted(id);
    }
    let other = Completion { qpn: Qpn::new(8), ..recv_wc(2, WcStatus::Success) };
    l.completed(&recv_wc(3, WcStatus::Success), false, &[]).unwrap();
    l.completed(&other, false, &[]).unwrap();
    assert!(l.clone().completed(&recv_wc(1, WcStatus::Success), false, &[]).is_err(), "out of order");
    assert!(l.clone().completed(&other, false, &[]).is_err(), "twice");
    l.verify(2).unwrap();
    assert!(l.verify(1).is_err());
}
