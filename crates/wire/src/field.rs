//! Big-endian fields of fixed-size headers.
//!
//! Everything takes the offset as a constant expression over an array whose length is known, so after inlining the bounds
//! checks are gone. Only for use by the other modules of this crate.

use crate::WireError;

/// The first `N` bytes of `bytes`, or the error that says how many are missing.
#[inline(always)]
pub(crate) fn head<'a, const N: usize>(
    what: &'static str,
    bytes: &'a [u8],
) -> Result<&'a [u8; N], WireError> {
    bytes.first_chunk::<N>().ok_or(WireError::Truncated { what, need: N, have: bytes.len() })
}

/// The first `N` bytes of an output buffer.
///
/// # Panics
/// If the buffer is shorter: output buffers are the caller's own, never the network's.
#[inline(always)]
#[track_caller]
pub(crate) fn head_mut<'a, const N: usize>(what: &'static str, out: &'a mut [u8]) -> &'a mut [u8; N] {
    let have = out.len();
    match out.first_chunk_mut::<N>() {
        Some(head) => head,
        None => panic!("{what} needs an output buffer of {N} bytes, not {have}"),
    }
}

/// `N` bytes from offset `at`.
#[inline(always)]
pub(crate) fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[at..at + N]);
    out
}

#[inline(always)]
pub(crate) fn get16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(b, at))
}

/// 24 bits.
#[inline(always)]
pub(crate) fn get24(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]])
}

#[inline(always)]
pub(crate) fn get32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(b, at))
}

#[inline(always)]
pub(crate) fn get64(b: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(b, at))
}

#[inline(always)]
pub(crate) fn put(b: &mut [u8], at: usize, bytes: &[u8]) {
    b[at..at + bytes.len()].copy_from_slice(bytes);
}

#[inline(always)]
pub(crate) fn put16(b: &mut [u8], at: usize, v: u16) {
    put(b, at, &v.to_be_bytes());
}

/// The low 24 bits of `v`.
#[inline(always)]
pub(crate) fn put24(b: &mut [u8], at: usize, v: u32) {
    let [_, x, y, z] = v.to_be_bytes();
    put(b, at, &[x, y, z]);
}

#[inline(always)]
pub(crate) fn put32(b: &mut [u8], at: usize, v: u32) {
    put(b, at, &v.to_be_bytes());
}

#[inline(always)]
pub(crate) fn put64(b: &mut [u8], at: usize, v: u64) {
    put(b, at, &v.to_be_bytes());
}
