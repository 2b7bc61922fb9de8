//! What the wire tests share: reading the captures under `captures/`.
//!
//! Classic pcap only (the libpcap file format draft, §4), little-endian, Ethernet: what tcpdump on the Linux guests wrote.
//! The everyday reader of the product is elsewhere; this one is small enough to be obviously right.

use std::path::PathBuf;

/// Every capture and how many RoCE frames tshark 4.0 counts in it (`tshark -Y infiniband`).
pub const CAPTURES: [(&str, usize); 11] = [
    ("cm_reject_no_listener", 26),
    ("ib_atomic_lat", 20),
    ("ib_read_bw", 90),
    ("ib_send_bwUC", 40),
    ("ib_send_bwUD", 10),
    ("ib_send_lat", 40),
    ("lossy_write", 1175),
    ("nvme_rdma", 531),
    ("rc_pingpong", 40),
    ("rping", 69),
    ("rping6", 41),
];

/// The frames of `captures/NAME.pcap`, in order.
pub fn frames(name: &str) -> Vec<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../captures/{name}.pcap"));
    let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xa1b2_c3d4, "{name}: not a little-endian pcap with microseconds");
    assert_eq!(word(20), 1, "{name}: link type is not Ethernet");
    let (mut at, mut frames) = (24, Vec::new());
    while at < file.len() {
        let (captured, original) = (word(at + 8), word(at + 12));
        assert_eq!(captured, original, "{name}: frame {} is cut short", frames.len() + 1);
        at += 16;
        frames.push(file[at..at + captured as usize].to_vec());
        at += captured as usize;
    }
    frames
}
