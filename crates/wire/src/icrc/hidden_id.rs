//! Checking an ICRC without seeing the IPv4 Identification and "don't fragment" bit.
//!
//! A UDP socket does not show these 17 bits, and the ICRC covers them. CRC-32 is linear: what unknown bits do to the
//! checksum is their own polynomial times a power of x that depends only on how many bytes follow. Dividing the difference
//! by that power gives those bits back; any other error lands outside of them, save one in 2^15 (2^16 for a receiver that
//! insists on DF, which RoCE senders set; it also notices every single wrong bit up to MTU 4096). IPv6 has no such bits and
//! needs none of this; senders whose bits are known (ours writes 0 and DF) are checked in full with [`super::icrc_v4`].

use super::gf2::{INVERSE_OF_X_8, INVERSE_OF_X_32, multiply, multiply_slowly, power_at_run_time};
use super::{FLAGS_DF, IPV4_LEN, IcrcV4, UDP_LEN, icrc_v4};

/// What a correct ICRC says about the hidden IPv4 fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HiddenFields {
    /// IPv4 Identification.
    pub id: u16,
    /// "Don't fragment".
    pub df: bool,
}

/// Verifies IPv4 ICRCs whose Identification and DF bit are unknown. All state is a table made at compile time, one word a
/// packet length; a check costs one multiplication in GF(2^32), whatever the length.
#[derive(Debug, Clone, Copy, Default)]
pub struct HiddenId;

/// Packets up to here, BTH to pad, have their multiplier in the table: MTU 4096 and every header. Others work, slower.
const TABLED_LEN: usize = 4096 + 128;

/// `MULTIPLIERS[n / 4]` = x^−(32 + 8·bytes after the word with Identification and flags) for n bytes of BTH to pad.
static MULTIPLIERS: [u32; TABLED_LEN / 4 + 1] = {
    let mut table = [0; TABLED_LEN / 4 + 1];
    // Identification and flags are bytes 4 to 7 of the IP header. The register holds them after another 32 bits of shift.
    let mut words = (IPV4_LEN - 8 + UDP_LEN) / 4 + 1;
    let mut m = super::gf2::ONE;
    while words > 0 {
        m = multiply_slowly(m, INVERSE_OF_X_32);
        words -= 1;
    }
    let mut n = 0;
    while n < table.len() {
        table[n] = m;
        m = multiply_slowly(m, INVERSE_OF_X_32);
        n += 1;
    }
    table
};

impl HiddenId {
    /// There is nothing to set up.
    pub const fn new() -> HiddenId {
        HiddenId
    }

    /// Checks the ICRC of a packet whose `id` and DF are unknown: those in `net` are ignored. `bth_to_pad` is the UDP
    /// payload without its last four bytes, `received` those four.
    ///
    /// `None` means that no Identification and DF bit make the ICRC right.
    #[inline]
    pub fn verify(&self, net: &IcrcV4, bth_to_pad: &[u8], received: [u8; 4]) -> Option<HiddenFields> {
        let guess = IcrcV4 { id: 0, flags_frag: FLAGS_DF, ..*net };
        let computed = icrc_v4(&guess, bth_to_pad);
        self.recover(&guess, bth_to_pad.len(), computed, received)
    }

    /// The same for a sum already made (for example while copying) with the fields of `guess`, over `len` bytes of BTH to
    /// pad.
    #[inline]
    pub fn recover(
        &self,
        guess: &IcrcV4,
        len: usize,
        computed: u32,
        received: [u8; 4],
    ) -> Option<HiddenFields> {
        let difference = computed ^ u32::from_le_bytes(received);
        let multiplier = match MULTIPLIERS.get(len / 4) {
            Some(m) if len.is_multiple_of(4) => *m,
            _ => untabled(len),
        };
        // The difference between the guessed and the real four bytes of Identification, flags and fragment offset.
        let [id0, id1, flags0, flags1] = multiply(difference, multiplier).to_le_bytes();
        let flags = u16::from_be_bytes([flags0, flags1]);
        if flags & !FLAGS_DF != 0 {
            return None;
        }
        Some(HiddenFields {
            id: guess.id ^ u16::from_be_bytes([id0, id1]),
            df: (guess.flags_frag ^ flags) & FLAGS_DF != 0,
        })
    }
}

/// No table has this length: raise x^−8 to its power.
#[cold]
fn untabled(len: usize) -> u32 {
    power_at_run_time(INVERSE_OF_X_8, (4 + IPV4_LEN - 8 + UDP_LEN + len) as u32)
}
