//! `everywire decode` on frames that Linux kernels sent. Expectations are what tshark says of the same files.

mod common;

use common::{captures, run, run_with};
use serde_json::Value;

fn packets(file: &str) -> Vec<Value> {
    let path = captures().join(file);
    let outcome = run(&["decode", "--json", path.to_str().unwrap()]).expect(0);
    outcome.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_capture_is_whole() {
    let mut files = 0;
    for entry in std::fs::read_dir(captures()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        let outcome = run(&["decode", path.to_str().unwrap()]).expect(0);
        assert!(outcome.stderr.contains(" 0 with a bad ICRC, 0 malformed"), "{path:?}: {}", outcome.stderr);
        files += 1;
    }
    assert!(files >= 10, "{files} captures");
}

#[test]
fn a_rejection_is_named() {
    let text =
        run(&["decode", captures().join("cm_reject_no_listener.pcap").to_str().unwrap()]).expect(0).text();
    assert!(text.contains("message=REJ") && text.contains("invalid service ID"), "{text}");
    assert!(!text.contains("private_data=\n") && !text.contains("private_data= "), "{text}");
}

#[test]
fn rping_has_its_operations_and_nvme_its_capsules() {
    let names: Vec<String> = packets("rping.pcap").iter().map(|p| p.to_string()).collect();
    for opcode in ["RC Send Only", "RC RDMA Read Request", "RC RDMA Write"] {
        assert!(names.iter().any(|line| line.contains(opcode)), "{opcode}");
    }
    let text = run(&["decode", captures().join("nvme_rdma.pcap").to_str().unwrap()]).expect(0).text();
    assert!(text.contains("Connect") || text.contains("connect"), "no NVMe capsule is shown");
}

#[test]
fn what_is_no_capture_is_said() {
    let outcome = run(&["decode", "/etc/passwd"]).expect(1);
    assert!(outcome.stderr.contains("/etc/passwd"), "{}", outcome.stderr);
    let outcome = run(&["decode", "/nonexistent.pcap"]).expect(1);
    assert!(outcome.stderr.contains("/nonexistent.pcap"), "{}", outcome.stderr);
}

/// tshark counts 21 FPDUs in these, 22 where a zero-length RDMA Write is the RTR, and two start frames.
#[test]
fn iwarp_is_taken_apart() {
    for (file, fpdus, crc) in [
        ("siw-rping.pcap", 21, "none"),
        ("siw-crc-rping.pcap", 21, "good"),
        ("siw-p2pcrc-rping.pcap", 22, "good"),
    ] {
        let packets = packets(file);
        let units: Vec<&Value> = packets.iter().filter_map(|p| p["iwarp"].as_array()).flatten().collect();
        assert_eq!(units.iter().filter(|u| u["mpa"].is_string()).count(), 2, "{file}");
        let data: Vec<_> = units.iter().filter(|u| u["opcode"].is_string()).collect();
        assert_eq!(data.len(), fpdus, "{file}");
        assert!(data.iter().all(|u| u["crc"] == crc), "{file}: {data:?}");
        assert!(units.iter().all(|u| u.get("error").is_none()), "{file}: {units:?}");
    }
    let outcome = run(&["decode", captures().join("siw-crc-perftest.pcap").to_str().unwrap()]).expect(0);
    // tshark: 232 FPDUs, 24 start frames.
    assert!(outcome.stderr.contains(" 256 iWARP, 0 with a bad ICRC, 0 malformed"), "{}", outcome.stderr);
}

/// An FPDU of siw's with a changed byte: its CRC is wrong, and counted apart from ICRCs.
#[test]
fn wrong_crcs_of_iwarp_are_counted() {
    let mut file = std::fs::read(captures().join("siw-crc-rping.pcap")).unwrap();
    let text = b"rdma-ping-0: ABCDEFGHIJKL";
    let at = file.windows(text.len()).position(|window| window == text).expect("rping's text in an FPDU");
    file[at + text.len() - 1] ^= 0x20;
    let outcome = run_with(&["decode", "-"], file).expect(0);
    assert!(outcome.stderr.contains(" 0 with a bad ICRC, 0 malformed"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(", 1 FPDU with a wrong CRC"), "{}", outcome.stderr);
    let whole = run(&["decode", captures().join("siw-crc-rping.pcap").to_str().unwrap()]).expect(0);
    assert!(whole.stderr.contains(", 0 FPDUs with a wrong CRC"), "{}", whole.stderr);
}

/// Where a file is cut, it says where and what should have come.
#[test]
fn a_cut_file_says_what_is_missing() {
    let file = std::fs::read(captures().join("rping.pcap")).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    // libpcap's savefile format: 24 bytes, then records of 16 bytes and as many as bytes 8 to 11 of those say.
    let second = 24 + 16 + word(24 + 8);
    let length = 16 + word(second + 8);
    for (end, words) in [
        (10, vec!["ends at byte 10".to_owned(), "24 bytes".to_owned()]),
        (second + 7, vec![format!("cut at byte {}", second + 7), "a header of 16 bytes".to_owned()]),
        (
            second + 21,
            vec![
                format!("cut at byte {}", second + 21),
                format!("a record of {length} bytes begins at byte {second}, and 21 of them"),
                "up to number 1)".to_owned(),
            ],
        ),
    ] {
        let outcome = run_with(&["decode", "-"], file[..end].to_vec());
        assert_eq!(outcome.code, Some(i32::from(end < 24)), "{}", outcome.stderr);
        for word in words {
            assert!(outcome.stderr.contains(&word), "{word}: {}", outcome.stderr);
        }
    }
}
