//! Many FPDUs of one connection for one vectored write.
//!
//! Read DESIGN §3 on transmits. With CRCs the payload is copied once, into the staging buffer, and summed while it is in the
//! cache: a peer may write the region meanwhile, and those very bytes must be sent. Without CRCs payload that memory can pin
//! is not copied at all; only headers are staged. What the socket does not take at once is the driver's to keep, and no more
//! is asked of that connection until it is written.

use super::params::ConnId;
use crate::memory::Pin;

/// Most bytes of a burst.
pub const MAX_BURST_BYTES: usize = 256 * 1024;
/// Most pieces of a burst: half of what one `writev` takes.
pub const MAX_BURST_PIECES: usize = 512;

/// A piece of a burst.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'a> {
    /// Bytes of the staging buffer.
    Bytes(&'a [u8]),
    /// Registered memory, held by the burst.
    Pinned(&'a Pin),
}

impl Piece<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Pinned(pin) => pin.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Debug)]
enum Part {
    /// The staging buffer up to here.
    StagedTo(usize),
    Pinned(Pin),
}

/// FPDUs in the order of the stream. Reuse it: its buffer is allocated once.
#[derive(Debug, Default)]
pub struct StreamBurst {
    conn: ConnId,
    staging: Vec<u8>,
    parts: Vec<Part>,
    pinned: usize,
    fpdus: usize,
}

impl StreamBurst {
    /// An empty burst, which allocates when first used.
    pub fn new() -> StreamBurst {
        StreamBurst::default()
    }

    /// The connection it is for.
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.staging.len() + self.pinned
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// FPDUs.
    pub fn fpdus(&self) -> usize {
        self.fpdus
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let mut at = 0;
        let rest = self.parts.iter().map(Some).chain([None]);
        rest.filter_map(move |part| match part {
            Some(Part::Pinned(pin)) => Some(Piece::Pinned(pin)),
            Some(Part::StagedTo(end)) => {
                Some(Piece::Bytes(&self.staging[std::mem::replace(&mut at, *end)..*end]))
            }
            None if at < self.staging.len() => Some(Piece::Bytes(&self.staging[at..])),
            None => None,
        })
    }

    /// Appends a copy of everything after the first `skip` bytes to `out`: what a driver keeps of a short write.
    pub fn copy_to(&self, mut skip: usize, out: &mut Vec<u8>) {
        for piece in self.pieces() {
            let here = skip.min(piece.len());
            skip -= here;
            match piece {
                Piece::Bytes(bytes) => out.extend_from_slice(&bytes[here..]),
                Piece::Pinned(pin) => pin.copy_to(here, out),
            }
        }
    }

    /// Empties it, for a connection.
    pub(super) fn begin(&mut self, conn: ConnId) {
        self.clear();
        self.conn = conn;
    }

    /// Empties it; memory that it held is let go.
    pub fn clear(&mut self) {
        self.staging.clear();
        self.parts.clear();
        self.pinned = 0;
        self.fpdus = 0;
    }

    /// Whether `len` more bytes fit.
    pub(super) fn admits(&self, len: usize) -> bool {
        self.len() + len <= MAX_BURST_BYTES && self.parts.len() + 2 <= MAX_BURST_PIECES
    }

    /// The staging buffer, to append to.
    pub(super) fn staging(&mut self) -> &mut Vec<u8> {
        &mut self.staging
    }

    /// Puts held memory after what is staged so far.
    pub(super) fn push_pin(&mut self, pin: Pin) {
        self.parts.push(Part::StagedTo(self.staging.len()));
        self.pinned += pin.len();
        self.parts.push(Part::Pinned(pin));
    }

    /// Takes back everything after `mark`.
    pub(super) fn rewind(&mut self, mark: Mark) {
        self.staging.truncate(mark.staged);
        self.parts.truncate(mark.parts);
        self.pinned = mark.pinned;
    }

    /// Where it is now.
    pub(super) fn mark(&self) -> Mark {
        Mark { staged: self.staging.len(), parts: self.parts.len(), pinned: self.pinned }
    }

    /// One FPDU more is complete.
    pub(super) fn finish_fpdu(&mut self) {
        self.fpdus += 1;
    }
}

/// A position in a burst to come back to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) staged: usize,
    parts: usize,
    pinned: usize,
}
