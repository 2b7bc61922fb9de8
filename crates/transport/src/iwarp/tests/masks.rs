//! The masks of RFC 7306's atomics, as a peer that has them asks for them.
//!
//! Expected values come from the bit-by-bit definition of RFC 7306 §5.1.1 (a carry is dropped where the add mask has a bit)
//! and §5.1.2 (only masked bits are compared, only masked bits are stored).

use everywire_wire::rdmap::{AtomicRequest, AtomicResponse};

use super::*;
use crate::memory::AtomicOp;

/// RFC 7306 §5.1.1, one bit after the other.
fn add_by_bits(old: u64, add: u64, mask: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..64 {
        let here = (old >> bit & 1) + (add >> bit & 1) + carry;
        sum |= (here & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { here >> 1 };
    }
    sum
}

#[test]
fn an_add_stops_its_carries_at_the_boundaries() {
    let mut rng = ChaCha8Rng::seed_from_u64(7306);
    let masks = [0, 1 << 63, 1 << 31, 0x8000_8000_8000_8000, 0x8080_8080_8080_8080, u64::MAX, 1];
    for round in 0..2000 {
        let (old, add) = (rng.next_u64(), rng.next_u64());
        let boundary = masks.get(round % 8).copied().unwrap_or_else(|| rng.next_u64());
        let op = AtomicOp::MaskedFetchAdd { add, boundary };
        assert_eq!(op.apply(old), add_by_bits(old, add, boundary), "{old:#x} + {add:#x}, {boundary:#x}");
    }
}

/// What arrives, laid out by hand, and what is answered and stored. AOpCodes: 0 adds, 2 compares and swaps.
#[test]
fn as_asked_for_on_the_wire() {
    let old = 0x1122_33ff_5566_77ff_u64;
    // Name, AOpCode, add or swap and its mask, compare and its mask, what is there afterwards.
    let rows = [
        (
            "bytes that do not carry",
            0,
            0x0101_0101_0101_0101,
            0x8080_8080_8080_8080,
            0,
            0,
            0x1223_3400_5667_7800,
        ),
        ("two halves", 0, 0xff00_0000_ffff_ffff, 1 << 31, 0, 0, 0x1022_33ff_5566_77fe),
        ("equal where it matters", 2, 0xaabb_ccdd_eeff_0011, 0xffff, 0xff, 0xff, 0x1122_33ff_5566_0011),
        ("not equal", 2, 0xaabb_ccdd_eeff_0011, 0xffff, 0xfe, 0xff, old),
        ("nothing compared, all stored", 2, 5, u64::MAX, 9, 0, 5),
    ];
    for (name, operation, add_swap, add_swap_mask, compare, compare_mask, expected) in rows {
        let mut bench = Bench::new(Setup { rfc7306: true, ..Setup::default() });
        let node = &mut bench.nodes[1];
        node.bytes()[..8].copy_from_slice(&old.to_ne_bytes());
        let mut segment = vec![0x41, 0x4a, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
        segment.extend([0, 0, 0, operation, 0, 0, 0, 77]);
        segment.extend(node.key.to_be_bytes());
        for field in [BASE, add_swap, add_swap_mask, compare, compare_mask] {
            segment.extend(field.to_be_bytes());
        }
        assert_eq!(segment.len(), 18 + AtomicRequest::LEN);
        bench.deliver(1, &frame(&segment));
        bench.transmit(1);
        let answer = bench.fpdus(1).remove(0);
        let answer = AtomicResponse::parse(&answer[18..]).unwrap();
        assert_eq!(answer, AtomicResponse { request_id: 77, original: old }, "{name}");
        assert_eq!(bench.nodes[1].bytes()[..8], expected.to_ne_bytes(), "{name}");
    }
}
