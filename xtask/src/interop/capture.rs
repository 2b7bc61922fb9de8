//! Captures: tcpdump on a guest's tap while a case runs, then judged from outside by tshark (no malformed frame)
//! and by the program's own `decode` (every ICRC good).
//!
//! What a guest loses on purpose is lost inside it: a tap shows all that a guest sent and all that was sent to it.
//! tshark's known errors are listed with their reason; everything else it marks is a finding.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::lab::{Background, Lab};

/// Frames of a case that CI looks at: the handshakes, the first I/O, and enough bulk. tshark reads some 10,000 a second.
pub const SAMPLE: u32 = 30_000;

/// A capture of a case that passed is kept up to this size.
const KEPT_BYTES: u64 = 64 << 20;

/// A capture that is running.
pub struct Capture {
    tcpdump: Background,
    file: PathBuf,
}

impl Capture {
    /// Captures what `filter` selects on a guest's tap into `folder`, at most `frames` packets.
    pub fn start(
        lab: &Lab,
        folder: &Path,
        guest: &str,
        filter: &str,
        frames: Option<u32>,
    ) -> Result<Capture, String> {
        let file = folder.join(format!("{guest}.pcap"));
        let mut command = lab.host("tcpdump");
        command
            .args(["-i", &format!("tap-{guest}"), "-s", "0", "-B", "65536", "-Z", "root", "-w"])
            .arg(&file);
        if let Some(frames) = frames {
            command.args(["-c", &frames.to_string()]);
        }
        command.arg(filter);
        let mut tcpdump = Background::start(&mut command, &log_of(&file))?;
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

fn log_of(file: &Path) -> PathBuf {
    file.with_extension("tcpdump")
}

/// Frames that went by while tcpdump was busy, by its own closing words.
pub fn missed(file: &Path) -> Result<u64, String> {
    let log = log_of(file);
    let text = std::fs::read_to_string(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    let line = text.lines().find_map(|l| l.strip_suffix(" packets dropped by kernel"));
    line.and_then(|n| n.trim().parse().ok()).ok_or_else(|| format!("{}: no count of drops", log.display()))
}

/// Removes a large capture of a case that passed.
pub fn keep_if_small(file: &Path) {
    if std::fs::metadata(file).is_ok_and(|data| data.len() > KEPT_BYTES) {
        let _ = std::fs::remove_file(file);
    }
}

/// The opcodes of an RDMA WRITE's later packets. tshark 4.0 takes their payload, on a connection it knows as NVMe,
/// for a command capsule; it does so between two Linux kernels too.
const WRITE_MIDDLE_AND_LAST: [&str; 3] = ["7", "8", "9"];

/// The opcodes that begin an RDMA WRITE. tshark 4.0 counts the bytes of a command's data by packets seen, so that the first
/// packet of a WRITE that is sent again, which it took when it came first, is now past the end of an Identify or a log page.
const WRITE_FIRST_AND_ONLY: [&str; 3] = ["6", "10", "11"];

/// tshark 4.0 knows no SRP. On a connection whose protocol it does not know it takes a payload that looks so for one with an
/// Ethernet type before it, whatever is in the data.
const GUESSED: &str = ":infiniband:ethertype:";

/// Data of INQUIRY that ends before its own length, as an allocation length of 4 asks for, and LIO's Block Limits page, which has
/// SBC-2's 20 bytes: tshark 4.0 reads on behind them.
const CUT_INQUIRY: &str = "(iscsi.opcode == 0x25 && iscsi.datasegmentlength in {4, 20})";

/// What tshark says of a packet.
struct Packet {
    number: u64,
    opcode: String,
    /// Sender, destination queue pair and PSN: the same in a packet that is sent again.
    identity: String,
    protocols: String,
}

/// The packets that a display filter selects.
fn packets(file: &Path, filter: &str) -> Result<Vec<Packet>, String> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args(["--disable-protocol", "rpcordma", "-Y", filter, "-T", "fields"]);
    for field in ["frame.number", "infiniband.bth.opcode", "frame.protocols", "ip.src", "ipv6.src"] {
        tshark.args(["-e", field]);
    }
    tshark.args(["-e", "infiniband.bth.destqp", "-e", "infiniband.bth.psn"]);
    let out = tshark.output().map_err(|e| format!("cannot run tshark: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        return Err(format!("tshark: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let packet = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = fields.first().and_then(|n| n.parse().ok()).ok_or_else(|| format!("tshark: {line}"))?;
        let field = |at: usize| fields.get(at).copied().unwrap_or_default().to_owned();
        let identity = fields.get(3..).unwrap_or_default().join(" ");
        Ok(Packet { number, opcode: field(1), protocols: field(2), identity })
    };
    text.lines().map(packet).collect()
}

/// Frames that tshark calls malformed, beyond its known errors.
pub fn malformed(file: &Path) -> Result<Vec<String>, String> {
    let mut left: Vec<Packet> = packets(file, &format!("_ws.malformed && !{CUT_INQUIRY}"))?;
    left.retain(|p| !p.protocols.contains(GUESSED));
    left.retain(|p| !(WRITE_MIDDLE_AND_LAST.contains(&&*p.opcode) && p.protocols.ends_with("nvme-rdma")));
    let again = |p: &Packet| WRITE_FIRST_AND_ONLY.contains(&&*p.opcode) && p.protocols.ends_with("nvme-rdma");
    if left.iter().any(again) {
        let filter =
            format!("infiniband.bth.opcode in {{{}}} && !_ws.malformed", WRITE_FIRST_AND_ONLY.join(","));
        let mut good: HashMap<String, u64> = HashMap::new();
        for packet in packets(file, &filter)? {
            good.entry(packet.identity).or_insert(packet.number);
        }
        left.retain(|p| !(again(p) && good.get(&p.identity).is_some_and(|first| *first < p.number)));
    }
    Ok(left.iter().map(|p| format!("frame {} opcode {} {}", p.number, p.opcode, p.protocols)).collect())
}

/// How many frames with iSCSI in them the capture holds.
pub fn pdus(file: &Path) -> Result<usize, String> {
    packets(file, "iscsi").map(|packets| packets.len())
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
