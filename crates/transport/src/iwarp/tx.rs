//! The way out: DDP segments become FPDUs in a burst.
//!
//! Read RFC 5044 §4 (FPDU, markers, CRC) first. Payload comes from one of three sources and is copied and summed in one pass,
//! or pinned where no CRC is in use. Stream positions count from the first byte after the start frames: there the markers
//! are reckoned from, and by them a work request knows when its last byte was written.

use everywire_wire::mpa::{
    CRC_LEN, Crc32c, LENGTH_LEN, MARKER_INTERVAL, MAX_ULPDU, Marker, fpdu_len, pad_len,
};

use super::burst::{MAX_BURST_BYTES, StreamBurst};
use super::params::{MIN_ULPDU, StreamParams};
use super::rx::raw_len;
use crate::memory::{AccessError, Memory, PdId, RemoteAccess, Sge};

/// Most bytes given to the driver and not yet written.
pub const MAX_IN_FLIGHT: usize = MAX_BURST_BYTES;
/// Bytes copied at a time before they are summed: they are still in the first-level cache then.
const CHUNK: usize = 8 * 1024;
/// Shorter payload is copied even where it could be pinned: that costs less than another piece.
const PIN_FROM: usize = 4 * 1024;

/// Where payload comes from.
#[derive(Debug)]
pub(super) enum Source<'a> {
    /// Taken at post time, or made up here.
    Bytes(&'a [u8]),
    /// A work request's segments, from this offset on.
    Local { pd: PdId, sges: &'a [Sge], offset: u64 },
    /// A region that a peer reads; the access names all of the payload.
    Remote(RemoteAccess),
}

impl Source<'_> {
    fn copy<M: Memory>(&self, memory: &M, at: usize, into: &mut [u8]) -> Result<(), AccessError> {
        match self {
            Source::Bytes(bytes) => into.copy_from_slice(&bytes[at..at + into.len()]),
            Source::Local { pd, sges, offset } => memory.gather(*pd, sges, offset + at as u64, into)?,
            Source::Remote(all) => {
                let part =
                    RemoteAccess { va: all.va.wrapping_add(at as u64), length: into.len() as u64, ..*all };
                memory.read_remote(&part, into)?;
            }
        }
        Ok(())
    }

    fn pin<M: Memory>(&self, memory: &M, len: usize, burst: &mut StreamBurst) -> Result<bool, AccessError> {
        let mut take = |pin| burst.push_pin(pin);
        match self {
            Source::Bytes(_) => Ok(false),
            Source::Local { pd, sges, offset } => memory.pin(*pd, sges, *offset, len, &mut take),
            Source::Remote(all) => memory.pin_remote(all, &mut take),
        }
    }
}

/// The sending half of the stream.
#[derive(Debug, Default)]
pub(super) struct Tx {
    /// Stream position of the next byte.
    pub(super) pos: u64,
    /// Up to here the socket has taken it.
    pub(super) written: u64,
    crc: bool,
    markers: bool,
    max_ulpdu: usize,
}

impl Tx {
    pub(super) fn new(params: &StreamParams) -> Tx {
        Tx {
            pos: 0,
            written: 0,
            crc: params.crc,
            markers: params.markers_send,
            max_ulpdu: params.max_fpdu_payload.clamp(MIN_ULPDU, MAX_ULPDU),
        }
    }

    /// Longest payload behind a header of this length.
    pub(super) fn max_payload(&self, header: usize) -> usize {
        self.max_ulpdu - header
    }

    /// Bytes given to the driver and not yet written.
    pub(super) fn in_flight(&self) -> usize {
        (self.pos - self.written) as usize
    }

    /// More was written; never more than was given.
    pub(super) fn wrote(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.in_flight(), "more written than given");
        self.written = self.pos.min(self.written + bytes as u64);
    }

    /// Whether the FPDU of a segment this long may go now.
    pub(super) fn admits(&self, burst: &StreamBurst, segment: usize) -> bool {
        let len = self.raw_len(segment);
        // A single FPDU always goes on an idle stream.
        burst.admits(len) && (self.in_flight() == 0 || self.in_flight() + len <= MAX_IN_FLIGHT)
    }

    fn raw_len(&self, segment: usize) -> usize {
        let len = fpdu_len(segment);
        if self.markers { raw_len(self.pos, len) } else { len }
    }

    /// Appends the FPDU of `header` and `len` bytes of payload. On an error nothing was appended.
    pub(super) fn push<M: Memory>(
        &mut self,
        burst: &mut StreamBurst,
        memory: &M,
        header: &[u8],
        source: &Source<'_>,
        len: usize,
    ) -> Result<(), AccessError> {
        let mark = burst.mark();
        let before = burst.len();
        let pushed = match (self.markers, self.crc) {
            (true, _) => self.push_marked(burst, memory, header, source, len),
            (false, true) => push_summed(burst, memory, header, source, len),
            (false, false) => push_plain(burst, memory, header, source, len),
        };
        if let Err(error) = pushed {
            burst.rewind(mark);
            return Err(error);
        }
        self.pos += (burst.len() - before) as u64;
        burst.finish_fpdu();
        Ok(())
    }

    /// With a marker at every multiple of 512 of the stream. Built first, then spread: this is not the fast path.
    fn push_marked<M: Memory>(
        &self,
        burst: &mut StreamBurst,
        memory: &M,
        header: &[u8],
        source: &Source<'_>,
        len: usize,
    ) -> Result<(), AccessError> {
        let segment = header.len() + len;
        let mut body = Vec::with_capacity(LENGTH_LEN + segment + 3);
        body.extend_from_slice(&(segment as u16).to_be_bytes());
        body.extend_from_slice(header);
        let at = body.len();
        body.resize(at + len + pad_len(segment), 0);
        source.copy(memory, 0, &mut body[at..at + len])?;
        let first = burst.mark().staged;
        let mut pos = self.pos;
        // RFC 5044 §4.3: a marker right before the FPDU belongs to it and points at its length field with zero.
        let start = if pos.is_multiple_of(MARKER_INTERVAL) { pos + Marker::LEN as u64 } else { pos };
        let mut rest = &body[..];
        loop {
            if pos.is_multiple_of(MARKER_INTERVAL) {
                let fpdu_ptr = pos.saturating_sub(start) as u16;
                Marker { reserved: 0, fpdu_ptr }.emit(burst.stage(Marker::LEN));
                pos += Marker::LEN as u64;
            }
            if rest.is_empty() {
                break;
            }
            let take = rest.len().min((MARKER_INTERVAL - pos % MARKER_INTERVAL) as usize);
            burst.stage(take).copy_from_slice(&rest[..take]);
            rest = &rest[take..];
            pos += take as u64;
        }
        let crc = if self.crc { everywire_wire::mpa::crc32c(burst.staged_from(first)) } else { [0; CRC_LEN] };
        burst.stage(CRC_LEN).copy_from_slice(&crc);
        Ok(())
    }
}

fn stage_head(burst: &mut StreamBurst, header: &[u8], segment: usize) {
    let head = burst.stage(LENGTH_LEN + header.len());
    head[..LENGTH_LEN].copy_from_slice(&(segment as u16).to_be_bytes());
    head[LENGTH_LEN..].copy_from_slice(header);
}

/// With a CRC: one pass that copies a chunk and sums it.
fn push_summed<M: Memory>(
    burst: &mut StreamBurst,
    memory: &M,
    header: &[u8],
    source: &Source<'_>,
    len: usize,
) -> Result<(), AccessError> {
    let segment = header.len() + len;
    let first = burst.mark().staged;
    stage_head(burst, header, segment);
    if len <= CHUNK {
        source.copy(memory, 0, burst.stage(len))?;
        burst.stage(pad_len(segment)).fill(0);
        let crc = everywire_wire::mpa::crc32c(burst.staged_from(first));
        burst.stage(CRC_LEN).copy_from_slice(&crc);
        return Ok(());
    }
    let mut sum = Crc32c::new();
    sum.update(burst.staged_from(first));
    let mut at = 0;
    while at < len {
        let chunk = burst.stage(CHUNK.min(len - at));
        source.copy(memory, at, chunk)?;
        sum.update(chunk);
        at += chunk.len();
    }
    let pad = burst.stage(pad_len(segment));
    pad.fill(0);
    sum.update(pad);
    burst.stage(CRC_LEN).copy_from_slice(&sum.finish());
    Ok(())
}

/// Without a CRC: the field is zero (as Linux siw has it), and long payload is not copied where it can be pinned.
fn push_plain<M: Memory>(
    burst: &mut StreamBurst,
    memory: &M,
    header: &[u8],
    source: &Source<'_>,
    len: usize,
) -> Result<(), AccessError> {
    let segment = header.len() + len;
    stage_head(burst, header, segment);
    let pinned = len >= PIN_FROM && source.pin(memory, len, burst)?;
    if !pinned {
        source.copy(memory, 0, burst.stage(len))?;
    }
    burst.stage(pad_len(segment) + CRC_LEN).fill(0);
    Ok(())
}
