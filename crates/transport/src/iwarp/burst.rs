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

/// FPDUs in the order of the stream. Reuse it: its buffer is allocated once, when first used.
#[derive(Debug, Default)]
pub struct StreamBurst {
    conn: ConnId,
    /// `MAX_BURST_BYTES` long once in use, so that nothing is cleared before it is overwritten; `staged` bytes count.
    buf: Box<[u8]>,
    staged: usize,
    parts: Vec<Part>,
    pinned: usize,
    fpdus: usize,
}

impl StreamBurst {
    /// An empty burst.
    pub fn new() -> StreamBurst {
        StreamBurst::default()
    }

    /// The connection it is for.
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.staged + self.pinned
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
        let parts = self.parts.iter().map(Some).chain([None]);
        let pieces = parts.map(move |part| match part {
            Some(Part::Pinned(pin)) => Piece::Pinned(pin),
            Some(Part::StagedTo(end)) => Piece::Bytes(&self.buf[std::mem::replace(&mut at, *end)..*end]),
            None => Piece::Bytes(&self.buf[at..self.staged]),
        });
        pieces.filter(|piece| !piece.is_empty())
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

    /// Empties it; memory that it held is let go.
    pub fn clear(&mut self) {
        self.staged = 0;
        self.parts.clear();
        self.pinned = 0;
        self.fpdus = 0;
    }

    /// Empties it, for a connection.
    pub(super) fn begin(&mut self, conn: ConnId) {
        self.clear();
        self.conn = conn;
        if self.buf.is_empty() {
            self.buf = vec![0; MAX_BURST_BYTES].into_boxed_slice();
        }
    }

    /// Empties it and puts `bytes` in, which are no FPDU: a frame of start-up, of at most [`MAX_BURST_BYTES`].
    pub fn set(&mut self, conn: ConnId, bytes: &[u8]) {
        self.begin(conn);
        self.stage(bytes.len()).copy_from_slice(bytes);
    }

    /// Whether `len` more bytes fit.
    pub(super) fn admits(&self, len: usize) -> bool {
        self.len() + len <= MAX_BURST_BYTES && self.parts.len() + 2 <= MAX_BURST_PIECES
    }

    /// The next `len` bytes of the staging buffer, to be written by the caller, who has asked [`StreamBurst::admits`].
    pub(super) fn stage(&mut self, len: usize) -> &mut [u8] {
        let at = self.staged;
        self.staged += len;
        &mut self.buf[at..at + len]
    }

    /// Everything staged from `at` on.
    pub(super) fn staged_from(&self, at: usize) -> &[u8] {
        &self.buf[at..self.staged]
    }

    /// Puts held memory after what is staged so far.
    pub(super) fn push_pin(&mut self, pin: Pin) {
        self.parts.push(Part::StagedTo(self.staged));
        self.pinned += pin.len();
        self.parts.push(Part::Pinned(pin));
    }

    /// Where it is now.
    pub(super) fn mark(&self) -> Mark {
        Mark { staged: self.staged, parts: self.parts.len(), pinned: self.pinned }
    }

    /// Takes back everything after `mark`.
    pub(super) fn rewind(&mut self, mark: Mark) {
        self.staged = mark.staged;
        self.parts.truncate(mark.parts);
        self.pinned = mark.pinned;
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
