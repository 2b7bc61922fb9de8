//! A fabric of ours that runs for a case: `everywire fabric run`, and what it shows.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::shown::Shown;
use crate::interop::lab::Background;
use crate::shell;

const LIMIT: Duration = Duration::from_secs(60);
/// How long a subnet manager may take until every port is in use.
const ACTIVE_LIMIT: Duration = Duration::from_secs(60);

/// A running fabric. Its name is the topology file's, with this process's number: a fabric of that name may run already.
pub struct Fabric {
    // The program goes first.
    _process: Background,
    program: PathBuf,
    folder: PathBuf,
    pub name: String,
}

impl Fabric {
    /// Runs `examples/TOPOLOGY.toml` with further arguments until it says that it is ready; its ibsim name is its own.
    pub fn run(program: &Path, folder: &Path, topology: &str, more: &[&str]) -> Result<Fabric, String> {
        let name = format!("{topology}-{}", std::process::id());
        let mut command = host_command(program);
        command.args(["fabric", "run", "--ibsim", &name, "--name", &name]).args(more);
        command.arg(shell::root().join(format!("examples/{topology}.toml")));
        let mut process = Background::start(&mut command, &folder.join("fabric.log"))?;
        process.wait_for("ready", LIMIT)?;
        let (program, folder) = (program.to_path_buf(), folder.to_path_buf());
        Ok(Fabric { _process: process, program, folder, name })
    }

    /// What it shows now.
    pub fn show(&self) -> Result<Shown, String> {
        let text = self.everywire(&["fabric", "show", &self.name, "--format", "json"])?;
        serde_json::from_str(&text).map_err(|e| format!("fabric show --format json: {e}:\n{text}"))
    }

    /// What it shows once a subnet manager has brought every port up.
    pub fn show_active(&self) -> Result<Shown, String> {
        let end = Instant::now() + ACTIVE_LIMIT;
        loop {
            let shown = self.show()?;
            if shown.is_active() {
                return Ok(shown);
            }
            if Instant::now() > end {
                return Err(format!("the subnet was not up in {ACTIVE_LIMIT:?}: {shown:?}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Pulls the cable at a port, or puts it back.
    pub fn link(&self, to: &str, node: &str, port: u8) -> Result<(), String> {
        self.everywire(&["fabric", "link", to, &self.name, &format!("{node}/{port}")]).map(drop)
    }

    /// Runs the program to its end, and gives what it printed.
    pub fn everywire(&self, args: &[&str]) -> Result<String, String> {
        let out = host_command(&self.program).args(args).output();
        let out = out.map_err(|e| format!("cannot run {}: {e}", self.program.display()))?;
        if out.status.success() {
            return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
        }
        Err(format!("everywire {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr)))
    }

    /// Starts the program, with its output in the case's folder under `name`.
    pub fn start(&self, name: &str, args: &[&str]) -> Result<Background, String> {
        Background::start(host_command(&self.program).args(args), &self.folder.join(format!("{name}.log")))
    }
}

/// The program, which ends with the runner.
fn host_command(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}
