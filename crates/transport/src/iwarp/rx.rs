//! The way in: the stream, however it is cut, becomes FPDUs, and those DDP segments.
//!
//! Read RFC 5044 §4 and §6 (what a receiver checks, and in which order) first. An FPDU that lies whole in what was read is
//! handed on where it lies; only one that is cut is buffered, and the buffer goes when it is empty, for most connections are
//! idle most of the time. The buffer grows with the bytes that come, never by what a length field promises. The CRC is
//! checked before anything is placed.

use std::borrow::Cow;

use everywire_wire::mpa::{CRC_LEN, LENGTH_LEN, MARKER_INTERVAL, Marker, crc32c, fpdu_len};
use everywire_wire::rdmap::LlpError;

use super::params::StreamParams;

/// Data bytes between two markers.
const BETWEEN: usize = MARKER_INTERVAL as usize - Marker::LEN;

/// Bytes of the stream that an FPDU of `len` bytes takes from position `pos` on, with its markers. A marker that would stand
/// right behind it belongs to the next.
pub(super) fn raw_len(pos: u64, len: usize) -> usize {
    let free = (pos.next_multiple_of(MARKER_INTERVAL) - pos) as usize;
    let markers = if len > free { 1 + (len - free - 1) / BETWEEN } else { 0 };
    len + markers * Marker::LEN
}

/// What lies in front.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Nothing whole: all is buffered.
    More,
    /// An FPDU is the first this many bytes of the input.
    Whole(usize),
    /// An FPDU is in the buffer.
    Buffered,
}

/// The receiving half of the stream.
#[derive(Debug, Default)]
pub(super) struct Rx {
    /// Stream position of the FPDU in front.
    pos: u64,
    /// The beginning of an FPDU.
    pub(super) partial: Vec<u8>,
    crc: bool,
    markers: bool,
}

impl Rx {
    pub(super) fn new(params: &StreamParams) -> Rx {
        Rx { pos: 0, partial: Vec::new(), crc: params.crc, markers: params.markers_receive }
    }

    /// Bytes up to and with the length field.
    fn head_len(&self) -> usize {
        let marker = self.markers && self.pos.is_multiple_of(MARKER_INTERVAL);
        LENGTH_LEN + if marker { Marker::LEN } else { 0 }
    }

    /// Bytes of the FPDU that begins here, markers included, once its length field is there.
    fn whole_len(&self, raw: &[u8]) -> Option<usize> {
        let head = self.head_len();
        let length = raw.get(head - LENGTH_LEN..head)?;
        let len = fpdu_len(usize::from(u16::from_be_bytes([length[0], length[1]])));
        Some(if self.markers { raw_len(self.pos, len) } else { len })
    }

    /// Looks for an FPDU in front of `buffer` and `bytes`; takes what it buffers off `bytes`.
    pub(super) fn cut(&self, buffer: &mut Vec<u8>, bytes: &mut &[u8]) -> Cut {
        if buffer.is_empty() {
            match self.whole_len(bytes) {
                Some(len) if len <= bytes.len() => return Cut::Whole(len),
                _ => {}
            }
        }
        // First what the length field needs, then what that says.
        let head = self.head_len();
        take(buffer, bytes, head);
        let Some(len) = self.whole_len(buffer) else { return Cut::More };
        if bytes.len() * 4 >= len {
            buffer.reserve_exact(len.saturating_sub(buffer.len()));
        }
        take(buffer, bytes, len);
        if buffer.len() == len { Cut::Buffered } else { Cut::More }
    }

    /// The DDP segment in a whole FPDU, checked, its markers taken out; moves on to the next.
    pub(super) fn open<'a>(&mut self, raw: &'a [u8]) -> Result<Cow<'a, [u8]>, LlpError> {
        let pos = self.pos;
        self.pos += raw.len() as u64;
        let body = raw.len() - CRC_LEN;
        if self.crc && crc32c(&raw[..body]) != raw[body..] {
            return Err(LlpError::Crc);
        }
        // RFC 5044 §8: that markers and lengths disagree (code 3) is said only of bytes whose CRC is right.
        Ok(if self.markers {
            Cow::Owned(segment(&unmark(pos, &raw[..body])?).to_vec())
        } else {
            Cow::Borrowed(segment(raw))
        })
    }
}

/// Moves bytes over until the buffer has `goal`.
fn take(buffer: &mut Vec<u8>, bytes: &mut &[u8], goal: usize) {
    let (now, later) = bytes.split_at(bytes.len().min(goal.saturating_sub(buffer.len())));
    buffer.extend_from_slice(now);
    *bytes = later;
}

/// The ULPDU that an FPDU's length field tells.
fn segment(fpdu: &[u8]) -> &[u8] {
    let len = usize::from(u16::from_be_bytes([fpdu[0], fpdu[1]]));
    &fpdu[LENGTH_LEN..LENGTH_LEN + len]
}

/// Takes the markers out of an FPDU at stream position `pos`; each must point at its beginning.
fn unmark(mut pos: u64, mut raw: &[u8]) -> Result<Vec<u8>, LlpError> {
    let start = if pos.is_multiple_of(MARKER_INTERVAL) { pos + Marker::LEN as u64 } else { pos };
    let mut plain = Vec::with_capacity(raw.len());
    while !raw.is_empty() {
        if pos.is_multiple_of(MARKER_INTERVAL) {
            let marker = Marker::parse(raw).map_err(|_| LlpError::Marker)?;
            if u64::from(marker.fpdu_ptr) != pos.saturating_sub(start) {
                return Err(LlpError::Marker);
            }
            raw = &raw[Marker::LEN..];
            pos += Marker::LEN as u64;
        }
        let take = raw.len().min((MARKER_INTERVAL - pos % MARKER_INTERVAL) as usize);
        plain.extend_from_slice(&raw[..take]);
        raw = &raw[take..];
        pos += take as u64;
    }
    Ok(plain)
}
