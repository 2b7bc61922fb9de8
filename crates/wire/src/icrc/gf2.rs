//! Polynomials over GF(2) modulo the CRC-32 polynomial, bit-reflected as CRC-32 is.
//!
//! Bit 31 is the coefficient of x^0, bit 0 that of x^31, as in the CRC register. Multiplication is by integer
//! multiplication of every fourth bit (no carry can reach the next), reduction by the tables of a slicing CRC, which is here
//! too. About ten nanoseconds, without instructions that a target might lack.

/// The CRC-32 polynomial without x^32, reflected.
const POLY: u32 = 0xedb8_8320;

/// 1.
pub(super) const ONE: u32 = 1 << 31;

/// x^−32: what undoes four bytes of shifting.
pub(super) const INVERSE_OF_X_32: u32 = power(INVERSE_OF_X, 32);

/// x^−8: what undoes one byte of shifting.
pub(super) const INVERSE_OF_X_8: u32 = power(INVERSE_OF_X, 8);

/// x^−1. The polynomial has a constant term, so (poly − 1) / x is the inverse of x.
const INVERSE_OF_X: u32 = (POLY & !ONE) << 1 | 1;

/// `TABLES[k][b]`: byte `b` at distance k + 1 bytes, reduced.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut t = [[0; 256]; 8];
    let mut b = 0;
    while b < 256 {
        let mut v = b as u32;
        let mut k = 0;
        while k < 8 {
            let mut bit = 0;
            while bit < 8 {
                v = times_x(v);
                bit += 1;
            }
            t[k][b] = v;
            k += 1;
        }
        b += 1;
    }
    t
}

/// a·x.
const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ (POLY & (a & 1).wrapping_neg())
}

/// a·b, bit by bit: for constants.
pub(super) const fn multiply_slowly(mut a: u32, b: u32) -> u32 {
    let mut product = 0;
    let mut i = 32;
    while i > 0 {
        i -= 1;
        product ^= a & (b >> i & 1).wrapping_neg();
        a = times_x(a);
    }
    product
}

/// base^n.
const fn power(base: u32, mut n: u32) -> u32 {
    let (mut square, mut result) = (base, ONE);
    while n > 0 {
        if n & 1 != 0 {
            result = multiply_slowly(result, square);
        }
        square = multiply_slowly(square, square);
        n >>= 1;
    }
    result
}

/// base^n, for a length that no table has.
pub(super) fn power_at_run_time(base: u32, n: u32) -> u32 {
    power(base, n)
}

/// a·b.
#[inline]
pub(super) fn multiply(a: u32, b: u32) -> u32 {
    // Reflected operands give a product whose bit 62 is x^0; one shift makes that bit 63.
    let product = carryless(a, b) << 1;
    let (low, high) = (product as u32, (product >> 32) as u32);
    // `low` holds x^32 and up: the register of a CRC that still has four zero bytes to take.
    high ^ shift_32(low)
}

/// A CRC register after four zero bytes: a·x^32.
#[inline]
fn shift_32(register: u32) -> u32 {
    let [b0, b1, b2, b3] = register.to_le_bytes().map(usize::from);
    TABLES[3][b0] ^ TABLES[2][b1] ^ TABLES[1][b2] ^ TABLES[0][b3]
}

/// A CRC register after `bytes`: eight at a time, then four, then one by one. For short runs.
#[inline]
pub(super) fn shift_in(mut register: u32, bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    for chunk in eights {
        let [a, b, c, d, e, f, g, h] =
            (u64::from_le_bytes(*chunk) ^ u64::from(register)).to_le_bytes().map(usize::from);
        register = (TABLES[7][a] ^ TABLES[6][b] ^ TABLES[5][c] ^ TABLES[4][d])
            ^ (TABLES[3][e] ^ TABLES[2][f] ^ TABLES[1][g] ^ TABLES[0][h]);
    }
    let (four, rest) = rest.as_chunks::<4>();
    for chunk in four {
        register = shift_32(register ^ u32::from_le_bytes(*chunk));
    }
    for byte in rest {
        register = register >> 8 ^ TABLES[0][usize::from(register as u8 ^ byte)];
    }
    register
}

/// The product of polynomials of 32 coefficients. With only every fourth bit set, a sum of at most eight ones stays within
/// its four bits, so the lowest of each four is the sum modulo 2.
#[inline]
fn carryless(a: u32, b: u32) -> u64 {
    const M: u64 = 0x1111_1111_1111_1111;
    let (a, b) = (u64::from(a), u64::from(b));
    let a = [a & M, a & M << 1, a & M << 2, a & M << 3];
    let b = [b & M, b & M << 1, b & M << 2, b & M << 3];
    let mut product = 0;
    for k in 0..4 {
        let mut sum = 0;
        for i in 0..4 {
            sum ^= a[i].wrapping_mul(b[(k + 4 - i) % 4]);
        }
        product |= sum & M << k;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplication_agrees_with_the_bitwise_one() {
        let mut v = 0x1234_5678u32;
        for _ in 0..10_000 {
            let (a, b) = (v, v.rotate_left(13).wrapping_mul(0x9e37_79b9) ^ 0xffff_0000);
            assert_eq!(multiply(a, b), multiply_slowly(a, b));
            v = v.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        }
        assert_eq!(multiply(u32::MAX, u32::MAX), multiply_slowly(u32::MAX, u32::MAX));
    }

    #[test]
    fn short_sums_agree_with_crc32fast() {
        let bytes: Vec<u8> = (0..200).map(|i| (i as u8).wrapping_mul(37) ^ 0x5a).collect();
        for len in 0..bytes.len() {
            assert_eq!(!shift_in(!0, &bytes[..len]), crc32fast::hash(&bytes[..len]));
        }
        // The check value of CRC-32/ISO-HDLC in the public catalogues.
        assert_eq!(!shift_in(!0, b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn inverses_undo_shifts() {
        assert_eq!(multiply_slowly(INVERSE_OF_X, ONE >> 1), ONE);
        assert_eq!(multiply(INVERSE_OF_X_8, ONE >> 8), ONE);
        let x32 = times_x(1); // bit 0 is x^31
        assert_eq!(multiply(INVERSE_OF_X_32, x32), ONE);
    }
}
