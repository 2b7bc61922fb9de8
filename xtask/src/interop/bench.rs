//! The bench that a case runs on: a lab with guest A (and B once asked for), prepared before each case and
//! inspected after it. The inspection is the same for all: the guests' kernel logs, and the capture.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::capture::{self, Capture};
use super::guest::Guest;
use super::iwarp;
use super::kernel_log::bad;
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
            Wire::Tcp => {
                let malformed = capture::malformed(file)?;
                findings
                    .extend(malformed.into_iter().take(5).map(|m| format!("tshark calls malformed: {m}")));
                capture::pdus(file)?
            }
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
