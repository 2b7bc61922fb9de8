//! Captures: tcpdump on a guest's tap while a case runs, then judged from outside by tshark (no malformed frame)
//! and by the program's own `decode` (every ICRC good).
//!
//! tshark's known errors are listed with their reason; everything else it marks is a finding.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::lab::{Background, Lab};

/// Frames kept of a case: the handshakes, the first I/O, and enough bulk. tshark reads some 10,000 a second.
const FRAMES: u32 = 30_000;

/// A capture that is running.
pub struct Capture {
    tcpdump: Background,
    /// The pcap file.
    pub file: PathBuf,
}

impl Capture {
    /// Captures RoCE on guest A's tap into `folder`.
    pub fn start(lab: &Lab, folder: &Path) -> Result<Capture, String> {
        let file = folder.join("capture.pcap");
        let mut command = lab.host("tcpdump");
        command.args([
            "-i",
            "tap-A",
            "-s",
            "0",
            "-B",
            "32768",
            "-Z",
            "root",
            "-U",
            "-c",
            &FRAMES.to_string(),
            "-w",
        ]);
        command.arg(&file).args(["udp port 4791"]);
        let mut tcpdump = Background::start(&mut command, &folder.join("tcpdump.log"))?;
        tcpdump.wait_for("listening on", Duration::from_secs(30))?;
        Ok(Capture { tcpdump, file })
    }

    /// Ends it.
    pub fn stop(mut self) -> PathBuf {
        std::thread::sleep(Duration::from_millis(1300)); // tcpdump gets its packets in blocks, the last after a second
        self.tcpdump.signal(rustix::process::Signal::INT);
        self.tcpdump.wait(Duration::from_secs(10));
        self.file.clone()
    }
}

/// The opcodes of an RDMA WRITE's later packets. tshark 4.0 takes their payload, on a connection it knows as NVMe,
/// for a command capsule; it does so between two Linux kernels too.
const WRITE_MIDDLE_AND_LAST: [&str; 3] = ["7", "8", "9"];

/// Frames that tshark calls malformed, beyond its known errors.
pub fn malformed(file: &Path) -> Result<Vec<String>, String> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args([
        "--disable-protocol",
        "rpcordma",
        "-Y",
        "_ws.malformed",
        "-T",
        "fields",
    ]);
    tshark.args(["-e", "frame.number", "-e", "infiniband.bth.opcode", "-e", "frame.protocols"]);
    let out = tshark.output().map_err(|e| format!("cannot run tshark: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        return Err(format!("tshark: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let known = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        fields.len() == 3 && WRITE_MIDDLE_AND_LAST.contains(&fields[1]) && fields[2].ends_with("nvme-rdma")
    };
    Ok(text.lines().filter(|l| !known(l)).map(|l| format!("frame {l}")).collect())
}

/// How many RoCE packets the capture holds, and those whose ICRC is wrong, by the program's own judgement.
pub fn bad_icrcs(program: &Path, file: &Path) -> Result<(usize, Vec<String>), String> {
    let out = Command::new(program).args(["decode", "--json"]).arg(file).output();
    let out = out.map_err(|e| format!("cannot run {}: {e}", program.display()))?;
    if !out.status.success() {
        return Err(format!("decode: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let (mut packets, mut bad) = (0, Vec::new());
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let packet: serde_json::Value =
            serde_json::from_str(line).map_err(|e| format!("decode --json: {e}: {line}"))?;
        packets += 1;
        if packet["icrc"] != "good" {
            bad.push(format!("packet {line}"));
        }
    }
    Ok((packets, bad))
}
