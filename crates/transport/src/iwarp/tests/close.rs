//! The end of a connection in good order and otherwise: nothing is lost, everything posted completes once.

use super::*;
use crate::iwarp::StreamFault;
use crate::iwarp::ending::{CLOSE_TIMEOUT, TERMINATE_TIMEOUT};

/// `disconnect` finishes what was posted, and no more.
#[test]
fn disconnect_finishes_first() {
    let mut bench = Bench::new(Setup::default());
    let remote = bench.nodes[1].remote(0);
    for id in 0..3 {
        bench.nodes[1].recv(id, 0, 10);
    }
    let (now, node) = (bench.now, &mut bench.nodes[0]);
    let sink = node.sge(0, 50_000);
    node.send(SendWr::new(1, SendOp::Read { remote }).with_sges([sink]));
    node.send(SendWr::new(2, SendOp::Send).with_inline(*b"bye"));
    node.qp.disconnect(&mut node.env, now);
    node.send(SendWr::new(3, SendOp::Send).with_inline(*b"late"));
    bench.run();
    let flushed = (3, WcStatus::WrFlushErr);
    assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::Success), (2, WcStatus::Success), flushed]);
    let status = [WcStatus::Success, WcStatus::WrFlushErr, WcStatus::WrFlushErr];
    let expected: Vec<_> = (0..).zip(status).collect();
    assert_eq!(bench.nodes[1].received(), expected);
    assert_eq!(bench.nodes.each_ref().map(|n| n.closed), [Some(Close::Graceful); 2]);
    assert_eq!(bench.nodes.each_ref().map(|n| n.qp.state()), [QpState::Err; 2]);
    assert!(bench.nodes[0].env.events.is_empty());
    bench.assert_idle();
}

/// A FIN between two FPDUs of one message cuts it short; between two messages it is in order.
#[test]
fn the_peer_ends_amid_a_message() {
    let ends = |first: &[u8]| {
        let mut bench = Bench::new(Setup::default());
        bench.nodes[1].recv(1, 0, 100);
        bench.deliver(1, &frame(first));
        bench.event(1, StreamEvent::Eof);
        bench.nodes[1].qp.fault()
    };
    // RFC 5041 §4.2: untagged, with the L bit (0x40) and without; a SEND (RFC 5040 §4.3) of MSN 1 with one byte.
    let send = |control| [control, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 7];
    assert_eq!(ends(&send(0x41)), None);
    assert_eq!(ends(&send(0x01)), Some(StreamFault::CutShort));
}

#[test]
fn both_disconnect() {
    let mut bench = Bench::new(Setup::default());
    for at in 0..2 {
        let (now, node) = (bench.now, &mut bench.nodes[at]);
        node.qp.disconnect(&mut node.env, now);
    }
    bench.run();
    assert_eq!(bench.nodes.each_ref().map(|n| n.closed), [Some(Close::Graceful); 2]);
    bench.assert_idle();
}

/// A peer that never closes its side is reset.
#[test]
fn disconnect_of_a_silent_peer() {
    let mut bench = Bench::new(Setup::default());
    let now = bench.now;
    bench.nodes[0].recv(1, 0, 8);
    let node = &mut bench.nodes[0];
    node.qp.disconnect(&mut node.env, now);
    assert_eq!(node.qp.poll_close(), Some(Close::Graceful));
    assert_eq!(node.qp.poll_timeout(), Some(now + CLOSE_TIMEOUT));
    assert_eq!(node.received(), []);
    node.qp.handle_timeout(&mut node.env, now + CLOSE_TIMEOUT);
    assert_eq!(node.qp.poll_close(), Some(Close::Abort));
    assert_eq!(node.received(), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(node.qp.poll_timeout(), None);
}

/// What was posted may take as long as it likes, if only it goes on: the limit is for a standstill. It counts once more from
/// our FIN.
#[test]
fn disconnect_takes_its_time() {
    let mut bench = Bench::new(Setup::default());
    let (remote, now) = (bench.nodes[1].remote(0), bench.now);
    let node = &mut bench.nodes[0];
    let (sge, half) = (node.sge(0, 60_000), CLOSE_TIMEOUT / 2);
    node.send(SendWr::new(1, SendOp::Write { remote }).with_sges([sge]));
    node.qp.disconnect(&mut node.env, now);
    bench.transmit(0);
    let bytes = bench.log[0].len();
    for step in 1..=6 {
        bench.now += half;
        let piece = if step == 6 { bytes - 5 * 1000 } else { 1000 };
        bench.written(0, piece);
        let (now, node) = (bench.now, &mut bench.nodes[0]);
        node.qp.handle_timeout(&mut node.env, now);
        assert_eq!(node.qp.poll_timeout(), Some(now + CLOSE_TIMEOUT));
        assert_eq!(node.qp.poll_close(), (step == 6).then_some(Close::Graceful));
    }
    assert_eq!(bench.nodes[0].sent(), ok([1]));
    // The FIN is out: nothing that the peer sends gives it more time.
    let last = bench.now;
    bench.now += half;
    bench.nodes[0].recv(2, 0, 8);
    bench.nodes[1].qp.heard = true;
    bench.nodes[1].send(SendWr::new(3, SendOp::Send).with_inline(*b"chatter"));
    bench.transmit(1);
    let chatter: Vec<u8> = bench.wire[0].drain(..).collect();
    bench.deliver(0, &chatter);
    let node = &mut bench.nodes[0];
    assert_eq!(node.received(), ok([2]));
    assert_eq!(node.qp.poll_timeout(), Some(last + CLOSE_TIMEOUT));
    node.qp.handle_timeout(&mut node.env, last + CLOSE_TIMEOUT);
    assert_eq!(node.qp.poll_close(), Some(Close::Abort));
}

/// A socket that takes nothing any more: reset, with what is unfinished flushed.
#[test]
fn disconnect_at_a_standstill() {
    let mut bench = Bench::new(Setup::default());
    let (remote, now) = (bench.nodes[1].remote(0), bench.now);
    let node = &mut bench.nodes[0];
    let sge = node.sge(0, 60_000);
    node.send(SendWr::new(1, SendOp::Write { remote }).with_sges([sge]));
    node.qp.disconnect(&mut node.env, now);
    bench.transmit(0);
    let node = &mut bench.nodes[0];
    node.qp.handle_timeout(&mut node.env, now + CLOSE_TIMEOUT);
    assert_eq!(node.qp.poll_close(), Some(Close::Abort));
    assert_eq!(node.sent(), [(1, WcStatus::WrFlushErr)]);
}

/// A TERMINATE that the socket does not take is given up.
#[test]
fn terminate_that_is_not_written() {
    let mut bench = Bench::new(Setup::default());
    let now = bench.now;
    bench.deliver(1, &frame(&[0x41, 0x4f]));
    let node = &mut bench.nodes[1];
    let mut burst = StreamBurst::new();
    assert!(node.qp.poll_transmit(&mut node.env, now, &mut burst));
    assert_eq!(node.qp.poll_close(), None);
    assert_eq!(node.qp.poll_timeout(), Some(now + TERMINATE_TIMEOUT));
    node.qp.handle_timeout(&mut node.env, now + TERMINATE_TIMEOUT);
    assert_eq!(node.qp.poll_close(), Some(Close::Abort));
}

#[test]
fn the_stream_ends_or_breaks() {
    for event in [StreamEvent::Eof, StreamEvent::Reset] {
        let mut bench = Bench::new(Setup::default());
        let remote = bench.nodes[1].remote(0);
        bench.nodes[0].recv(9, 0, 8);
        let node = &mut bench.nodes[0];
        let sink = node.sge(0, 8);
        node.send(SendWr::new(1, SendOp::Read { remote }).with_sges([sink]));
        bench.transmit(0);
        // Cut within an FPDU.
        bench.deliver(0, &[0, 14, 0xc1]);
        bench.event(0, event);
        let node = &mut bench.nodes[0];
        assert_eq!(node.sent(), [(1, WcStatus::WrFlushErr)]);
        assert_eq!(node.received(), [(9, WcStatus::WrFlushErr)]);
        assert_eq!(node.qp.state(), QpState::Err);
        let amid = (event == StreamEvent::Eof).then_some(StreamFault::CutShort);
        assert_eq!(node.qp.fault(), amid, "a FIN amid an FPDU is no good end");
        let close = (event == StreamEvent::Eof).then_some(Close::Graceful);
        assert_eq!(node.qp.poll_close(), close);
        assert_eq!(node.qp.rx.partial.capacity(), 0);
        // What comes late does nothing.
        bench.deliver(0, &[0; 100]);
        bench.event(0, StreamEvent::Reset);
        assert!(!bench.transmit(0));
    }
}

/// A move to ERR: with a FIN, so that what was completed arrives; with a RST where a message would be cut short.
#[test]
fn moved_to_err() {
    let mut bench = Bench::new(Setup::default());
    let remote = bench.nodes[1].remote(0);
    bench.nodes[1].recv(1, 0, 8);
    bench.nodes[0].send(SendWr::new(1, SendOp::Send).with_inline(*b"last"));
    bench.transmit(0);
    let node = &mut bench.nodes[0];
    node.qp.modify(&mut node.env, &QpAttr::to(QpState::Err)).unwrap();
    node.send(SendWr::new(2, SendOp::Send));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(bench.nodes[0].closed, Some(Close::Graceful));
    assert_eq!(bench.nodes[1].received(), ok([1]));
    let mut bench = Bench::new(Setup::default());
    let node = &mut bench.nodes[0];
    let sge = node.sge(0, LEN as u32);
    node.send(SendWr::new(1, SendOp::Write { remote }).with_sges([sge]));
    bench.transmit(0);
    let node = &mut bench.nodes[0];
    node.qp.modify(&mut node.env, &QpAttr::to(QpState::Err)).unwrap();
    assert_eq!(node.qp.poll_close(), Some(Close::Abort));
}

#[test]
fn failed_by_the_device() {
    let mut bench = Bench::new(Setup::default());
    bench.nodes[0].recv(1, 0, 8);
    let node = &mut bench.nodes[0];
    node.qp.fail(&mut node.env);
    assert_eq!(node.env.events, [QpEvent::Fatal]);
    assert_eq!(node.received(), [(1, WcStatus::WrFlushErr)]);
    bench.run();
    assert_eq!(bench.nodes[1].qp.state(), QpState::Err);
    assert_eq!(bench.nodes.each_ref().map(|n| n.closed), [Some(Close::Graceful); 2]);
}

/// Nor may a peer that does not read hold a queue pair that the device has failed.
#[test]
fn failed_by_the_device_and_not_written() {
    let mut bench = Bench::new(Setup::default());
    let (now, node) = (bench.now, &mut bench.nodes[0]);
    node.qp.fail(&mut node.env);
    let mut burst = StreamBurst::new();
    assert!(node.qp.poll_transmit(&mut node.env, now, &mut burst));
    assert_eq!((node.qp.poll_close(), node.qp.poll_timeout()), (None, Some(now + TERMINATE_TIMEOUT)));
    node.qp.handle_timeout(&mut node.env, now + TERMINATE_TIMEOUT);
    assert_eq!((node.qp.poll_close(), node.qp.poll_timeout()), (Some(Close::Abort), None));
    // What an earlier message still has in flight: there is no waiting for that.
    let mut bench = Bench::new(Setup::default());
    bench.nodes[0].send(SendWr::new(1, SendOp::Send).with_inline(*b"stuck"));
    bench.transmit(0);
    let node = &mut bench.nodes[0];
    node.qp.fail(&mut node.env);
    assert_eq!(node.qp.poll_close(), Some(Close::Abort));
}

/// Through RESET and INIT to another stream.
#[test]
fn used_again() {
    let mut bench = Bench::new(Setup::default());
    for at in 0..2 {
        let node = &mut bench.nodes[at];
        node.qp.modify(&mut node.env, &QpAttr::to(QpState::Reset)).unwrap();
        assert_eq!(node.qp.poll_close(), Some(Close::Graceful));
        assert_eq!((node.qp.state(), node.qp.conn()), (QpState::Reset, Some(ConnId(at as u64))));
        let attr = QpAttr { access: Some(Access::REMOTE_WRITE), ..QpAttr::to(QpState::Init) };
        node.qp.modify(&mut node.env, &attr).unwrap();
        bench.start(at);
    }
    let remote = bench.nodes[1].remote(0);
    bench.nodes[0].send(SendWr::new(1, SendOp::Write { remote }).with_inline(*b"again"));
    bench.run();
    assert_eq!(bench.nodes[0].sent(), ok([1]));
    assert_eq!(bench.nodes[1].bytes()[..5], *b"again");
    let (params, now, node) = (bench.params(0), bench.now, &mut bench.nodes[0]);
    assert!(node.qp.start(&mut node.env, now, params).is_err());
}
