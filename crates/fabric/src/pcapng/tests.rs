//! Expectations come from the pcapng draft's layouts and from tshark and capinfos reading what we wrote.

use super::*;
use std::process::Command;

/// An ARP request (RFC 826), 42 bytes: short, and not a multiple of four.
const ARP: [u8; 42] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0, 0, 0, 0, 1, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1, 0x02, 0,
    0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
];

#[test]
fn section_header_follows_the_draft() {
    let bytes = Writer::new(Vec::new(), "test").unwrap().into_inner().unwrap();
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    let total = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
    assert_eq!(total as usize, bytes.len());
    assert_eq!(bytes[8..12], [0x4d, 0x3c, 0x2b, 0x1a], "little-endian byte-order magic");
    assert_eq!(bytes[12..16], [1, 0, 0, 0], "version 1.0");
    assert_eq!(bytes[16..24], [0xff; 8], "section length not given");
    assert_eq!(bytes[bytes.len() - 4..], total.to_le_bytes(), "the length stands at both ends");
}

#[test]
fn enhanced_packet_follows_the_draft() {
    let mut writer = Writer::new(Vec::new(), "test").unwrap();
    let eth0 = writer.add_interface("eth0", "", LinkType::ETHERNET).unwrap();
    let start = writer.out.len();
    let info = PacketInfo { time_ns: 0x0102_0304_0506_0708, ..PacketInfo::default() };
    writer.write_packet(eth0, &info, &ARP).unwrap();
    let block = &writer.out[start..];
    assert_eq!(block.len(), 32 + 44, "fixed part, frame padded to four, no options");
    assert_eq!(block[..4], [6, 0, 0, 0]);
    assert_eq!(block[12..20], [4, 3, 2, 1, 8, 7, 6, 5], "high half of the timestamp first");
    assert_eq!(block[20..28], [42, 0, 0, 0, 42, 0, 0, 0]);
    assert_eq!(block[28..70], ARP);
}

#[test]
fn long_frames_and_comments_are_cut() {
    let mut writer = Writer::new(Vec::new(), "test").unwrap();
    let eth0 = writer.add_interface("eth0", "", LinkType::ETHERNET).unwrap();
    let start = writer.out.len();
    let frame = vec![0u8; MAX_CAPTURED_LEN + 3];
    writer.write_packet(eth0, &PacketInfo::default(), &frame).unwrap();
    assert_eq!(writer.out[start + 20..start + 24], (MAX_CAPTURED_LEN as u32).to_le_bytes());
    assert_eq!(writer.out[start + 24..start + 28], (MAX_CAPTURED_LEN as u32 + 3).to_le_bytes());
    let comment = "é".repeat(MAX_COMMENT_LEN);
    assert_eq!(cut(&comment).len(), MAX_COMMENT_LEN);
    assert_eq!(cut(&format!("a{comment}")).len(), MAX_COMMENT_LEN - 1, "never inside a character");
}

/// Both judges read the file and agree with what was put in; skipped, with a word, where they are not installed.
#[test]
fn tshark_and_capinfos_read_it() {
    let path = std::env::temp_dir().join(format!("everywire-pcapng-{}.pcapng", std::process::id()));
    let mut writer = Writer::new(std::fs::File::create(&path).unwrap(), "everywire").unwrap();
    let a = writer.add_interface("a", "first port", LinkType::ETHERNET).unwrap();
    let b = writer.add_interface("b", "", LinkType::ETHERNET).unwrap();
    let sent = PacketInfo {
        time_ns: 1_700_000_000_123_456_789,
        direction: Some(Direction::Outbound),
        dropped: Some(3),
        comment: Some("delayed 5 µs"),
    };
    writer.write_packet(a, &sent, &ARP).unwrap();
    let got = PacketInfo { time_ns: 1_700_000_000_123_456_999, direction: Some(Direction::Inbound), ..sent };
    writer.write_packet(b, &PacketInfo { comment: None, dropped: None, ..got }, &ARP).unwrap();
    writer.into_inner().unwrap();

    let fields =
        ["frame.interface_name", "frame.time_epoch", "frame.packet_flags_direction", "frame.comment"];
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r"]).arg(&path).args(["-T", "fields", "-E", "separator=|"]);
    for field in fields.iter().chain(&["arp.dst.proto_ipv4", "_ws.malformed"]) {
        tshark.args(["-e", field]);
    }
    match tshark.output() {
        Err(error) => everywire_testkit::skipped(format_args!("tshark: {error}")),
        Ok(output) => {
            let text = String::from_utf8(output.stdout).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(
                lines,
                [
                    "a|1700000000.123456789|0x00000002|delayed 5 µs|10.0.0.2|",
                    "b|1700000000.123456999|0x00000001||10.0.0.2|"
                ],
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    match Command::new("capinfos").arg(&path).output() {
        Err(error) => everywire_testkit::skipped(format_args!("capinfos: {error}")),
        Ok(output) => {
            let text = String::from_utf8(output.stdout).unwrap();
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            for want in [
                "pcapng",
                "Number of packets: 2",
                "Time precision = nanoseconds (9)",
                "Number of interfaces in file: 2",
            ] {
                assert!(text.contains(want), "{want:?} not in:\n{text}");
            }
        }
    }
    std::fs::remove_file(&path).unwrap();
}
