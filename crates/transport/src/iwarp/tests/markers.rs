//! Markers at the right bytes: streams laid out by hand from RFC 5044 §4.3.

use everywire_wire::rdmap::TermError;

use super::*;

/// A marker.
fn marker(fpdu_ptr: u16) -> Vec<u8> {
    let mut out = vec![0, 0];
    out.extend(fpdu_ptr.to_be_bytes());
    out
}

/// A SEND's length field and segment, number `msn`.
fn body(msn: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = (18 + payload.len() as u16).to_be_bytes().to_vec();
    out.extend([0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0]);
    out.extend(payload);
    assert_eq!(out.len() % 4, 0);
    out
}

fn sealed(mut raw: Vec<u8>) -> Vec<u8> {
    let crc = crc32c(&raw);
    raw.extend(crc);
    raw
}

/// Three FPDUs: one with a marker before its CRC, one that ends right before a marker's place, one that begins with that
/// marker.
fn by_hand() -> (Vec<Vec<u8>>, Vec<u8>) {
    let payloads = vec![pattern(488, 1), pattern(480, 2), pattern(700, 3)];
    let mut stream = Vec::new();
    // At 0: a marker, 508 bytes, the marker of 512 right before the CRC.
    let first = body(1, &payloads[0]);
    assert_eq!(first.len(), 508);
    stream.extend(sealed([marker(0), first, marker(508)].concat()));
    assert_eq!(stream.len(), 520);
    // From 520 to 1024: 500 bytes and the CRC.
    stream.extend(sealed(body(2, &payloads[1])));
    assert_eq!(stream.len(), 1024);
    // From 1024: a marker of its own, 508 bytes, the marker of 1536, the rest.
    let third = body(3, &payloads[2]);
    let (head, tail) = third.split_at(508);
    stream.extend(sealed([marker(0), head.to_vec(), marker(508), tail.to_vec()].concat()));
    (payloads, stream)
}

#[test]
fn sent_where_they_belong() {
    let (payloads, stream) = by_hand();
    let mut bench = Bench::new(Setup { markers: [false, true], ..Setup::default() });
    for (id, payload) in payloads.iter().enumerate() {
        let node = &mut bench.nodes[0];
        node.bytes()[..payload.len()].copy_from_slice(payload);
        let sge = node.sge(0, payload.len() as u32);
        node.send(SendWr::new(id as u64, SendOp::Send).with_sges([sge]));
        bench.transmit(0);
    }
    assert_eq!(bench.log[0], stream);
}

#[test]
fn taken_out_at_any_cut() {
    let (payloads, stream) = by_hand();
    for piece in [1, 2, 3, 5, 512, 513, 5000] {
        let mut bench = Bench::new(Setup { markers: [false, true], ..Setup::default() });
        for id in 0..3 {
            bench.nodes[1].recv(id, id * 1000, 1000);
        }
        for piece in stream.chunks(piece) {
            bench.deliver(1, piece);
        }
        assert_eq!(bench.nodes[1].received(), ok(0..3));
        for (id, payload) in payloads.iter().enumerate() {
            assert_eq!(&bench.nodes[1].bytes()[id * 1000..][..payload.len()], payload);
        }
        bench.assert_idle();
    }
}

/// RFC 5044 §8: a marker that does not point at its FPDU is code 3 "in the event that the CRC is valid", or not in use; a
/// marker that was damaged on its way fails the CRC, code 2.
#[test]
fn a_wrong_pointer() {
    let (_, stream) = by_hand();
    // A byte of a marker's pointer, and the FPDU that it is in.
    for (at, fpdu) in [(3, 0..520), (515, 0..520), (1027, 1024..stream.len()), (1539, 1024..stream.len())] {
        for (crc, sealed, code) in [(true, true, 3), (true, false, 2), (false, false, 3)] {
            let mut bad = stream.clone();
            bad[at] ^= 4;
            if sealed {
                let sum = crc32c(&bad[fpdu.start..fpdu.end - 4]);
                bad[fpdu.end - 4..fpdu.end].copy_from_slice(&sum);
            }
            let mut bench = Bench::new(Setup { crc, markers: [false, true], ..Setup::default() });
            for id in 0..3 {
                bench.nodes[1].recv(id, 0, 1000);
            }
            bench.deliver(1, &bad);
            bench.run();
            let term = bench.terminate(1);
            assert_eq!(term.error, TermError { layer: 2, etype: 0, code }, "byte {at}");
            assert_eq!((term.segment_len, term.ddp, term.read), (None, None, None));
        }
    }
}
