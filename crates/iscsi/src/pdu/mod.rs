//! Protocol data units: header, additional header segments, data, and how they lie in a stream.
//!
//! Read RFC 7143 §11.1 and §11.2. [`Framer`] cuts a byte stream into [`Pdu`]s without copying their data; [`Pdu::emit`] gives
//! the pieces to send. What the fields mean is decided by `session` and `login`. iSER carries the same bytes without digests
//! in SENDs: [`Pdu::from_bytes`].

mod ahs;
mod codes;
mod digest;
mod field;
mod flags;
mod framer;
mod header;
#[cfg(test)]
mod tests;

pub use ahs::{Ahs, AhsError, MAX_CDB};
pub use codes::{AsyncEvent, LogoutReason, LogoutResult, RejectReason, TaskFunction, TaskResult};
pub use digest::crc32c;
pub use framer::{Digests, FrameError, Framer};
pub use header::*;

use bytes::{Bytes, BytesMut};

/// Most bytes of additional header segments: TotalAHSLength is one byte of words.
pub const MAX_AHS: usize = 255 * 4;
/// Largest data segment that the header can say.
pub const MAX_DATA: usize = (1 << 24) - 1;

/// One PDU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pdu {
    /// Byte 0, the I bit: delivered as soon as it comes.
    pub immediate: bool,
    /// The header.
    pub header: Header,
    /// Additional header segments, as they came.
    pub ahs: Bytes,
    /// The data segment, without padding.
    pub data: Bytes,
}

/// Zero bytes up to a multiple of four.
const PAD: [u8; 3] = [0; 3];

fn padding(len: usize) -> usize {
    len.next_multiple_of(4) - len
}

impl Pdu {
    /// A PDU of a header alone.
    pub fn new(header: impl Into<Header>) -> Pdu {
        Pdu { immediate: false, header: header.into(), ahs: Bytes::new(), data: Bytes::new() }
    }

    /// The same with data.
    pub fn with_data(header: impl Into<Header>, data: impl Into<Bytes>) -> Pdu {
        Pdu { data: data.into(), ..Pdu::new(header) }
    }

    /// The same with the immediate bit.
    pub fn immediate(self) -> Pdu {
        Pdu { immediate: true, ..self }
    }

    /// The header's 48 bytes, lengths included.
    pub fn bhs(&self) -> [u8; BHS_LEN] {
        self.bhs_before(self.data.len())
    }

    /// The same in front of so many bytes of data that lie somewhere else.
    pub(crate) fn bhs_before(&self, data: usize) -> [u8; BHS_LEN] {
        let mut bytes = [0; BHS_LEN];
        bytes[0] = if self.immediate { 0x40 } else { 0 };
        self.header.emit(&mut bytes);
        debug_assert!(self.ahs.len() <= MAX_AHS && self.ahs.len().is_multiple_of(4));
        bytes[4] = (self.ahs.len() / 4) as u8;
        bytes[5..8].copy_from_slice(&(data as u32).to_be_bytes()[1..]);
        bytes
    }

    /// Bytes that it takes in a stream.
    pub fn wire_len(&self, digests: Digests) -> usize {
        let digest = |on: bool| if on { 4 } else { 0 };
        let data = match self.data.len() {
            0 => 0,
            len => len.next_multiple_of(4) + digest(digests.data),
        };
        BHS_LEN + self.ahs.len() + digest(digests.header) + data
    }

    /// The pieces to send, in order; the data segment is not copied.
    pub fn emit(&self, digests: Digests, mut piece: impl FnMut(Bytes)) {
        let mut head = BytesMut::with_capacity(BHS_LEN + self.ahs.len() + 4);
        head.extend_from_slice(&self.bhs());
        head.extend_from_slice(&self.ahs);
        if digests.header {
            let sum = crc32c(&[&head]);
            head.extend_from_slice(&sum);
        }
        piece(head.freeze());
        if self.data.is_empty() {
            return;
        }
        let pad = &PAD[..padding(self.data.len())];
        let mut tail = BytesMut::with_capacity(8);
        tail.extend_from_slice(pad);
        if digests.data {
            tail.extend_from_slice(&crc32c(&[&self.data, pad]));
        }
        piece(self.data.clone());
        if !tail.is_empty() {
            piece(tail.freeze());
        }
    }

    /// All of it in one piece.
    pub fn to_bytes(&self, digests: Digests) -> Bytes {
        let mut all = BytesMut::with_capacity(self.wire_len(digests));
        self.emit(digests, |piece| all.extend_from_slice(&piece));
        all.freeze()
    }

    /// A whole PDU without digests, as an iSER SEND carries it (RFC 7145 §9.2). Padding may be left out.
    ///
    /// # Errors
    /// What [`Framer`] refuses; also a length that differs from what the header says.
    pub fn from_bytes(bytes: &Bytes, max_data: usize) -> Result<Pdu, FrameError> {
        framer::whole(bytes, max_data)
    }
}
