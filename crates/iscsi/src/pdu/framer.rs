//! From a byte stream to PDUs: cut anywhere, bounded by MaxRecvDataSegmentLength, digests checked, data not copied.
//!
//! Read RFC 7143 §11.1 and §13.1 (digests), §7.7 and §7.8 (what follows from a bad one: the caller's decision). The buffer never
//! holds more than one PDU beyond what was read at once.

use bytes::{Bytes, BytesMut};

use super::header::{BHS_LEN, Header};
use super::{MAX_AHS, Pdu, crc32c};

/// Bytes to read at once where no PDU's length is known.
const READ_AHEAD: usize = 64 << 10;

/// Which digests are in use on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// HeaderDigest=CRC32C.
    pub header: bool,
    /// DataDigest=CRC32C.
    pub data: bool,
}

/// Why a stream is no longer iSCSI.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The header's digest is wrong: the stream's framing is lost.
    #[error("header digest error: {carried:02x?} came, {computed:02x?} was computed (RFC 7143 §7.7)")]
    HeaderDigest {
        /// What came.
        carried: [u8; 4],
        /// What it should be.
        computed: [u8; 4],
    },
    /// The data's digest is wrong; the header is good.
    #[error("data digest error in a {} (RFC 7143 §7.8)", .0.name())]
    DataDigest(Box<Header>),
    /// More data than this side said it takes.
    #[error("a data segment of {len} bytes, MaxRecvDataSegmentLength is {limit} (RFC 7143 §13.12)")]
    DataTooLong {
        /// What the header says.
        len: usize,
        /// What was declared.
        limit: usize,
    },
    /// An opcode that the standard does not have.
    #[error("opcode {:#04x} is reserved (RFC 7143 §11.2.1.2)", .0[0] & 0x3f)]
    Opcode(Box<[u8; BHS_LEN]>),
    /// A message whose length is not what its header says.
    #[error("a PDU of {len} bytes whose header says {said}")]
    Length {
        /// What came.
        len: usize,
        /// What it should be.
        said: usize,
    },
}

/// Lengths that a header says.
#[derive(Clone, Copy)]
struct Lengths {
    ahs: usize,
    data: usize,
}

fn lengths(bhs: &[u8; BHS_LEN], max_data: usize) -> Result<Lengths, FrameError> {
    let data = usize::from(bhs[5]) << 16 | usize::from(bhs[6]) << 8 | usize::from(bhs[7]);
    if data > max_data {
        return Err(FrameError::DataTooLong { len: data, limit: max_data });
    }
    Ok(Lengths { ahs: usize::from(bhs[4]) * 4, data })
}

fn header_of(bhs: &[u8; BHS_LEN]) -> Result<Header, FrameError> {
    Header::parse(bhs).ok_or_else(|| FrameError::Opcode(Box::new(*bhs)))
}

fn first(bytes: &[u8]) -> Option<[u8; BHS_LEN]> {
    bytes.get(..BHS_LEN)?.try_into().ok()
}

/// One PDU without digests that fills `bytes`, but for its padding, which may be missing.
pub(super) fn whole(bytes: &Bytes, max_data: usize) -> Result<Pdu, FrameError> {
    let bhs = first(bytes).ok_or(FrameError::Length { len: bytes.len(), said: BHS_LEN })?;
    let Lengths { ahs, data } = lengths(&bhs, max_data)?;
    let (at, end) = (BHS_LEN + ahs, BHS_LEN + ahs + data);
    if bytes.len() != end && bytes.len() != end.next_multiple_of(4) {
        return Err(FrameError::Length { len: bytes.len(), said: end });
    }
    Ok(Pdu {
        immediate: bhs[0] & 0x40 != 0,
        header: header_of(&bhs)?,
        ahs: bytes.slice(BHS_LEN..at),
        data: bytes.slice(at..end),
    })
}

/// Cuts a stream into PDUs.
#[derive(Debug)]
pub struct Framer {
    buffer: BytesMut,
    digests: Digests,
    max_data: usize,
}

impl Framer {
    /// No digests yet; `max_data` bytes are the most of a data segment.
    pub fn new(max_data: usize) -> Framer {
        Framer { buffer: BytesMut::new(), digests: Digests::default(), max_data }
    }

    /// From the next PDU on, these hold.
    pub fn set(&mut self, digests: Digests, max_data: usize) {
        self.digests = digests;
        self.max_data = max_data;
    }

    /// Where bytes of the stream are appended. There is room for the rest of a PDU that has begun.
    pub fn space(&mut self) -> &mut BytesMut {
        let missing = self.missing().max(READ_AHEAD);
        if self.buffer.capacity() - self.buffer.len() < missing / 2 {
            self.buffer.reserve(missing);
        }
        &mut self.buffer
    }

    /// Bytes that are there and belong to no whole PDU yet.
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// Bytes until the PDU that has begun is whole; 0 if unknown.
    fn missing(&self) -> usize {
        let Some(bhs) = first(&self.buffer) else { return 0 };
        match lengths(&bhs, self.max_data) {
            Ok(lengths) => self.length(lengths).saturating_sub(self.buffer.len()),
            Err(_) => 0,
        }
    }

    fn head_digest(&self) -> usize {
        if self.digests.header { 4 } else { 0 }
    }

    fn length(&self, Lengths { ahs, data }: Lengths) -> usize {
        let tail = match data {
            0 => 0,
            len => len.next_multiple_of(4) + if self.digests.data { 4 } else { 0 },
        };
        BHS_LEN + ahs + self.head_digest() + tail
    }

    /// The next whole PDU; `None` if more bytes are needed.
    ///
    /// # Errors
    /// See [`FrameError`]. After [`FrameError::DataDigest`] and [`FrameError::Opcode`] the stream goes on behind that PDU; after
    /// the others it cannot.
    pub fn next_pdu(&mut self) -> Result<Option<Pdu>, FrameError> {
        let Some(bhs) = first(&self.buffer) else { return Ok(None) };
        // With a digest, no length is believed before the digest was checked; it lies behind the AHS, whose length is bounded.
        let head = BHS_LEN + (usize::from(bhs[4]) * 4).min(MAX_AHS);
        if self.digests.header {
            let Some(carried) = self.buffer.get(head..head + 4) else { return Ok(None) };
            let computed = crc32c(&[&self.buffer[..head]]);
            if carried != computed {
                let mut sum = [0; 4];
                sum.copy_from_slice(carried);
                return Err(FrameError::HeaderDigest { carried: sum, computed });
            }
        }
        let lens = lengths(&bhs, self.max_data)?;
        let total = self.length(lens);
        if self.buffer.len() < total {
            return Ok(None);
        }
        let bytes = self.buffer.split_to(total).freeze();
        let header = header_of(&bhs)?;
        let at = head + self.head_digest();
        let data = bytes.slice(at..at + lens.data);
        if self.digests.data && lens.data != 0 {
            let padded = at + lens.data.next_multiple_of(4);
            if bytes[padded..padded + 4] != crc32c(&[&bytes[at..padded]]) {
                return Err(FrameError::DataDigest(Box::new(header)));
            }
        }
        Ok(Some(Pdu { immediate: bhs[0] & 0x40 != 0, header, ahs: bytes.slice(BHS_LEN..head), data }))
    }
}
