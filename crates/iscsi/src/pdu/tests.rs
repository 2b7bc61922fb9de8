//! PDUs against hand-written bytes of the standard's layouts, and a stream cut everywhere.

use super::*;

fn samples() -> Vec<Pdu> {
    let command = ScsiCommand {
        flags: FINAL | ScsiCommand::WRITE | 1,
        lun: 1 << 48,
        itt: 7,
        edtl: 5,
        cmd_sn: 3,
        exp_stat_sn: 9,
        cdb: [0x2a; 16],
    };
    let ahs = Ahs { more_cdb: Bytes::from_static(&[1, 2, 3]), read_length: Some(8) };
    vec![
        Pdu { ahs: ahs.emit(), ..Pdu::with_data(command, &b"hello"[..]) },
        Pdu::new(NopOut { flags: FINAL, itt: 1, ttt: NO_TAG, ..NopOut::default() }).immediate(),
        Pdu::with_data(DataIn { flags: FINAL | DataIn::STATUS, itt: 7, ..DataIn::default() }, vec![9; 1024]),
    ]
}

#[test]
fn streams_may_be_cut_anywhere() {
    for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
        let digests = Digests { header, data };
        let mut stream = Vec::new();
        for pdu in samples() {
            let bytes = pdu.to_bytes(digests);
            assert_eq!(bytes.len(), pdu.wire_len(digests));
            stream.extend_from_slice(&bytes);
        }
        for step in [1, 3, 47, 48, 49, 1000, stream.len()] {
            let mut framer = Framer::new(1024);
            framer.set(digests, 1024);
            let mut got = Vec::new();
            for chunk in stream.chunks(step) {
                framer.space().extend_from_slice(chunk);
                while let Some(pdu) = framer.next_pdu().unwrap() {
                    got.push(pdu);
                }
            }
            assert_eq!(got, samples());
            assert_eq!(framer.pending(), 0);
        }
    }
}

#[test]
fn damage_is_told_by_its_digest() {
    let digests = Digests { header: true, data: true };
    let good = samples()[2].to_bytes(digests);
    let try_with = |at: usize| {
        let mut bad = good.to_vec();
        bad[at] ^= 1;
        let mut framer = Framer::new(4096);
        framer.set(digests, 4096);
        framer.space().extend_from_slice(&bad);
        framer.next_pdu().unwrap_err()
    };
    assert!(matches!(try_with(20), FrameError::HeaderDigest { .. }));
    // The lengths themselves are under the digest.
    assert!(matches!(try_with(6), FrameError::HeaderDigest { .. }));
    assert!(matches!(try_with(100), FrameError::DataDigest(_)));
}

#[test]
fn too_long_and_unknown_are_refused() {
    let mut framer = Framer::new(512);
    framer.space().extend_from_slice(&samples()[2].to_bytes(Digests::default())[..48]);
    assert_eq!(framer.next_pdu(), Err(FrameError::DataTooLong { len: 1024, limit: 512 }));
    let mut framer = Framer::new(512);
    let mut bytes = [0; 48];
    bytes[0] = 0x1c;
    framer.space().extend_from_slice(&bytes);
    assert_eq!(framer.next_pdu(), Err(FrameError::Opcode(Box::new(bytes))));
}

/// RFC 7143 §11.3: where the fields of a command lie.
#[test]
fn a_command_lies_as_the_standard_draws_it() {
    let bytes = samples()[0].bhs();
    assert_eq!(bytes[..8], [0x01, 0xa1, 0, 0, 4, 0, 0, 5]);
    assert_eq!(bytes[8..16], [0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[16..32], [0, 0, 0, 7, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 9]);
}
