//! Start frames that are damaged: the connection ends before its peer's end, and no program is told of a connection.
//!
//! Read RFC 5044 §7.1.1 first. Start frames have no CRC. What can be told wrong is the key, a revision that is not spoken (RFC
//! 6581 §9 adds 2), more private data than 512 bytes, and a length that does not go with what comes. Reserved bits are not
//! checked by a receiver, flags and private data mean what they say: damage there is no damage.

use super::*;

const PRIVATE: &[u8] = &[0, 1, 0, 1, b'p', b'r', b'i', b'v'];
/// More than a peer may take for its frame; a program there may think about its reply.
const PATIENCE: Duration = Duration::from_secs(120);

/// The frame with these bits flipped, and how many of its bytes show that it is wrong.
fn damaged(good: &[u8]) -> Vec<(Vec<u8>, usize)> {
    let bits =
        |at: usize, mask: u8| (0..8).map(|bit| 1 << bit).filter(move |b| b & mask != 0).map(move |b| (at, b));
    // A key is wrong with its first wrong byte; a length of 512 and more once there is a header.
    let key = (0..16).flat_map(|at| bits(at, 0xff)).map(|(at, bit)| (at, bit, at + 1));
    let long = bits(18, 0xfe).map(|(at, bit)| (at, bit, 20));
    // Revision 2 with one bit wrong is 3, 0, 6, …; it is looked at in a whole frame.
    let revision = bits(17, 0xff).map(|(at, bit)| (at, bit, good.len()));
    let flip = |(at, bit, shows): (usize, u8, usize)| {
        let mut bad = good.to_vec();
        bad[at] ^= bit;
        (bad, shows)
    };
    key.chain(long).chain(revision).map(flip).collect()
}

#[test]
fn a_damaged_request_is_ended_by_the_byte_that_shows_it() {
    for (bad, shows) in damaged(&start_frame("Req", 0x50, 2, PRIVATE)) {
        for cut in [1, 3, bad.len()] {
            let mut bench = Bench::new(IwarpOptions::default());
            let listener = bench.listen();
            let conn = bench.taken(PEER).unwrap();
            for piece in bad[..shows].chunks(cut) {
                assert!(bench.reset.is_empty(), "{bad:02x?} in pieces of {cut}");
                bench.bytes(conn, piece);
            }
            assert_eq!(
                (&*bench.reset, bench.strangers.len()),
                (&[conn][..], 1),
                "{bad:02x?} in pieces of {cut}"
            );
            // What comes on until TCP has told the peer concerns nobody.
            bench.bytes(conn, &[0xff; 600]);
            bench.event(conn, ConnEvent::Eof);
            assert!(bench.sent.is_empty() && poll(&mut Box::pin(listener.next_request())).is_none());
        }
    }
}

#[test]
fn a_damaged_reply_is_ended_by_the_byte_that_shows_it() {
    for (bad, shows) in damaged(&start_frame("Rep", 0x50, 2, PRIVATE)) {
        for cut in [1, 3, bad.len()] {
            let mut bench = Bench::new(IwarpOptions::default());
            let qp = bench.qp();
            let (mut attempt, conn) = bench.asking(&qp);
            for piece in bad[..shows].chunks(cut) {
                assert!(bench.reset.is_empty(), "{bad:02x?} in pieces of {cut}");
                bench.bytes(conn, piece);
            }
            assert_eq!(bench.reset, [conn], "{bad:02x?} in pieces of {cut}");
            let error = poll(&mut attempt).expect("the program is told").unwrap_err();
            assert!(matches!(error.kind(), CmErrorKind::Mpa(_)), "{error}");
        }
    }
}

/// Every length that is not the frame's own. One that is too short leaves bytes over: behind a request nothing may come (RFC
/// 5044 §7.1.2); behind a reply they would be FPDUs, and are none. One that is too long waits for bytes, as long as for any.
#[test]
fn a_wrong_length_is_ended_too() {
    let len = PRIVATE.len() as u8;
    for wrong in (0..=u8::MAX).filter(|wrong| *wrong != len) {
        let mut bench = Bench::new(IwarpOptions::default());
        let listener = bench.listen();
        let conn = bench.taken(PEER).unwrap();
        let mut bad = start_frame("Req", 0x50, 2, PRIVATE);
        bad[19] = wrong;
        bench.bytes(conn, &bad);
        bench.until_ended(conn, wrong > len);
        assert!(poll(&mut Box::pin(listener.next_request())).is_none(), "{wrong}");

        let mut bench = Bench::new(IwarpOptions::default());
        let qp = bench.qp();
        let (mut attempt, conn) = bench.asking(&qp);
        let mut bad = start_frame("Rep", 0x50, 2, PRIVATE);
        bad[19] = wrong;
        bench.bytes(conn, &bad);
        if wrong < len {
            // As much as any length field may ask for.
            bench.bytes(conn, &[0xff; 0x1_0010]);
        }
        bench.until_ended(conn, wrong > len);
        match poll(&mut attempt).expect("the program is told") {
            Ok(connection) => assert!(connection.closed_reason().is_some(), "{wrong}"),
            Err(error) => {
                assert!(matches!(error.kind(), CmErrorKind::Mpa(_) | CmErrorKind::Closed(_)), "{error}")
            }
        }
    }
}

impl Bench {
    /// The end of a connection whose peer has not ended it: at once, or after the patience with an unfinished frame.
    fn until_ended(&mut self, conn: ConnId, patience: bool) {
        let over = |bench: &Bench| bench.reset.contains(&conn) || bench.closed.contains(&conn);
        assert_eq!(over(self), !patience);
        if patience {
            self.now += PATIENCE;
            self.device.drive().handle_timeout(self.now);
            self.drain();
            assert!(over(self), "an unfinished frame is waited for for ever");
        }
    }
}

/// RFC 5044 §7.1.1: reserved bits are not checked on reception.
#[test]
fn what_a_receiver_does_not_check_ends_nothing() {
    for flags in [0x51, 0x52, 0x54, 0x58] {
        let mut bench = Bench::new(IwarpOptions::default());
        let listener = bench.listen();
        let conn = bench.taken(PEER).unwrap();
        bench.bytes(conn, &start_frame("Req", flags, 2, PRIVATE));
        assert!(bench.reset.is_empty() && bench.closed.is_empty(), "{flags:#x}");
        assert!(poll(&mut Box::pin(listener.next_request())).is_some(), "{flags:#x}");
    }
}
