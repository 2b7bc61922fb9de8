//! One writer a file: an advisory lock (flock(2)) that lives as long as the file is open.
//!
//! Exclusive for a backend that writes, shared for one that only reads. It also keeps two backends of one process apart,
//! whatever names they have the file by, because each has opened it by itself. Programs that do not ask for the lock are not
//! stopped by it. Who holds it is read from /proc/locks (proc(5)) where that tells.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// How often the lock is asked for: the kernel may finish the I/O of a process that was killed before it lets go.
const TRIES: u32 = 6;
/// How long between two of them.
const PAUSE: Duration = Duration::from_millis(50);

/// The lock; given back when this is dropped, also where another holds the open file by then (a child between fork and exec).
pub(super) struct Lock(Arc<File>);

impl Lock {
    /// Takes the lock, or says who has it.
    pub(super) fn take(file: Arc<File>, read_only: bool) -> io::Result<Lock> {
        let how = if read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        for _ in 0..TRIES {
            match rustix::fs::flock(&file, how) {
                Ok(()) => return Ok(Lock(file)),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
                Err(error) => {
                    let error = io::Error::from(error);
                    let text = format!("it cannot be locked against a second writer: {error}");
                    return Err(io::Error::new(error.kind(), text));
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, in_use(&file, read_only)))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing does the same a little later.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

fn in_use(file: &File, read_only: bool) -> String {
    let own = std::process::id();
    let who = match holder(file) {
        Some(pid) if pid == own => format!("this process ({pid})"),
        Some(pid) => match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("process {pid} ({})", name.trim_end()),
            Err(_) => format!("process {pid}"),
        },
        None => "another process".to_owned(),
    };
    if read_only {
        format!("{who} has it open for writing; a file that is written has no other reader")
    } else {
        format!("{who} has it open already; a file has one writer")
    }
}

/// The process with a lock on the file, if it can be known.
fn holder(file: &File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    holder_in(&std::fs::read_to_string("/proc/locks").ok()?, major, minor, meta.ino())
}

/// The same of the table's text: `1: FLOCK  ADVISORY  WRITE 1234 08:01:131080 0 EOF`, the device in hexadecimal. Lines with
/// `->` wait for a lock. A holder in another PID namespace shows as 0.
fn holder_in(table: &str, major: u32, minor: u32, ino: u64) -> Option<u32> {
    let wanted = format!("{major:02x}:{minor:02x}:{ino}");
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (kind, pid, place) = (fields.next()?, fields.nth(2)?, fields.next()?);
        (kind == "FLOCK" && place == wanted).then(|| pid.parse().ok().filter(|pid| *pid > 0))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        // Lines in the form of proc(5), of Linux 6.
        let table = "1: POSIX  ADVISORY  WRITE 77 08:01:131080 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 1234 08:01:131080 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 99 08:01:131080 0 EOF\n\
            3: FLOCK  ADVISORY  READ  0 fe:0a:5 0 EOF\n";
        assert_eq!(holder_in(table, 8, 1, 131_080), Some(1234));
        assert_eq!(holder_in(table, 0xfe, 0xa, 5), None);
        assert_eq!(holder_in(table, 8, 1, 1), None);
    }
}
