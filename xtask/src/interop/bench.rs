//! The bench that a case runs on: a lab with guest A (and B once asked for), prepared before each case and
//! inspected after it. The inspection is the same for all: the guests' kernel logs, and the capture.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::capture::{self, Capture};
use super::guest::Guest;
use super::lab::{Background, Family, HOST, Lab, address};
use super::scenarios::Case;
use crate::shell;

/// A running lab and what a case needs of it.
pub struct Bench {
    // Guests first: they are dropped before the namespace goes.
    /// The guest that every case uses.
    pub a: Guest,
    b: Option<Guest>,
    /// The namespace and its bridge.
    pub lab: Lab,
    /// The `everywire` program under test.
    pub program: PathBuf,
    /// The running case's folder.
    pub folder: PathBuf,
    /// The running case's address family.
    pub family: Family,
    /// Whether the running case's link loses packets.
    pub lossy: bool,
}

/// What a healthy nvme host may say above "info" when its target goes away and comes back.
const RECONNECT_LINES: &[&str] = &["nvme nvme", "Buffer I/O error on dev nvme", "block nvme"];

/// Harmless, whatever the case does: what a kernel under emulation says of a busy machine, and nvme_rdma of its parameter
/// `register_always=N`.
const HARMLESS_LINES: &[&str] = &[
    "hrtimer: interrupt took",
    "clocksource:",
    "perf: interrupt took too long",
    "enabling unsafe global rkey",
];

/// What soft-RoCE says of itself when it must send again, between two Linux kernels too: it goes back over a fast
/// registration that it has already done, and takes the queue pair down.
const LOSS_LINES: &[&str] = &["rxe_reg_fast_mr: mr->lkey"];

/// Kernel messages that no case may cause, whatever their level.
const NEVER: &[&str] = &[
    "WARNING:",
    "BUG:",
    "Oops",
    "hung task",
    "blocked for more than",
    "general protection",
    "rcu_sched",
    "Call Trace",
];

impl Bench {
    /// Boots guest A with soft-RoCE on it.
    pub fn up(image: &Path, folder: &Path, program: &Path) -> Result<Bench, String> {
        let lab = Lab::up(image, folder, 1500)?;
        let a = lab.boot("A", 11)?;
        a.ok("bash /lab/rxe-up.sh")?;
        let (program, folder) = (program.to_path_buf(), folder.to_path_buf());
        Ok(Bench { a, b: None, lab, program, folder, family: Family::V4, lossy: false })
    }

    /// Guest B, booted when it is first asked for.
    pub fn b(&mut self) -> Result<&Guest, String> {
        if self.b.is_none() {
            let b = self.lab.boot("B", 12)?;
            b.ok("bash /lab/rxe-up.sh; dmesg -C")?;
            self.b = Some(b);
        }
        self.b.as_ref().ok_or_else(|| "guest B is not there".into())
    }

    /// The host's own address in this case's family.
    pub fn host_address(&self) -> std::net::IpAddr {
        address(HOST, self.family)
    }

    /// Guest A's address in this case's family.
    pub fn a_address(&self) -> std::net::IpAddr {
        self.a.address(self.family)
    }

    /// The host's device, as `--device` names it.
    pub fn device(&self) -> String {
        format!("rocev2:{}", self.host_address())
    }

    /// Runs the program in the lab with `input` as its standard input, and gives its standard output; it must succeed.
    pub fn everywire_io(
        &self,
        name: &str,
        args: &[String],
        input: Option<&Path>,
        limit: Duration,
    ) -> Result<Vec<u8>, String> {
        let (out, err) = (self.folder.join(format!("{name}.out")), self.folder.join(format!("{name}.log")));
        let open = |path: &Path| fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()));
        let make = |path: &Path| fs::File::create(path).map_err(|e| format!("{}: {e}", path.display()));
        let mut command = self.lab.host(&self.program);
        command
            .args(args)
            .stdin(open(input.unwrap_or(Path::new("/dev/null")))?)
            .stdout(make(&out)?)
            .stderr(make(&err)?);
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        let code = shell::wait(&mut child, limit);
        if code.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if code != Some(0) {
            let said = fs::read_to_string(&err).unwrap_or_default();
            return Err(format!("everywire {}: exit {code:?}:\n{said}", args.join(" ")));
        }
        fs::read(&out).map_err(|e| format!("{}: {e}", out.display()))
    }

    /// Starts the program in the lab, with its output in the case's folder under `name`.
    pub fn everywire(&self, name: &str, args: &[&str]) -> Result<Background, String> {
        let log = self.folder.join(format!("{name}.log"));
        Background::start(self.lab.host(&self.program).args(args), &log)
    }

    /// Runs one case from preparation to inspection.
    pub fn run(&mut self, case: &Case, folder: &Path) -> Result<(), String> {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        (self.folder, self.family, self.lossy) = (folder.to_path_buf(), case.family, case.lossy);
        if self.lab.mtu != case.mtu {
            let guests: Vec<&Guest> = [Some(&self.a), self.b.as_ref()].into_iter().flatten().collect();
            self.lab.set_mtu(&guests, case.mtu)?;
        }
        self.a.ok(&format!("dmesg -C; bash /lab/netem.sh {}", if case.lossy { "on" } else { "off" }))?;
        if let Some(b) = &self.b {
            b.ok("dmesg -C")?;
        }
        let capture = Capture::start(&self.lab, folder)?;
        let outcome = (case.run)(self);
        let file = capture.stop();
        let mut findings: Vec<String> = outcome.err().into_iter().collect();
        findings.extend(self.kernel_log(&self.a, case)?);
        if let Some(b) = &self.b {
            findings.extend(self.kernel_log(b, case)?);
        }
        findings.extend(self.judge(&file)?);
        if findings.is_empty() { Ok(()) } else { Err(findings.join("\n")) }
    }

    fn kernel_log(&self, guest: &Guest, case: &Case) -> Result<Vec<String>, String> {
        let log = guest.ok("dmesg -x")?;
        let _ = fs::write(self.folder.join(format!("{}.dmesg", guest.name)), &log);
        let above_info = |l: &str| {
            ["emerg", "alert", "crit", "err", "warn"]
                .iter()
                .any(|level| l.split(':').nth(1).is_some_and(|field| field.trim() == *level))
        };
        let says = |known: &[&str], l: &str| known.iter().any(|k| l.contains(k));
        let own = |l: &str| {
            says(HARMLESS_LINES, l)
                || (case.reconnects && says(RECONNECT_LINES, l))
                || ((case.lossy || case.reconnects) && says(LOSS_LINES, l))
        };
        let bad = log.lines().filter(|l| says(NEVER, l) || (above_info(l) && !own(l)));
        Ok(bad.map(|l| format!("guest {}'s kernel log: {l}", guest.name)).collect())
    }

    fn judge(&self, file: &Path) -> Result<Vec<String>, String> {
        let mut findings: Vec<String> = capture::malformed(file)?
            .into_iter()
            .take(5)
            .map(|m| format!("tshark calls malformed: {m}"))
            .collect();
        let (packets, bad) = capture::bad_icrcs(&self.program, file)?;
        if packets == 0 {
            findings.push("the capture is empty".into());
        }
        findings.extend(bad.into_iter().take(5).map(|b| format!("wrong ICRC: {b}")));
        Ok(findings)
    }
}
