//! Byte ranges between a logical unit and standard output or input, for `everywire iscsi` and `everywire srp` alike.
//!
//! As with NVMe: whole blocks, or refused with the block size named; what comes through a pipe may end within a block, the rest
//! of which stays as it is.

use std::fmt::Display;
use std::io::Write;

use everywire_block::format_size;

use crate::error::{self, CliError};
use crate::nvme::io::{CHUNK, blocking, input_length, read_chunk};
use crate::progress::Progress;

/// A logical unit that somebody is logged in to.
pub trait LogicalUnit {
    /// Bytes of a logical block.
    fn block_size(&self) -> u64;

    /// Its size in bytes.
    fn bytes(&self) -> u64;

    /// Whole blocks from byte `offset`.
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, CliError>;

    /// Whole blocks to byte `offset`.
    async fn write(&self, offset: u64, bytes: Vec<u8>) -> Result<(), CliError>;

    /// Makes every completed write durable.
    async fn flush(&self) -> Result<(), CliError>;
}

/// `length` bytes from `offset`, all that follow for none, to standard output.
pub async fn copy_out(unit: &impl LogicalUnit, offset: u64, length: Option<u64>) -> Result<(), CliError> {
    let length = length.unwrap_or(unit.bytes().saturating_sub(offset));
    check_range(unit, offset, length)?;
    let progress = Progress::bytes(length);
    let mut done = 0;
    while done < length {
        let piece = (length - done).min(CHUNK as u64);
        let bytes = unit.read(offset + done, piece as usize).await?;
        blocking(move || std::io::stdout().write_all(&bytes).map_err(error::stdout)).await?;
        done += piece;
        progress.at(done);
    }
    blocking(|| std::io::stdout().flush().map_err(error::stdout)).await
}

/// Standard input to `offset`; `target` is who has it then.
pub async fn copy_in(unit: &impl LogicalUnit, offset: u64, target: impl Display) -> Result<(), CliError> {
    let known = input_length()?;
    check_range(unit, offset, known.unwrap_or(0))?;
    let progress = Progress::bytes(known.unwrap_or(0));
    let mut done = 0;
    let end = pour_in(unit, offset, &mut done, &progress).await;
    drop(progress);
    end.map_err(|error| error.and(format_args!("ended early: {done} bytes were written at {offset}")))?;
    error::note(format_args!("{done} bytes written to {target} at {offset}, and flushed"));
    Ok(())
}

/// All of standard input, flushed at its end. `done` counts what the target has.
async fn pour_in(
    unit: &impl LogicalUnit,
    offset: u64,
    done: &mut u64,
    progress: &Progress,
) -> Result<(), CliError> {
    let block = unit.block_size();
    loop {
        let mut bytes = blocking(read_chunk).await?;
        let (at, len) = (offset + *done, bytes.len() as u64);
        let whole = len.next_multiple_of(block);
        if len > 0 {
            check_range(unit, at, whole)?;
            if whole != len {
                let tail = len % block;
                let last = unit.read(at + len - tail, block as usize).await?;
                bytes.extend_from_slice(&last[tail as usize..]);
            }
            unit.write(at, bytes).await?;
        }
        *done += len;
        progress.at(*done);
        if len < CHUNK as u64 {
            return unit.flush().await;
        }
    }
}

/// Whole blocks, inside the logical unit.
fn check_range(unit: &impl LogicalUnit, offset: u64, length: u64) -> Result<(), CliError> {
    let (block, end) = (unit.block_size(), unit.bytes());
    if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
        return Err(CliError::usage(format_args!(
            "{length} bytes at {offset}: the logical unit has blocks of {block} bytes, and both must be multiples of that"
        )));
    }
    if offset.checked_add(length).is_none_or(|last| last > end) {
        return Err(CliError::usage(format_args!(
            "{length} bytes at {offset}: the logical unit ends at {end} ({})",
            format_size(end)
        )));
    }
    Ok(())
}
