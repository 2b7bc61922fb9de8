//! Running commands: with their output in a log file, under a time limit, and with the whole process group
//! gone afterwards. Also where things are: the workspace's root, its target folder, a program on the PATH.
//!
//! It does not interpret what a command printed.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What a finished command left.
pub struct Finished {
    /// The exit code, or none when a signal or the time limit ended it.
    pub code: Option<i32>,
    /// Standard output and standard error, interleaved as they came.
    pub output: String,
}

impl Finished {
    /// Whether it ended with exit code 0.
    pub fn ok(&self) -> bool {
        self.code == Some(0)
    }

    /// The last `lines` lines of the output, indented, to show under a failure.
    pub fn tail(&self, lines: usize) -> String {
        let all: Vec<&str> = self.output.lines().collect();
        all[all.len().saturating_sub(lines)..].iter().map(|line| format!("      {line}\n")).collect()
    }
}

/// Runs a command to its end, with its output in `log`; after `limit` its process group is killed.
pub fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<Finished, String> {
    let mut child = spawn(command, log)?;
    let code = wait(&mut child, limit);
    kill_group(&child);
    let output = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    Ok(Finished { code, output })
}

/// Starts a command in a process group of its own, with no input and its output in `log`.
pub fn spawn(command: &mut Command, log: &Path) -> Result<Child, String> {
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    }
    let out = File::create(log).map_err(|e| format!("cannot write {}: {e}", log.display()))?;
    let err = out.try_clone().map_err(|e| e.to_string())?;
    command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    command.spawn().map_err(|e| format!("cannot run {:?}: {e}", command.get_program()))
}

/// Waits for a child; none if it is still running after `limit` or a signal ended it.
pub fn wait(child: &mut Child, limit: Duration) -> Option<i32> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        match child.try_wait() {
            Ok(Some(status)) => return status.code(),
            Ok(None) => std::thread::sleep(Duration::from_millis(20)),
            Err(_) => return None,
        }
    }
    None
}

/// Kills what is left of a child's process group, and reaps the child.
pub fn kill_group(child: &Child) {
    signal_group(child.id(), rustix::process::Signal::KILL);
}

/// Sends a signal to the process group that `spawn` made; a group already gone is no error.
pub fn signal_group(leader: u32, signal: rustix::process::Signal) {
    if let Some(pid) = i32::try_from(leader).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

/// The workspace's root folder.
pub fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Cargo itself, as the one that runs this chore.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Whether a program is on the PATH or in the system folders.
pub fn have(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':').any(|folder| Path::new(folder).join(program).is_file())
}

/// Whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
