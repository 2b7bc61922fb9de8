//! Where a running fabric's sockets are: a folder that only its user may enter.
//!
//! `$XDG_RUNTIME_DIR/everywire`, else `/tmp/everywire-UID`. Each fabric has three files there: `NAME.lock`, which its process
//! holds locked as long as it runs, `NAME.attach` and `NAME.control`, its sockets. What a killed process has left behind is
//! taken over.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::plan::check_name;

/// The file endings.
const LOCK: &str = "lock";
const ATTACH: &str = "attach";
const CONTROL: &str = "control";

/// The folder, which may not exist yet.
pub fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(path) if Path::new(&path).is_absolute() => Path::new(&path).join("everywire"),
        _ => PathBuf::from(format!("/tmp/everywire-{}", rustix::process::getuid().as_raw())),
    }
}

fn file(name: &str, ending: &str) -> PathBuf {
    folder().join(format!("{name}.{ending}"))
}

/// Where programs attach.
pub fn attach_socket(name: &str) -> PathBuf {
    file(name, ATTACH)
}

/// Where a fabric is asked and told.
pub fn control_socket(name: &str) -> PathBuf {
    file(name, CONTROL)
}

/// Makes the folder, or makes sure that it is ours alone: a folder in /tmp may be anybody's.
fn make_folder() -> io::Result<PathBuf> {
    let folder = folder();
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let meta = fs::symlink_metadata(&folder)?;
            let own = rustix::process::getuid().as_raw();
            if !meta.is_dir() || meta.uid() != own || meta.mode() & 0o077 != 0 {
                return Err(io::Error::other(format!(
                    "{} is not a folder that only user {own} may enter (mode 0700)",
                    folder.display()
                )));
            }
        }
        Err(error) => return Err(with_path(&folder, &error)),
    }
    Ok(folder)
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A name that this process has on this machine, until dropped.
#[derive(Debug)]
pub struct Claim {
    name: String,
    /// Locked.
    _lock: File,
}

impl Claim {
    /// Takes a name.
    ///
    /// # Errors
    /// Another process has it, whose number is told; or the folder cannot be made.
    pub fn take(name: &str) -> io::Result<Claim> {
        check_name("name", name).map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))?;
        make_folder()?;
        let path = file(name, LOCK);
        let mut options = File::options();
        let mut lock = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| with_path(&path, &error))?;
        if let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(with_path(&path, &error.into()));
            }
            let mut owner = String::new();
            let _ = lock.read_to_string(&mut owner); // empty where it has just begun
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!(
                    "a fabric named {name} runs already (process {}); name this one otherwise with --name",
                    owner.trim()
                ),
            ));
        }
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())?;
        for left in [attach_socket(name), control_socket(name)] {
            match fs::remove_file(&left) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(with_path(&left, &error));
                }
                _ => {}
            }
        }
        Ok(Claim { name: name.to_owned(), _lock: lock })
    }
}

impl Drop for Claim {
    /// The lock's file stays: one that is removed while another process waits for it is locked twice.
    fn drop(&mut self) {
        for path in [attach_socket(&self.name), control_socket(&self.name)] {
            let _ = fs::remove_file(path);
        }
    }
}

/// The names of fabrics that run here.
pub fn running() -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder()) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            let is_lock = path.extension().is_some_and(|ending| ending == LOCK);
            let name = path.file_stem()?.to_str()?.to_owned();
            let file = File::open(&path).ok().filter(|_| is_lock)?;
            flock(&file, FlockOperation::NonBlockingLockShared).is_err().then_some(name)
        })
        .collect();
    names.sort();
    names
}

/// Nobody listens at a fabric's socket: what to say.
pub fn not_running(name: &str, error: &io::Error) -> io::Error {
    let found = running();
    let there = match found.is_empty() {
        true => "none runs for this user".to_owned(),
        false => format!("there are {}", found.join(", ")),
    };
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => io::Error::new(
            error.kind(),
            format!(
                "no fabric named {name} runs here, {there}; `everywire fabric run TOPOLOGY.toml` starts one"
            ),
        ),
        _ => io::Error::new(error.kind(), format!("fabric {name}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_one_process_and_is_free_again() {
        let name = format!("place-{}", std::process::id());
        let claim = Claim::take(&name).unwrap();
        assert!(running().contains(&name));
        let text = Claim::take(&name).unwrap_err().to_string();
        assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
        fs::write(attach_socket(&name), b"").unwrap();
        drop(claim);
        assert!(!attach_socket(&name).exists() && !running().contains(&name));
        drop(Claim::take(&name).unwrap());
        fs::remove_file(file(&name, LOCK)).unwrap();
        assert!(Claim::take("a/b").unwrap_err().to_string().contains("letters"));
        let error = not_running("x", &io::ErrorKind::NotFound.into()).to_string();
        assert!(error.contains("fabric run"), "{error}");
    }
}
