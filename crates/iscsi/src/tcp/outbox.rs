//! Pieces of PDUs on their way into a stream: queued without a copy, written many at once.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};

use super::ByteStream;
use crate::pdu::{Digests, Pdu};

/// Pieces handed to one write.
const PIECES: usize = 64;
/// Bytes queued beyond which nothing more is read from the peer.
const ENOUGH: usize = 8 << 20;

/// What waits to be written.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    digests: Digests,
}

impl Outbox {
    /// From the next PDU on, these digests are sent.
    pub(crate) fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    pub(crate) fn push(&mut self, pdu: &Pdu) {
        let (pieces, bytes) = (&mut self.pieces, &mut self.bytes);
        pdu.emit(self.digests, |piece| {
            *bytes += piece.len();
            pieces.push_back(piece);
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether the peer should take something before it is asked for more.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes > ENOUGH
    }

    /// Writes until everything is written.
    pub(crate) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut impl ByteStream,
    ) -> Poll<io::Result<()>> {
        while !self.pieces.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let count = self.pieces.len().min(PIECES);
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                *slice = IoSlice::new(piece);
            }
            match stream.poll_write(cx, &slices[..count]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => self.written(written),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn written(&mut self, mut count: usize) {
        self.bytes -= count;
        while let Some(first) = self.pieces.front_mut().filter(|_| count > 0) {
            if first.len() > count {
                return first.advance(count);
            }
            count -= first.len();
            self.pieces.pop_front();
        }
    }
}
