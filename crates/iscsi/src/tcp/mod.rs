//! iSCSI on a byte stream: PDUs with digests, and the datamover that RFC 7143 has built in (R2T, Data-Out, Data-In).
//!
//! Read RFC 7143 §4.2.5 and §11.7, §11.8. The stream is a trait, so that the same code runs on sockets and in a simulator;
//! `target` and `initiator` drive one connection each as one task.

pub mod initiator;
mod mover;
mod outbox;
pub mod target;
mod transfers;

use std::io;
use std::task::{Context, Poll};

use bytes::BytesMut;

pub(crate) use outbox::Outbox;

/// A connected byte stream of one thread. Dropped, it is closed.
pub trait ByteStream {
    /// Appends what has come to `into`, in the room that is there; 0 bytes is the stream's end.
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>>;

    /// Sends from the start of these pieces; how many bytes were taken.
    fn poll_write(&mut self, cx: &mut Context<'_>, pieces: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>>;
}
