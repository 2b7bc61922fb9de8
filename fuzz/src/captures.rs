//! Seeds: frames that Linux kernels sent, from the project's `captures/`, and what is inside them.
//!
//! Classic little-endian pcap files only. At most a few frames of each length are kept: a seed is worth its shape, not its
//! payload.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use everywire_wire::{Mad, Qpn, RocePacket, UdpFrame};

/// Frames of one length that are kept.
const FRAMES_PER_LENGTH: usize = 8;

/// The captures of the project.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../captures")
}

/// Whole Ethernet frames of every kind in every capture.
pub fn frames() -> Vec<Vec<u8>> {
    let dir = directory();
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("directory entry").path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "pcap"));
    // Directory order is the file system's; seeds must be the same everywhere.
    paths.sort();
    let (mut kept, mut of_length) = (Vec::new(), BTreeMap::<usize, usize>::new());
    for path in paths {
        let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for frame in pcap_frames(&file) {
            let count = of_length.entry(frame.len()).or_default();
            *count += 1;
            if *count <= FRAMES_PER_LENGTH {
                kept.push(frame.to_vec());
            }
        }
    }
    kept
}

/// The UDP payloads of RoCE v2 frames: BTH to ICRC.
pub fn roce_payloads() -> Vec<Vec<u8>> {
    let frames = frames();
    let parsed = frames.iter().filter_map(|f| UdpFrame::parse(f).ok());
    parsed.filter(|f| f.is_roce()).map(|f| f.payload.to_vec()).collect()
}

/// The MADs of packets to QP1.
pub fn mads() -> Vec<Mad> {
    let payloads = roce_payloads();
    let packets = payloads.iter().filter_map(|p| RocePacket::parse(p).ok());
    packets.filter(|p| p.bth.dest_qp == Qpn::GSI).filter_map(|p| p.payload.try_into().ok()).collect()
}

/// The TCP payloads of frames to or from the iWARP ports of the captures: start frames and FPDUs.
pub fn iwarp_payloads() -> Vec<Vec<u8>> {
    let payload = |frame: &Vec<u8>| {
        let is_tcp = frame.len() > 54 && frame[12..14] == [8, 0] && frame[23] == 6;
        let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        let start = 34 + usize::from(frame[46] >> 4) * 4;
        frame.get(start..end).filter(|p| is_tcp && !p.is_empty()).map(<[u8]>::to_vec)
    };
    frames().iter().filter(|f| f.len() > 54).filter_map(payload).collect()
}

/// The frames of a pcap file, as far as it is whole.
fn pcap_frames(mut file: &[u8]) -> impl Iterator<Item = &[u8]> {
    const FILE_HEADER: usize = 24;
    const RECORD_HEADER: usize = 16;
    file = file.get(FILE_HEADER..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (header, rest) = file.split_at_checked(RECORD_HEADER)?;
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let (frame, rest) = rest.split_at_checked(len)?;
        file = rest;
        Some(frame)
    })
}
