//! Additional header segments: the rest of a long CDB, and the read length of a bidirectional command.
//!
//! Read RFC 7143 §11.2.2. AHSLength counts the bytes after AHSType, without padding.

use bytes::{BufMut, Bytes, BytesMut};

/// Longest CDB: what SPC-4's variable-length format can say.
pub const MAX_CDB: usize = 260;
const EXTENDED_CDB: u8 = 1;
const READ_LENGTH: u8 = 2;

/// What the additional header segments of a SCSI command say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ahs {
    /// The CDB from byte 16 on.
    pub more_cdb: Bytes,
    /// Expected read length of a bidirectional command.
    pub read_length: Option<u32>,
}

/// Why additional header segments make no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AhsError {
    /// A segment goes past the end.
    #[error("an additional header segment goes past TotalAHSLength (RFC 7143 §11.2.2)")]
    Cut,
    /// An unknown type.
    #[error("additional header segment of unknown type {0} (RFC 7143 §11.2.2.1)")]
    Unknown(u8),
    /// A type that may come once came twice, or with a wrong length.
    #[error("additional header segment of type {0} is repeated or has a wrong length (RFC 7143 §11.2.2)")]
    Wrong(u8),
}

impl Ahs {
    /// Reads the segments of a SCSI command.
    ///
    /// # Errors
    /// See [`AhsError`].
    pub fn parse(bytes: &Bytes) -> Result<Ahs, AhsError> {
        let mut ahs = Ahs::default();
        let mut at = 0;
        while at < bytes.len() {
            let head = bytes.get(at..at + 4).ok_or(AhsError::Cut)?;
            let (len, kind) = (usize::from(u16::from_be_bytes([head[0], head[1]])), head[2]);
            let end = at + 3 + len;
            if end > bytes.len() {
                return Err(AhsError::Cut);
            }
            match kind {
                EXTENDED_CDB if ahs.more_cdb.is_empty() && len > 1 && len - 1 <= MAX_CDB - 16 => {
                    ahs.more_cdb = bytes.slice(at + 4..end);
                }
                READ_LENGTH if ahs.read_length.is_none() && len == 5 => {
                    let mut value = [0; 4];
                    value.copy_from_slice(&bytes[at + 4..end]);
                    ahs.read_length = Some(u32::from_be_bytes(value));
                }
                EXTENDED_CDB | READ_LENGTH => return Err(AhsError::Wrong(kind)),
                other => return Err(AhsError::Unknown(other)),
            }
            at = end.next_multiple_of(4);
        }
        Ok(ahs)
    }

    /// The segments as bytes.
    pub fn emit(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        if !self.more_cdb.is_empty() {
            bytes.put_u16(self.more_cdb.len() as u16 + 1);
            bytes.put_slice(&[EXTENDED_CDB, 0]);
            bytes.put_slice(&self.more_cdb);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        if let Some(length) = self.read_length {
            bytes.put_u16(5);
            bytes.put_slice(&[READ_LENGTH, 0]);
            bytes.put_u32(length);
        }
        bytes.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7143 §11.2.2.3 and §11.2.2.4: AHSLength is CDBLength − 15, and 5.
    #[test]
    fn lengths_of_the_standard() {
        let ahs = Ahs { more_cdb: Bytes::from_static(&[7; 16]), read_length: Some(0x1234) };
        let bytes = ahs.emit();
        assert_eq!(bytes[..4], [0, 17, 1, 0]);
        assert_eq!(bytes[20..28], [0, 5, 2, 0, 0, 0, 0x12, 0x34]);
        assert_eq!(Ahs::parse(&bytes).unwrap(), ahs);
    }

    #[test]
    fn nonsense_is_named() {
        let parse = |bytes: &'static [u8]| Ahs::parse(&Bytes::from_static(bytes));
        assert_eq!(parse(&[0, 9, 1, 0, 1, 2, 3, 4]), Err(AhsError::Cut));
        assert_eq!(parse(&[0, 1, 9, 0]), Err(AhsError::Unknown(9)));
        assert_eq!(parse(&[0, 1, 2, 0]), Err(AhsError::Wrong(2)));
    }
}
