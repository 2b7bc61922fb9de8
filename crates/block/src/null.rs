//! The null backend, for benchmarks: reads give zeroes, writes vanish, everything completes at once.
//! It still checks ranges, so that a benchmark of a protocol exercises the protocol's error paths too.

use crate::backend::{Backend, Geometry, IoBuf, IoFuture, IoResult};
use crate::error::BlockOp;
use crate::size::format_size;

static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];

/// Stores nothing.
#[derive(Debug)]
pub struct NullBackend {
    geometry: Geometry,
}

impl NullBackend {
    /// A null backend of `blocks` blocks of `block_size` bytes.
    pub fn new(block_size: u32, blocks: u64) -> Self {
        Self {
            geometry: Geometry {
                block_size,
                blocks,
                optimal_io: block_size,
                read_only: false,
                volatile_cache: false,
                discard: true,
            },
        }
    }

    fn checked(&self, op: BlockOp, offset: u64, len: u64) -> IoFuture<IoResult> {
        IoFuture::ready(self.geometry.check(op, offset, len))
    }
}

/// Fills `into` with zeroes.
pub(crate) fn store_zeroes(into: &IoBuf, mut at: usize, len: usize) {
    let end = at + len;
    while at < end {
        let n = (end - at).min(ZEROES.len());
        into.store(at, &ZEROES[..n]);
        at += n;
    }
}

impl Backend for NullBackend {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, into: &IoBuf) -> IoFuture<IoResult> {
        let checked = self.geometry.check(BlockOp::Read, offset, into.len() as u64);
        if checked.is_ok() {
            store_zeroes(into, 0, into.len());
        }
        IoFuture::ready(checked)
    }

    fn write(&self, offset: u64, from: &IoBuf, _fua: bool) -> IoFuture<IoResult> {
        self.checked(BlockOp::Write, offset, from.len() as u64)
    }

    fn flush(&self) -> IoFuture<IoResult> {
        IoFuture::ready(Ok(()))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _may_unmap: bool) -> IoFuture<IoResult> {
        self.checked(BlockOp::WriteZeroes, offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<IoResult> {
        self.checked(BlockOp::Discard, offset, len)
    }

    fn describe(&self) -> String {
        format!("null, {}", format_size(self.geometry.bytes()))
    }
}
