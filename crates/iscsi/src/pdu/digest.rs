//! The digest of headers and data: CRC32C, RFC 7143 §13.1, sent low byte first.

use crc_fast::{CrcAlgorithm, Digest};

/// The digest over these pieces, as it lies in the stream.
pub fn crc32c(pieces: &[&[u8]]) -> [u8; 4] {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    pieces.iter().for_each(|piece| digest.update(piece));
    (digest.finalize() as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7143 appendix A.4.
    #[test]
    fn examples_of_the_standard() {
        assert_eq!(crc32c(&[&[0; 32]]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[&[0xff; 32]]), [0x43, 0xab, 0xa8, 0x62]);
        let up: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&[&up[..7], &up[7..]]), [0x4e, 0x79, 0xdd, 0x46]);
        let down: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(&[&down]), [0x5c, 0xdb, 0x3f, 0x11]);
        let command: [u8; 48] = [
            0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0,
            0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(crc32c(&[&command]), [0x56, 0x3a, 0x96, 0xd9]);
    }
}
