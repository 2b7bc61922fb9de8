//! Captures of iWARP, judged by tshark: every FPDU dissected, no frame malformed, and every CRC that the connection agreed
//! on right.
//!
//! tshark checks CRCs itself, but says what it found only in its full text, which is read line by line, in one pass: over TCP
//! it reads few thousand frames a second.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// TCP segments that came in another order are put in order before MPA sees them; and MPA, which tshark knows by its first
/// bytes, goes before what is known by its port: 4420 is NVMe over TCP to it.
const OPTIONS: [&str; 4] = ["-o", "tcp.reassemble_out_of_order:TRUE", "-o", "tcp.try_heuristic_first:TRUE"];

/// What tshark found in a capture.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// MPA requests and replies.
    pub starts: usize,
    /// Those with the peer-to-peer flag: the first bit of what RFC 6581 §4 puts before the private data.
    pub peer_to_peer: usize,
    /// FPDUs by RDMAP opcode.
    pub opcodes: BTreeMap<u8, usize>,
    /// Whose CRC is right, and whose is not.
    pub good_crcs: usize,
    pub bad_crcs: usize,
    /// What tshark calls malformed, with the frame's number.
    pub malformed: Vec<String>,
    frame: String,
}

impl Found {
    /// All FPDUs.
    pub fn fpdus(&self) -> usize {
        self.opcodes.values().sum()
    }

    /// Where the program's own view is another.
    pub fn differences(&self, ours: &Found) -> Vec<String> {
        let mut findings: Vec<String> =
            ours.malformed.iter().take(5).map(|m| format!("decode calls malformed: {m}")).collect();
        let view = |f: &Found| {
            format!("{} starts, {:?}, CRCs {} good {} bad", f.starts, f.opcodes, f.good_crcs, f.bad_crcs)
        };
        if view(self) != view(ours) {
            findings.push(format!("tshark sees {}; decode sees {}", view(self), view(ours)));
        }
        findings
    }

    fn read(&mut self, line: &str) {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("Frame ") {
            self.frame = rest.split(':').next().unwrap_or_default().to_owned();
        } else if line.starts_with("[Malformed Packet") {
            self.malformed.push(format!("frame {} {line}", self.frame));
        } else if line.starts_with("Request frame header") || line.starts_with("Reply frame header") {
            self.starts += 1;
        } else if let Some(data) = line.strip_prefix("Private data: ") {
            self.peer_to_peer += usize::from(data.starts_with(|c: char| c >= '8'));
        } else if line.contains("= OpCode: ") {
            let code = line.rsplit_once("(0x").and_then(|(_, code)| code.strip_suffix(')'));
            let code = code.and_then(|c| u8::from_str_radix(c, 16).ok());
            *self.opcodes.entry(code.unwrap_or(u8::MAX)).or_default() += 1;
        } else if line.starts_with("CRC check: ") {
            self.good_crcs += usize::from(line.contains("Good CRC32"));
            self.bad_crcs += usize::from(line.contains("Bad CRC32"));
        }
    }
}

/// Names of `everywire decode` by RDMAP opcode (RFC 5040 §4.2).
const NAMES: [&str; 8] = [
    "RDMA Write",
    "RDMA Read Request",
    "RDMA Read Response",
    "Send",
    "Send with Invalidate",
    "Send with SE",
    "Send with SE and Invalidate",
    "Terminate",
];

/// The same of a capture by `everywire decode`, which calls malformed too what it cannot put together again bit for bit.
pub fn decoded(program: &Path, file: &Path) -> Result<Found, String> {
    let out = Command::new(program).args(["decode", "--json"]).arg(file).output();
    let out = out.map_err(|e| format!("cannot run {}: {e}", program.display()))?;
    if !out.status.success() {
        return Err(format!("decode: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let mut found = Found::default();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let frame: serde_json::Value =
            serde_json::from_str(line).map_err(|e| format!("decode --json: {e}: {line}"))?;
        for unit in frame["iwarp"].as_array().into_iter().flatten() {
            if unit["mpa"].is_string() {
                found.starts += 1;
                found.peer_to_peer += usize::from(unit["enhanced"]["peer_to_peer"] == true);
            }
            if let Some(name) = unit["opcode"].as_str() {
                let code = NAMES.iter().position(|n| *n == name).map_or(u8::MAX, |code| code as u8);
                *found.opcodes.entry(code).or_default() += 1;
            }
            found.good_crcs += usize::from(unit["crc"] == "good");
            found.bad_crcs += usize::from(unit["crc"] == "bad");
            if let Some(why) = unit["error"].as_str() {
                found.malformed.push(format!("frame {}: {why}", frame["number"]));
            }
        }
    }
    Ok(found)
}

/// Has tshark dissect a capture.
pub fn dissect(file: &Path) -> Result<Found, String> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args(OPTIONS).args(["--disable-protocol", "rpcordma"]);
    tshark.args(["-Y", "iwarp_mpa || _ws.malformed", "-V", "-O", "iwarp_mpa,iwarp_ddp_rdmap"]);
    tshark.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = tshark.spawn().map_err(|e| format!("cannot run tshark: {e}"))?;
    let mut found = Found::default();
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            found.read(&line);
        }
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    if status.success() { Ok(found) } else { Err(format!("tshark on {}: {status}", file.display())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// tshark 4.0's text of FPDUs between two Linux kernels.
    const TEXT: &str = "\
Frame 4: 90 bytes on wire (720 bits), 90 bytes captured (720 bits)
iWARP Marker Protocol data unit Aligned framing
    Request frame header
        .1.. .... = CRC flag: True
        Private data length: 4 bytes
        Private data: 8001c001
    FPDU
        CRC check: 0xf4f8996e (Good CRC32)
            .... 0011 = OpCode: Send (0x3)
        CRC check: 0xf86fbcf8 (Bad CRC32, should be 0x00000000)
            .... 0001 = OpCode: Read Request (0x1)
        CRC: 0x00000000
            .... 0011 = OpCode: Send (0x3)
[Malformed Packet: MPA]
    [Expert Info (Error/Malformed): Malformed Packet (Exception occurred)]
";

    #[test]
    fn text_is_counted() {
        let mut found = Found::default();
        TEXT.lines().for_each(|line| found.read(line));
        let opcodes = BTreeMap::from([(1, 1), (3, 2)]);
        let malformed = vec!["frame 4 [Malformed Packet: MPA]".to_owned()];
        let frame = "4".into();
        assert_eq!(
            found,
            Found { starts: 1, peer_to_peer: 1, opcodes, good_crcs: 1, bad_crcs: 1, malformed, frame }
        );
        assert_eq!(found.fpdus(), 3);
    }
}
