//! The bench that a case runs on: a lab with guest A (and B once asked for), prepared before each case and
//! inspected after it. The inspection is the same for all: the guests' kernel logs, and the capture.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::capture::{self, Capture};
use super::guest::Guest;
use super::iwarp;
use super::lab::{BRIDGE, Background, Family, HOST, Lab, address};
use super::scenarios::Case;
use super::wire::{self, Siw, Wire};
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
    /// Whether the running case's host registers its buffers.
    pub registers: bool,
    /// The running case's wire, which every guest has a device for.
    pub wire: Wire,
}

/// What nvme and nvme_rdma say above "info" while a target is away and until it is back, after their "nvme nvme0: ". 0x370
/// and 880 are Command Aborted By Host: the host's own end of what was under way; -111 is what siw says of a target that is not
/// there yet.
const RECONNECT_LINES: &[&str] = &[
    "starting error recovery",
    "failed nvme_keep_alive_end_io error=",
    "long keepalive RTT (",
    "Connect rejected: status ",
    "rdma_connect_locked failed (-111).",
    "Identify NS List failed (status=0x370)",
    "Property Set error: 880, offset 0x14",
];

/// The same of a timed-out command, "I/O 7 QID 1 timeout", and of the multipath disk, "block nvme0n1: ", with the kernel's
/// own count of how often that was said.
const TIMEOUT_LINE: (&str, &str) = ("I/O ", " timeout");
const NO_PATH_LINE: &str = "no usable path - requeuing I/O";
const NO_PATH_COUNT: (&str, &str) = ("nvme_ns_head_submit_bio", " callbacks suppressed");

/// What nvmet says, after its "nvmet: ctrl 1 ", of a host that it no longer hears.
const UNHEARD_LINES: &[&str] = &["keep-alive timer (5 seconds) expired!", "fatal error occurred!"];

/// Harmless, whatever the case does: what a kernel under emulation says of a busy machine, nvme_rdma of its parameter
/// `register_always=N`, and nbd of being told to detach.
const HARMLESS_LINES: &[&str] = &[
    "hrtimer: interrupt took",
    "clocksource:",
    "perf: interrupt took too long",
    "enabling unsafe global rkey",
    "block nbd0: shutting down sockets",
];

/// What soft-RoCE says of itself when it must send again (interop/README.md): it goes back over a fast registration that
/// it has already done, and takes the queue pair down.
const REGISTRATION_LINE: &str = "rxe_reg_fast_mr: mr->lkey";

/// What nvmet says over siw when a host has left: it answers the Asynchronous Event Requests that were open, and siw refuses
/// what is posted on a queue pair that has ended, where soft-RoCE takes it and flushes it.
const LATE_ANSWER_LINES: &[&str] =
    &["nvmet_rdma: post_recv cmd failed", "nvmet_rdma: sending cmd response failed"];

/// What nvmet says over siw of a queue that was lost while it sent: events of siw's that it has no use for.
const LOST_QUEUE_LINES: &[&str] = &[
    "nvmet_rdma: received IB QP event: send queue drained (5)",
    "nvmet_rdma: received IB QP event: QP fatal error (1)",
];

/// Kernel messages that no case may cause, whatever their level. Of these "I/O error" has many forms: the block layer's,
/// the page cache's, nvme's own.
const NEVER: &[&str] = &[
    "WARNING:",
    "BUG:",
    "kernel BUG",
    "Oops",
    "hung task",
    "blocked for more than",
    "general protection",
    "rcu_sched",
    "Call Trace",
    "I/O error",
    "I/O Error",
    "failing I/O",
    "lost async page write",
    "EXT4-fs error",
];

impl Bench {
    /// Boots guest A with soft-RoCE on it.
    pub fn up(image: &Path, folder: &Path, program: &Path) -> Result<Bench, String> {
        let lab = Lab::up(image, folder, 1500)?;
        let a = lab.boot("A", 11)?;
        let wire = Wire::RoceV2;
        a.ok(&wire.up())?;
        let (program, folder) = (program.to_path_buf(), folder.to_path_buf());
        let family = Family::V4;
        Ok(Bench { a, b: None, lab, program, folder, family, lossy: false, registers: true, wire })
    }

    /// Gives the guests the case's wire.
    fn change_wire(&mut self, wire: Wire) -> Result<(), String> {
        if self.wire == wire {
            return Ok(());
        }
        if let Wire::Iwarp(_) = wire {
            self.share_siw()?;
        }
        for guest in [Some(&self.a), self.b.as_ref()].into_iter().flatten() {
            guest.ok(&wire.up())?;
        }
        self.wire = wire;
        Ok(())
    }

    /// Puts the siw modules where the guests find them.
    fn share_siw(&self) -> Result<(), String> {
        let share = self.lab.folder.join("share/siw");
        if share.exists() {
            return Ok(());
        }
        let built = wire::build_siw(&self.lab.folder.join("build-siw.log"))?;
        fs::create_dir_all(&share).map_err(|e| format!("{}: {e}", share.display()))?;
        for file in Siw::ALL.map(|siw| format!("{}.ko", siw.module())) {
            let from = built.join(&file);
            fs::copy(&from, share.join(file)).map_err(|e| format!("{}: {e}", from.display()))?;
        }
        Ok(())
    }

    /// Guest B, booted when it is first asked for.
    pub fn b(&mut self) -> Result<&Guest, String> {
        if self.b.is_none() {
            let b = self.lab.boot("B", 12)?;
            b.ok(&self.wire.up())?;
            b.ok("dmesg -C")?;
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
        self.wire.device(self.host_address())
    }

    /// The same on raw Ethernet: frames of our own on the bridge.
    pub fn raw_device(&self) -> String {
        format!("rocev2-raw:{BRIDGE}/{}", self.host_address())
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

    /// Runs one case from preparation to inspection, and gives how many frames were captured; `frames` is the most.
    pub fn run(&mut self, case: &Case, folder: &Path, frames: Option<u32>) -> Result<usize, String> {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        (self.folder, self.family) = (folder.to_path_buf(), case.family);
        (self.lossy, self.registers) = (case.lossy, case.registers);
        self.change_wire(case.wire)?;
        if case.two_guests {
            self.b()?;
        }
        if self.lab.mtu != case.mtu {
            let guests: Vec<&Guest> = [Some(&self.a), self.b.as_ref()].into_iter().flatten().collect();
            self.lab.set_mtu(&guests, case.mtu)?;
        }
        self.a.ok(&format!("dmesg -C; bash /lab/netem.sh {}", if case.lossy { "on" } else { "off" }))?;
        if let Some(b) = &self.b {
            b.ok("dmesg -C")?;
        }
        let filter = case.wire.filter();
        let mut captures = vec![Capture::start(&self.lab, folder, self.a.name, filter, frames)?];
        // What iWARP's TCP sends again, it sends until it is through: B's tap would show the same stream.
        if case.two_guests && case.wire == Wire::RoceV2 {
            captures.push(Capture::start(&self.lab, folder, "B", filter, frames)?);
        }
        let outcome = (case.run)(self);
        let files: Vec<PathBuf> = captures.into_iter().map(Capture::stop).collect();
        let mut findings: Vec<String> = outcome.err().into_iter().collect();
        findings.extend(self.kernel_log(&self.a, case)?);
        if let Some(b) = &self.b {
            findings.extend(self.kernel_log(b, case)?);
        }
        let mut captured = 0;
        for file in &files {
            captured += self.judge(file, frames, &mut findings)?;
        }
        if !findings.is_empty() {
            return Err(findings.join("\n"));
        }
        for file in &files {
            capture::keep_if_small(file);
        }
        Ok(captured)
    }

    fn kernel_log(&self, guest: &Guest, case: &Case) -> Result<Vec<String>, String> {
        let log = guest.kernel_log()?;
        let _ = fs::write(self.folder.join(format!("{}.dmesg", guest.name)), &log);
        Ok(log
            .lines()
            .filter(|l| bad(l, case))
            .map(|l| format!("guest {}'s kernel log: {l}", guest.name))
            .collect())
    }

    /// Has a capture judged, and gives how many packets it holds.
    fn judge(&self, file: &Path, frames: Option<u32>, findings: &mut Vec<String>) -> Result<usize, String> {
        let packets = match self.wire {
            Wire::RoceV2 => {
                let malformed = capture::malformed(file)?;
                findings
                    .extend(malformed.into_iter().take(5).map(|m| format!("tshark calls malformed: {m}")));
                let (packets, bad) = capture::bad_icrcs(&self.program, file)?;
                findings.extend(bad.into_iter().take(5).map(|b| format!("wrong ICRC: {b}")));
                packets
            }
            Wire::Iwarp(siw) => self.judge_iwarp(file, siw, findings)?,
        };
        if packets == 0 {
            findings.push("the capture is empty".into());
        }
        let missed = capture::missed(file)?;
        if missed > 0 && frames.is_none() {
            findings.push(format!("{}: tcpdump missed {missed} frames", file.display()));
        }
        Ok(packets)
    }

    /// Has an iWARP capture judged, and gives how many FPDUs it holds.
    fn judge_iwarp(&self, file: &Path, siw: Siw, findings: &mut Vec<String>) -> Result<usize, String> {
        let found = iwarp::dissect(file)?;
        let decoded = iwarp::decoded(&self.program, file)?;
        findings.extend(found.differences(&decoded));
        findings.extend(found.malformed.iter().take(5).map(|m| format!("tshark calls malformed: {m}")));
        if found.bad_crcs > 0 {
            findings.push(format!("tshark calls {} CRCs bad in {}", found.bad_crcs, file.display()));
        }
        let with_crc = if siw.with_crc() { found.fpdus() } else { 0 };
        if found.good_crcs != with_crc {
            findings.push(format!(
                "{} of {} FPDUs have a CRC, not {with_crc}",
                found.good_crcs,
                found.fpdus()
            ));
        }
        if siw.peer_to_peer() != (found.peer_to_peer > 0) {
            findings
                .push(format!("{} of {} MPA frames ask for peer to peer", found.peer_to_peer, found.starts));
        }
        Ok(found.fpdus())
    }
}

/// Whether a line of a guest's kernel log, `facility:level : [time] text`, is one that the case must not cause.
fn bad(line: &str, case: &Case) -> bool {
    let says = |known: &[&str]| known.iter().any(|k| line.contains(k));
    if says(NEVER) || case.proof {
        return says(NEVER);
    }
    let level = line.split(':').nth(1).unwrap_or_default().trim();
    if !["emerg", "alert", "crit", "err", "warn"].contains(&level) {
        return false;
    }
    let siw = matches!(case.wire, Wire::Iwarp(_));
    let own = (case.reconnects && reconnects(line))
        || ((case.reconnects || case.registers && case.lossy) && line.contains(REGISTRATION_LINE))
        || (siw && (says(LATE_ANSWER_LINES) || case.reconnects && says(LOST_QUEUE_LINES)));
    !says(HARMLESS_LINES) && !own
}

/// Whether it is one of the lines of nvme, nvme_rdma and nvmet that belong to the other side going away and coming back.
fn reconnects(line: &str) -> bool {
    let text = line.split_once("] ").map_or(line, |(_, text)| text);
    let Some((device, said)) = text.split_once(": ") else { return false };
    if device.starts_with("block nvme") {
        return said == NO_PATH_LINE;
    }
    if device == NO_PATH_COUNT.0 {
        return said.ends_with(NO_PATH_COUNT.1);
    }
    if device == "nvmet" {
        let after = said.strip_prefix("ctrl ").and_then(|said| said.split_once(' '));
        return after.is_some_and(|(_, said)| UNHEARD_LINES.contains(&said));
    }
    device.starts_with("nvme nvme")
        && (RECONNECT_LINES.iter().any(|known| said.starts_with(known))
            || (said.starts_with(TIMEOUT_LINE.0) && said.ends_with(TIMEOUT_LINE.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_words_belong_to_a_reconnect() {
        for line in [
            "kern  :warn  : [  223.261736] nvme nvme0: I/O 1 QID 0 timeout",
            "kern  :warn  : [  223.261899] nvme nvme0: starting error recovery",
            "kern  :err   : [  229.410872] nvme nvme0: failed nvme_keep_alive_end_io error=10",
            "kern  :warn  : [  229.449685] block nvme0n1: no usable path - requeuing I/O",
            "kern  :warn  : [  278.321652] nvme_ns_head_submit_bio: 5 callbacks suppressed",
            "kern  :err   : [  107.492699] nvmet: ctrl 1 keep-alive timer (5 seconds) expired!",
        ] {
            assert!(reconnects(line), "{line}");
        }
        for line in [
            "kern  :warn  : [  229.449685] block nvme0n1: no available path - failing I/O",
            "kern  :err   : [  305.961517] nvme0c0n1: I/O Cmd(0x2) @ LBA 523616, 80 blocks, I/O Error (sct 0x3 / sc 0x71)",
            "kern  :err   : [  305.963242] Buffer I/O error on dev nvme0n1, logical block 0, async page read",
            "kern  :warn  : [  305.963242] nvme nvme0: Identify namespace failed (status=0x4002)",
        ] {
            assert!(!reconnects(line), "{line}");
        }
    }
}
