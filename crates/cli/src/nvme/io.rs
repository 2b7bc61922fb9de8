//! `everywire nvme read` and `write`: byte ranges between a namespace and standard output or input.
//!
//! Ranges begin with a block, or are refused with the block size named. They may end within one: of that, only so many bytes are
//! given out, and the rest stays as it is when it is written. Standard input and output may block for as long as they
//! like: they are used on another thread, so that keep alives go on.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;

use everywire_block::{format_size, parse_size};
use everywire_nvmeof::rdma::Namespace;

use super::{Ground, Place, impatient, nvme};
use crate::error::{self, CliError};
use crate::progress::Progress;

/// Bytes moved between two looks at the progress bar.
pub const CHUNK: usize = 4 << 20;

/// Flags of `everywire nvme read`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    everywire nvme read 192.0.2.1 nqn.2026-11.example:disk --offset 1MiB --length 64KiB > copy")]
pub struct ReadArgs {
    #[command(flatten)]
    place: Place,
    /// First byte: a whole number of blocks, as in 4096 or 1MiB.
    #[arg(long, default_value = "0", value_parser = size)]
    offset: u64,
    /// Bytes to read, whole blocks or not [default: all after the offset].
    #[arg(long, value_parser = size)]
    length: Option<u64>,
}

/// Flags of `everywire nvme write`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    everywire nvme write 192.0.2.1 nqn.2026-11.example:disk --offset 1MiB < image\n\n\
    Input may end within a block; the rest of that block stays as it is. A file that does not fit is refused before anything\n    \
    is written; of a pipe, whose length nobody knows, what fits is written.")]
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
        let (controller, namespace) = args.place.namespace(&ground, impatient()).await?;
        let done = copy_out(&namespace, args).await;
        controller.disconnect().await.map_err(nvme)?;
        done
    })
}

async fn copy_out(namespace: &Namespace, args: &ReadArgs) -> Result<(), CliError> {
    let capacity = namespace.info().bytes();
    let length = args.length.unwrap_or(capacity.saturating_sub(args.offset));
    check_range(namespace, args.offset, length)?;
    let progress = Progress::bytes(length);
    let block = u64::from(namespace.info().block_size);
    let mut done = 0;
    while done < length {
        let piece = (length - done).min(CHUNK as u64);
        let whole = piece.next_multiple_of(block) as usize;
        let mut bytes = namespace.read(args.offset + done, whole).await.map_err(nvme)?;
        bytes.truncate(piece as usize);
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
        let (controller, namespace) = args.place.namespace(&ground, impatient()).await?;
        let done = copy_in(&ground, &namespace, args).await;
        controller.disconnect().await.map_err(nvme)?;
        done
    })
}

async fn copy_in(ground: &Ground, namespace: &Namespace, args: &WriteArgs) -> Result<(), CliError> {
    let known = input_length()?;
    // A pipe's length is known at its end; all that can be said before is said before anything is written.
    check_range(namespace, args.offset, known.unwrap_or(0))?;
    let progress = Progress::bytes(known.unwrap_or(0));
    let mut done = 0;
    let end = pour_in(namespace, args.offset, &mut done, &progress).await;
    drop(progress);
    end.map_err(|error| {
        error.and(format_args!("ended early: {done} bytes were written at {}", args.offset))
    })?;
    error::note(format_args!("{done} bytes written to {} at {}, and flushed", ground.address, args.offset));
    Ok(())
}

/// All of standard input, flushed at its end. `done` counts what the controller has.
async fn pour_in(
    namespace: &Namespace,
    offset: u64,
    done: &mut u64,
    progress: &Progress,
) -> Result<(), CliError> {
    let block = u64::from(namespace.info().block_size);
    loop {
        let mut bytes = blocking(read_chunk).await?;
        let (at, len) = (offset + *done, bytes.len() as u64);
        let whole = len.next_multiple_of(block);
        if len > 0 {
            check_range(namespace, at, len)?;
            if whole != len {
                let tail = len % block;
                let last = namespace.read(at + len - tail, block as usize).await.map_err(nvme)?;
                bytes.extend_from_slice(&last[tail as usize..]);
            }
            namespace.write(at, &bytes).await.map_err(nvme)?;
        }
        *done += len;
        progress.at(*done);
        if len < CHUNK as u64 {
            return namespace.flush().await.map_err(nvme);
        }
    }
}

/// The length of standard input, if it is a file and starts at its beginning.
pub fn input_length() -> Result<Option<u64>, CliError> {
    let stdin = |e| CliError::failed(format_args!("standard input: {e}"));
    let mut file = File::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(stdin)?);
    let metadata = file.metadata().map_err(stdin)?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let at = std::io::Seek::stream_position(&mut file).map_err(stdin)?;
    Ok(Some(metadata.len().saturating_sub(at)))
}

/// A whole chunk of standard input; less at its end.
pub fn read_chunk() -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::with_capacity(CHUNK);
    let stdin = std::io::stdin();
    let read = stdin.lock().take(CHUNK as u64).read_to_end(&mut bytes);
    read.map_err(|e| CliError::failed(format_args!("standard input: {e}")))?;
    Ok(bytes)
}

/// Runs what may block on another thread.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CliError> + Send + 'static,
) -> Result<T, CliError> {
    tokio::task::spawn_blocking(work).await.map_err(CliError::failed)?
}

/// Begins with a block, and lies inside the namespace, which ends with one.
fn check_range(namespace: &Namespace, offset: u64, length: u64) -> Result<(), CliError> {
    let info = namespace.info();
    let block = u64::from(info.block_size);
    if !offset.is_multiple_of(block) {
        return Err(CliError::usage(format_args!(
            "offset {offset}: namespace {} has blocks of {block} bytes, and an offset is a multiple of that",
            info.nsid
        )));
    }
    if offset > info.bytes() {
        return Err(CliError::usage(format_args!(
            "offset {offset} ({}): namespace {} ends at {} ({})",
            format_size(offset),
            info.nsid,
            info.bytes(),
            format_size(info.bytes())
        )));
    }
    if offset.checked_add(length).is_none_or(|end| end > info.bytes()) {
        return Err(CliError::usage(format_args!(
            "{length} bytes at {offset}: namespace {} ends at {} ({})",
            info.nsid,
            info.bytes(),
            format_size(info.bytes())
        )));
    }
    Ok(())
}
