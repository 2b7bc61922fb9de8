//! Big-endian fields of CDBs and parameter data. SPC-4 §3.5: multi-byte fields have their most significant byte first.
//!
//! Readers take a position and never fail: what lies past the end reads as zero, because a short parameter list is judged
//! by its length fields before its contents are looked at.

/// The byte at `at`, or 0 past the end.
pub(crate) fn u8_at(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

/// The `N`-byte field at `at`.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| u8_at(bytes, at + i))
}

/// The 2-byte field at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(field(bytes, at))
}

/// The 3-byte field at `at`.
pub(crate) fn u24_at(bytes: &[u8], at: usize) -> u32 {
    let [a, b, c] = field(bytes, at);
    u32::from_be_bytes([0, a, b, c])
}

/// The 4-byte field at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(field(bytes, at))
}

/// The 8-byte field at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(field(bytes, at))
}

/// Writes `value` at `at`.
pub(crate) fn put<const N: usize>(into: &mut [u8], at: usize, value: [u8; N]) {
    into[at..at + N].copy_from_slice(&value);
}

/// `text` in a field of `N` bytes: ASCII, left aligned, filled with spaces. SPC-4 §4.3.1.
pub(crate) fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (into, byte) in field.iter_mut().zip(text.bytes()) {
        *into = if (0x20..0x7f).contains(&byte) { byte } else { b'_' };
    }
    field
}

/// The text of an ASCII field, without the spaces and NULs that fill it.
pub(crate) fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_end_matches(['\0', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_past_the_end_are_zero() {
        assert_eq!(u32_at(&[1, 2, 3], 1), 0x0203_0000);
        assert_eq!(u24_at(&[1, 2, 3], 0), 0x01_0203);
        assert_eq!(u64_at(&[], 9), 0);
    }

    #[test]
    fn ascii_fields_hold_graphic_codes_only() {
        assert_eq!(&ascii::<6>("a\tb"), b"a_b   ");
        assert_eq!(&ascii::<2>("long"), b"lo");
        assert_eq!(text(b"ab  \0\0"), "ab");
    }
}
