//! Fuzz targets of `everywire decode`: capture files of both kinds, and the frames in them.

use std::path::Path;

use everywire_fabric::pcapng::{LinkType, PacketInfo, Writer};
use everywire_fuzz::{captures, target};
use serde_json::{Map, Value, json};

use super::*;

/// Frames of a seed: a file must stay short to be changed in places that matter.
const FRAMES: usize = 6;

fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = b"\xd4\xc3\xb2\xa1\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\x04\0\x01\0\0\0".to_vec();
    for frame in frames {
        file.extend([0; 8]);
        file.extend((frame.len() as u32).to_le_bytes());
        file.extend((frame.len() as u32).to_le_bytes());
        file.extend(frame);
    }
    file
}

fn pcapng(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "test").expect("into memory");
    let interface = writer.add_interface("eth0", "", LinkType::ETHERNET).expect("into memory");
    for frame in frames {
        let info = PacketInfo { comment: Some("a word"), ..PacketInfo::default() };
        writer.write_packet(interface, &info, frame).expect("into memory");
    }
    writer.into_inner().expect("into memory")
}

fn files() -> Vec<Vec<u8>> {
    let mut frames = captures::frames();
    frames.retain(|f| f.len() < 512);
    frames.chunks(FRAMES).flat_map(|some| [pcap(some), pcapng(some)]).collect()
}

target!(capture_file, files(), |bytes| {
    let mut seen = 0;
    let mut captured = 0;
    let _ = reader::for_each_in(bytes, Path::new("fuzz"), |frame| {
        seen += 1;
        captured += frame.bytes.len();
        assert_eq!(frame.number, seen);
        Ok(())
    });
    assert!(captured <= bytes.len());
});

target!(decode_frame, captures::frames(), |bytes| {
    let (mut known, mut totals, mut object) = (Known::default(), Totals::default(), Map::new());
    object.insert("number".into(), json!(1));
    // Twice, since the second finds the flow that the first made.
    for _ in 0..2 {
        let shown = describe(Link::Ethernet, bytes, &mut known, &mut totals, &mut object);
        let line = packet::line(&object);
        assert!(!line.contains('\n'), "{line}");
        let named = ["icrc", "iwarp"].iter().any(|key| object.contains_key(*key));
        assert!(!shown || totals.malformed > 0 || named);
    }
    let text = Value::Object(object).to_string();
    assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
});

/// MADs of every class that is told apart, in ERF records as our fabrics write them.
fn records() -> Vec<Vec<u8>> {
    use everywire_fabric::ib::{erf_record, mad_packet};
    use everywire_wire::mad::method::{GET, GET_RESP};
    use everywire_wire::sa::{McMemberRecord, PathRecord, SaMad};
    use everywire_wire::smp::{Smp, attribute};
    use everywire_wire::{Gid, Lid};

    let smi = mad_packet::MadRoute::management(Lid(3), Lid(4));
    let gsi = mad_packet::MadRoute::services(Lid(3), Lid(4), 2);
    let global = mad_packet::MadRoute { gids: Some((Gid([3; 16]), Gid([4; 16]))), ..gsi };
    let packets = [
        (smi, Smp::directed(GET, attribute::NODE_INFO, 0, 1, &[1, 2, 3]).to_mad()),
        (smi, Smp::lid_routed(GET_RESP, attribute::PORT_INFO, 1, 2).to_mad()),
        (gsi, SaMad::with_record(GET_RESP, &PathRecord::default(), 3, 3).to_mad()),
        (global, SaMad::with_record(GET_RESP, &McMemberRecord::default(), 3, 4).to_mad()),
    ];
    packets.iter().map(|(route, mad)| erf_record(7, &route.packet(mad))).collect()
}

target!(decode_infiniband, records(), |bytes| {
    let (mut known, mut totals, mut object) = (Known::default(), Totals::default(), Map::new());
    let wire_len = bytes.len() as u32;
    let mut frame = reader::Frame { number: 1, time_ns: 0, link: Link::Erf, bytes: bytes.to_vec(), wire_len };
    if unwrap_erf(&mut frame).is_ok() {
        describe(frame.link, &frame.bytes, &mut known, &mut totals, &mut object);
        assert_eq!(totals.infiniband, 1);
        assert!(!packet::line(&object).contains('\n'));
        assert!(totals.malformed > 0 || object.contains_key("lrh"));
    }
});

#[test]
fn the_seeds_are_captures() {
    for file in files() {
        let mut seen = 0;
        let count = |_| {
            seen += 1;
            Ok(())
        };
        reader::for_each_in(&file[..], Path::new("seed"), count).unwrap();
        assert!((1..=FRAMES).contains(&seen));
    }
}
