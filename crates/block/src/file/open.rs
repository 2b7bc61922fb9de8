//! Opening a file or device: for direct I/O where that works, made with a size where there is none, refused where its size
//! is not what was asked for.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags};

use super::FileOptions;
use crate::size::format_size;

pub(super) fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Bytes to serve: the file's, which are made if it has none and `size` says how many.
pub(super) fn size_of(file: &File, device: bool, options: &FileOptions) -> io::Result<u64> {
    let mut bytes = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?;
    if let Some(size) = options.size {
        if bytes == 0 && !device && !options.read_only {
            file.set_len(size)
                .map_err(|e| io::Error::new(e.kind(), format!("give it {}: {e}", format_size(size))))?;
            file.sync_all()?;
            bytes = size;
        }
        if bytes < size || (bytes > size && !device) {
            let (has, asked) = (in_bytes(bytes), in_bytes(size));
            return Err(invalid(format!("it has {has} but size={asked} was asked for")));
        }
        bytes = size;
    }
    let block = u64::from(options.block_size);
    if bytes < block {
        return Err(invalid("smaller than one block: give it a size, as in size=1GiB".to_owned()));
    }
    if !bytes.is_multiple_of(block) {
        let has = in_bytes(bytes);
        return Err(invalid(format!("its size, {has}, is no multiple of the block size, {block} bytes")));
    }
    Ok(bytes)
}

/// A size as texts have it, with its bytes where that says more.
fn in_bytes(bytes: u64) -> String {
    let short = format_size(bytes);
    if short == format!("{bytes}B") { format!("{bytes} bytes") } else { format!("{short} ({bytes} bytes)") }
}

/// Opens for direct I/O if the file system and the block size allow it; says whether it did.
///
/// A block device that is to be written is claimed (`O_EXCL`), which fails if it is mounted or part of something that is.
pub(super) fn open_file(path: &Path, device: bool, options: &FileOptions) -> io::Result<(File, bool)> {
    let exclusive = if device && !options.read_only { libc::O_EXCL } else { 0 };
    let sync = if options.write_through { libc::O_DSYNC } else { 0 } | exclusive;
    let mut how = OpenOptions::new();
    how.read(true).write(!options.read_only);
    let open = |flags| {
        let mut how = how.clone();
        how.custom_flags(sync | flags).open(path).map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) if device => {
                io::Error::new(e.kind(), "the device is mounted, or another program's")
            }
            _ => e,
        })
    };
    if !options.buffered
        && let Ok(file) = open(libc::O_DIRECT)
        && direct_alignment(&file).is_some_and(|align| align <= options.block_size)
    {
        return Ok((file, true));
    }
    Ok((open(0)?, false))
}

/// Makes the file if there is none; whether it did.
pub(super) fn create(path: &Path) -> io::Result<bool> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => Ok(true),
        // A link that leads nowhere: the file is made where it leads.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && !path.exists() => {
            OpenOptions::new().write(true).create(true).truncate(false).open(path).map(|_| false)
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e),
    }
}

/// The offset alignment direct I/O needs on this file, in bytes; `None` where there is no direct I/O or no telling.
fn direct_alignment(file: &File) -> Option<u32> {
    if file.metadata().ok()?.file_type().is_block_device() {
        return rustix::fs::ioctl_blksszget(file).ok();
    }
    let stat = rustix::fs::statx(file.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let known = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    (known && stat.stx_dio_offset_align != 0 && stat.stx_dio_mem_align as usize <= crate::buffer::ALIGNMENT)
        .then_some(stat.stx_dio_offset_align)
}
