//! OpenSM and infiniband-diags, unmodified, on a fabric of ours: libumad2sim, preloaded, has their MADs carried by the ibsim
//! protocol. `$SIM_HOST` is the node whose port they use.
//!
//! Each runs in a folder of its own, where libumad2sim leaves its `sys-PID`. None needs root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::interop::lab::Background;
use crate::shell;

/// Debian's ibsim-utils has it here.
pub const UMAD2SIM: &str = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so";

/// For one tool; ibdiagnet on 16 hosts takes a few seconds.
const TOOL_LIMIT: Duration = Duration::from_secs(120);
const SUBNET_UP_LIMIT: Duration = Duration::from_secs(90);

/// Runs tools on one fabric.
pub struct Tools {
    /// The ibsim name of the fabric's sockets.
    socket: String,
    folder: PathBuf,
    /// interop/umad-classes.c, which ibdiagnet needs beside libumad2sim.
    shim: PathBuf,
    next: AtomicUsize,
}

impl Tools {
    /// For the fabric at `socket`, with logs in `folder`.
    pub fn new(socket: &str, folder: &Path) -> Result<Tools, String> {
        let shim = folder.join("umad-classes.so");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(&shim)
            .arg(shell::root().join("interop/umad-classes.c"));
        let done = shell::run(&mut cc, &folder.join("cc.log"), TOOL_LIMIT)?;
        if !done.ok() {
            return Err(format!("umad-classes.c does not compile:\n{}", done.tail(20)));
        }
        Ok(Tools { socket: socket.to_owned(), folder: folder.to_path_buf(), shim, next: AtomicUsize::new(1) })
    }

    /// The command of a tool on `host`'s port, and where its output goes.
    fn command(&self, host: &str, program: &str) -> Result<(Command, PathBuf), String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(format!("{number:03}-{program}"));
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "env"]);
        let shim = if program == "ibdiagnet" { format!("{}:", self.shim.display()) } else { String::new() };
        command.arg(format!("LD_PRELOAD={shim}{UMAD2SIM}"));
        command.arg(format!("SIM_HOST={host}")).arg(format!("IBSIM_SOCKNAME={}", self.socket)).arg(program);
        command.current_dir(&folder);
        Ok((command, folder.join("out")))
    }

    /// Runs a tool on `host`'s port to its end, and gives what it printed; it must succeed.
    pub fn run(&self, host: &str, program: &str, args: &[&str]) -> Result<String, String> {
        let (mut command, log) = self.command(host, program)?;
        let done = shell::run(command.args(args), &log, TOOL_LIMIT)?;
        if done.ok() {
            return Ok(done.output);
        }
        Err(format!("{program} {} on {host}: exit {:?}:\n{}", args.join(" "), done.code, done.tail(20)))
    }

    /// Starts a tool that serves.
    pub fn start(&self, host: &str, program: &str, args: &[&str]) -> Result<Background, String> {
        let (mut command, log) = self.command(host, program)?;
        Background::start(command.args(args), &log)
    }

    /// Starts OpenSM as a second manager on `host`'s port, with a priority, and waits until its log has `text`.
    pub fn second_opensm(&self, host: &str, priority: u8, text: &str) -> Result<OpenSm, String> {
        let (mut command, out) = self.command(host, "opensm")?;
        let folder = out.parent().unwrap_or(&self.folder).to_path_buf();
        let (conf, log) = (folder.join("opensm.conf"), folder.join("opensm.log"));
        fs::write(&conf, "force_log_flush TRUE\n").map_err(|e| format!("{}: {e}", conf.display()))?;
        command.env("OSM_CACHE_DIR", &folder).env("OSM_TMP_DIR", &folder);
        command.arg("-F").arg(conf).arg("-f").arg(&log).args(["-R", "minhop", "-p", &priority.to_string()]);
        let mut running = OpenSm { process: Background::start(&mut command, &out)?, log };
        running.wait_for(text, SUBNET_UP_LIMIT)?;
        Ok(running)
    }

    /// Starts OpenSM on `host`'s port, and waits until it calls the subnet up and says that `engine` made its tables.
    pub fn opensm(&self, host: &str, engine: &str, roots: &[u64]) -> Result<OpenSm, String> {
        let (mut command, out) = self.command(host, "opensm")?;
        let folder = out.parent().unwrap_or(&self.folder).to_path_buf();
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display())).map(|()| path)
        };
        // Without the flush the log's last lines stay in memory; a short sweep is the spare of a lost trap.
        let conf = write("opensm.conf", "force_log_flush TRUE\nsweep_interval 5\n".into())?;
        let log = folder.join("opensm.log");
        command.env("OSM_CACHE_DIR", &folder).env("OSM_TMP_DIR", &folder);
        command.arg("-F").arg(conf).arg("-f").arg(&log).args(["-R", engine]);
        if !roots.is_empty() {
            let lines = roots.iter().map(|guid| format!("{guid:#018x}\n")).collect();
            command.arg("-a").arg(write("roots", lines)?);
        }
        let mut running = OpenSm { process: Background::start(&mut command, &out)?, log };
        running.wait_for("SUBNET UP", SUBNET_UP_LIMIT)?;
        let made = format!("{engine} tables configured on all switches");
        match running.log().contains(&made) {
            true => Ok(running),
            false => Err(format!("OpenSM's log has no {made:?}:\n{}", tail(&running.log()))),
        }
    }
}

/// A running OpenSM.
pub struct OpenSm {
    process: Background,
    log: PathBuf,
}

impl OpenSm {
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn wait_for(&mut self, text: &str, limit: Duration) -> Result<(), String> {
        let end = std::time::Instant::now() + limit;
        while !self.log().contains(text) {
            let ended = self.process.wait(Duration::from_millis(100));
            if ended.is_some() || std::time::Instant::now() > end {
                let (said, log) = (self.process.output(), self.log());
                return Err(format!(
                    "OpenSM did not say {text:?} ({ended:?}):\n{}\n{}",
                    tail(&said),
                    tail(&log)
                ));
            }
        }
        Ok(())
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
