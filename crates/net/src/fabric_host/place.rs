//! Where a running fabric's sockets are: a folder that only its user may enter.
//!
//! `$XDG_RUNTIME_DIR/everywire`, else `/tmp/everywire-UID`. Each fabric has three files there: `NAME.lock`, which its process
//! holds locked as long as it runs, `NAME.attach` and `NAME.control`, its sockets. What a killed process has left behind is
//! taken over, and swept by whichever fabric starts next. Whoever asks for a fabric that is just starting waits for it.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::plan::check_name;

/// The file endings.
const LOCK: &str = "lock";
const ATTACH: &str = "attach";
const CONTROL: &str = "control";

/// How long a process may take to claim its fabric's name: `fabric run X & fabric show X` starts both at once.
const BEGIN_PATIENCE: Duration = Duration::from_secs(1);
/// How long it may take from there until its sockets are open.
const OPEN_PATIENCE: Duration = Duration::from_secs(10);
/// How often to look.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long somebody who only looks at a lock may hold it.
const GLANCE: Duration = Duration::from_millis(200);

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
        sweep();
        let mut lock = lock(name)?;
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
    fn drop(&mut self) {
        remove_files(&self.name);
    }
}

/// Locks a name's file.
fn lock(name: &str) -> io::Result<File> {
    let path = file(name, LOCK);
    let until = Instant::now() + GLANCE;
    loop {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = options.open(&path).map_err(|error| with_path(&path, &error))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_at(&lock, &path) => return Ok(lock),
            // Whoever had it has removed it: the file of that name is another one now, or none.
            Ok(()) => continue,
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => sleep(LOOK_EVERY),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut owner = String::new();
                let _ = lock.read_to_string(&mut owner); // empty where it has just begun
                let owner = owner.trim();
                let text = format!(
                    "a fabric named {name} runs already (process {owner}); name this one otherwise with --name"
                );
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            Err(error) => return Err(with_path(&path, &error.into())),
        }
    }
}

/// Whether a file is still the one of that name.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(own), Ok(there)) = (file.metadata(), fs::metadata(path)) else { return false };
    (own.dev(), own.ino()) == (there.dev(), there.ino())
}

/// Removes a name's files; by who has them locked. The lock goes last: until then nobody else takes the name.
fn remove_files(name: &str) {
    for ending in [ATTACH, CONTROL, LOCK] {
        let _ = fs::remove_file(file(name, ending));
    }
}

/// Removes what processes have left behind that ended without doing so.
fn sweep() {
    for name in locks() {
        let path = file(&name, LOCK);
        let Ok(lock) = File::open(&path) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() && is_at(&lock, &path) {
            remove_files(&name);
        }
    }
}

/// The names that have a lock's file.
fn locks() -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder()) else { return Vec::new() };
    let name = |path: PathBuf| {
        let is_lock = path.extension().is_some_and(|ending| ending == LOCK);
        path.file_stem().filter(|_| is_lock)?.to_str().map(str::to_owned)
    };
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| name(entry.path())).collect();
    names.sort();
    names
}

/// Whether a process has claimed a name.
fn is_claimed(name: &str) -> bool {
    File::open(file(name, LOCK))
        .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockShared).is_err())
}

/// The names of fabrics that run here.
pub fn running() -> Vec<String> {
    locks().into_iter().filter(|name| is_claimed(name)).collect()
}

/// Reaches a fabric, which may be just starting.
///
/// # Errors
/// None of that name runs here, or it does not open its sockets; or what `reach` says otherwise.
pub(crate) fn reach<T>(name: &str, mut reach: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let began = Instant::now();
    loop {
        let error = match reach() {
            Err(error) if is_absent(&error) => error,
            other => return other,
        };
        let patience = if is_claimed(name) { OPEN_PATIENCE } else { BEGIN_PATIENCE };
        if began.elapsed() >= patience {
            return Err(not_running(name, &error));
        }
        sleep(LOOK_EVERY);
    }
}

/// Whether nobody listens at a socket.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Nobody listens at a fabric's socket: what to say.
pub fn not_running(name: &str, error: &io::Error) -> io::Error {
    if !is_absent(error) {
        return io::Error::new(error.kind(), format!("fabric {name}: {error}"));
    }
    let found = running();
    let text = if found.iter().any(|other| other == name) {
        format!("fabric {name} is starting, and has not opened its sockets within {OPEN_PATIENCE:?}")
    } else {
        let there = match found.is_empty() {
            true => "none runs for this user".to_owned(),
            false => format!("there are {}", found.join(", ")),
        };
        format!(
            "no fabric named {name} runs here, {there}; `everywire fabric run TOPOLOGY.toml` starts one \
             (a fabric belongs to one user: another user's is not found)"
        )
    };
    io::Error::new(error.kind(), text)
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
        assert!(!file(&name, LOCK).exists());
        assert!(Claim::take("a/b").unwrap_err().to_string().contains("letters"));
        let error = not_running("x", &io::ErrorKind::NotFound.into()).to_string();
        assert!(error.contains("fabric run"), "{error}");
    }
    #[test]
    fn what_the_dead_have_left_is_swept() {
        let (dead, alive) = (format!("dead-{}", std::process::id()), format!("alive-{}", std::process::id()));
        let claim = Claim::take(&alive).unwrap();
        // As a killed process leaves them: files that nobody has locked.
        for ending in [LOCK, ATTACH, CONTROL] {
            fs::write(file(&dead, ending), b"1\n").unwrap();
            fs::write(file(&alive, ending), b"2\n").unwrap();
        }
        let next = Claim::take(&format!("next-{}", std::process::id())).unwrap();
        for ending in [LOCK, ATTACH, CONTROL] {
            assert!(!file(&dead, ending).exists() && file(&alive, ending).exists(), "{ending}");
        }
        drop((claim, next));
    }

    #[test]
    fn who_asks_for_a_fabric_that_starts_waits_for_it() {
        let name = format!("starts-{}", std::process::id());
        let starter = std::thread::spawn({
            let name = name.clone();
            move || {
                sleep(Duration::from_millis(200));
                let claim = Claim::take(&name).unwrap();
                // Longer than a fabric may take to begin: it has begun.
                sleep(BEGIN_PATIENCE);
                fs::write(control_socket(&name), b"open").unwrap();
                sleep(Duration::from_millis(200));
                drop(claim);
            }
        });
        let reached = reach(&name, || fs::read(control_socket(&name)));
        assert_eq!(reached.unwrap(), b"open");
        starter.join().unwrap();
        let error = reach(&name, || fs::read(control_socket(&name))).unwrap_err().to_string();
        assert!(error.contains("no fabric named") && error.contains("one user"), "{error}");
    }
}
