//! `everywire srp read` and `write`: byte ranges between a logical unit and standard output or input.
//!
//! As with NVMe: whole blocks, or refused with the block size named; what comes through a pipe may end within a block, the rest
//! of which stays as it is.

use std::io::Write;

use everywire_block::{format_size, parse_size};
use everywire_srp::rdma::initiator::Disk;

use super::{Ground, Place, failed};
use crate::error::{self, CliError};
use crate::nvme::io::{CHUNK, blocking, input_length, read_chunk};
use crate::progress::Progress;

/// Flags of `everywire srp read`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    everywire srp read 192.0.2.1 ID_EXT:IOC_GUID --offset 1MiB --length 64KiB > copy")]
pub struct ReadArgs {
    #[command(flatten)]
    place: Place,
    /// First byte: a whole number of blocks, as in 4096 or 1MiB.
    #[arg(long, default_value = "0", value_parser = size)]
    offset: u64,
    /// Bytes to read [default: all after the offset].
    #[arg(long, value_parser = size)]
    length: Option<u64>,
}

/// Flags of `everywire srp write`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    everywire srp write 192.0.2.1 ID_EXT:IOC_GUID --offset 1MiB < image")]
pub struct WriteArgs {
    #[command(flatten)]
    place: Place,
    /// Where the first byte goes: a whole number of blocks, as in 4096 or 1MiB.
    #[arg(long, default_value = "0", value_parser = size)]
    offset: u64,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|e| e.to_string())
}

/// Reads to standard output.
pub fn read(args: &ReadArgs) -> Result<(), CliError> {
    let ground = args.place.open()?;
    ground.block_on(async {
        let (initiator, disk) = args.place.disk(&ground).await?;
        let done = copy_out(&disk, args).await;
        initiator.log_out().await;
        done
    })
}

async fn copy_out(disk: &Disk, args: &ReadArgs) -> Result<(), CliError> {
    let length = args.length.unwrap_or(disk.capacity().bytes().saturating_sub(args.offset));
    check_range(disk, args.offset, length)?;
    let progress = Progress::bytes(length);
    let mut done = 0;
    while done < length {
        let piece = (length - done).min(CHUNK as u64);
        let bytes = disk.read(args.offset + done, piece as usize).await.map_err(failed)?;
        blocking(move || std::io::stdout().write_all(&bytes).map_err(error::stdout)).await?;
        done += piece;
        progress.at(done);
    }
    blocking(|| std::io::stdout().flush().map_err(error::stdout)).await
}

/// Writes standard input.
pub fn write(args: &WriteArgs) -> Result<(), CliError> {
    let ground = args.place.open()?;
    ground.block_on(async {
        let (initiator, disk) = args.place.disk(&ground).await?;
        let done = copy_in(&ground, &disk, args.offset).await;
        initiator.log_out().await;
        done
    })
}

async fn copy_in(ground: &Ground, disk: &Disk, offset: u64) -> Result<(), CliError> {
    let known = input_length()?;
    check_range(disk, offset, known.unwrap_or(0))?;
    let progress = Progress::bytes(known.unwrap_or(0));
    let mut done = 0;
    let end = pour_in(disk, offset, &mut done, &progress).await;
    drop(progress);
    end.map_err(|error| error.and(format_args!("ended early: {done} bytes were written at {offset}")))?;
    error::note(format_args!("{done} bytes written to {} at {offset}, and flushed", ground.address));
    Ok(())
}

/// All of standard input, flushed at its end. `done` counts what the target has.
async fn pour_in(disk: &Disk, offset: u64, done: &mut u64, progress: &Progress) -> Result<(), CliError> {
    let block = u64::from(disk.capacity().block_size);
    loop {
        let mut bytes = blocking(read_chunk).await?;
        let (at, len) = (offset + *done, bytes.len() as u64);
        let whole = len.next_multiple_of(block);
        if len > 0 {
            check_range(disk, at, whole)?;
            if whole != len {
                let tail = len % block;
                let last = disk.read(at + len - tail, block as usize).await.map_err(failed)?;
                bytes.extend_from_slice(&last[tail as usize..]);
            }
            disk.write(at, &bytes).await.map_err(failed)?;
        }
        *done += len;
        progress.at(*done);
        if len < CHUNK as u64 {
            return disk.flush().await.map_err(failed);
        }
    }
}

/// Whole blocks, inside the logical unit.
fn check_range(disk: &Disk, offset: u64, length: u64) -> Result<(), CliError> {
    let capacity = disk.capacity();
    let block = u64::from(capacity.block_size);
    if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
        return Err(CliError::usage(format_args!(
            "{length} bytes at {offset}: the logical unit has blocks of {block} bytes, and both must be multiples of that"
        )));
    }
    if offset.checked_add(length).is_none_or(|end| end > capacity.bytes()) {
        return Err(CliError::usage(format_args!(
            "{length} bytes at {offset}: the logical unit ends at {} ({})",
            capacity.bytes(),
            format_size(capacity.bytes())
        )));
    }
    Ok(())
}
