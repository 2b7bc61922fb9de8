//! Tests of the client against answers put together by hand from IBTA §15.2.

use everywire_wire::Lid;
use everywire_wire::mad::{RmppHeader, rmpp};

use super::*;

const PATH: Ask = Ask::Path { sgid: Gid([1; 16]), dgid: Gid([2; 16]), pkey: PKey::DEFAULT };

/// The next request, taken apart.
fn sent(client: &mut SaClient, now: Instant) -> Option<SaMad> {
    client.poll_transmit(now).map(|mad| SaMad::from_mad(&mad).unwrap())
}

fn answer(request: &SaMad, status: u16, method: u8) -> SaMad {
    let mut answer = *request;
    answer.header.status = status;
    answer.header.method = method;
    answer
}

fn path_record() -> PathRecord {
    PathRecord {
        sgid: Gid([1; 16]),
        dgid: Gid([2; 16]),
        slid: Lid(3),
        dlid: Lid(4),
        mtu: 5,
        ..PathRecord::default()
    }
}

#[test]
fn a_path_is_asked_for_once_and_remembered() {
    let (mut client, now) = (SaClient::new(7), Instant::now());
    client.ask(Some(now), 1, PATH);
    let request = sent(&mut client, now).unwrap();
    // IBTA tables 150 and 189: SubnAdmGet of PathRecord; components 2, 3, 11, 12 and 13 count.
    assert_eq!((request.header.mgmt_class, request.header.class_version), (3, 2));
    assert_eq!((request.header.method, request.header.attribute_id), (0x01, 0x0035));
    assert_eq!(request.component_mask, 0b11_1000_0000_1100);
    assert_eq!(request.header.transaction_id >> 32, 7);
    let mut good = answer(&request, 0, 0x81);
    path_record().emit(&mut good.data);
    client.handle_mad(now, &good.to_mad());
    assert_eq!(client.poll_answer(), Some((1, Ok(Answer::Path(path_record())))));
    client.ask(Some(now), 2, PATH);
    assert_eq!(client.poll_answer(), Some((2, Ok(Answer::Path(path_record())))));
    assert_eq!((sent(&mut client, now), client.footprint()), (None, 0));
    client.circumstances_changed();
    client.ask(Some(now), 3, PATH);
    assert!(sent(&mut client, now).is_some(), "LIDs may be others");
}

#[test]
fn silence_and_busy_are_met_with_patience() {
    let (mut client, start) = (SaClient::new(0), Instant::now());
    client.ask(None, 1, PATH);
    let first = sent(&mut client, start).unwrap();
    client.handle_mad(start, &answer(&first, status::BUSY, 0x81).to_mad());
    let (mut now, mut tries) = (start, 1);
    while client.poll_answer().is_none_or(|answer| {
        assert_eq!(answer, (1, Err(SaError::NoAnswer)));
        false
    }) {
        now = client.poll_timeout().unwrap();
        client.handle_timeout(now);
        tries += u32::from(sent(&mut client, now).is_some_and(|again| again == first));
    }
    assert_eq!(tries, MAX_TRIES);
    // 0.2 s · (1 + 2 + 4 + 8 + 16 + 32).
    assert_eq!(now - start, Duration::from_millis(12_600));
    assert_eq!(client.footprint(), 0);
}

#[test]
fn refusals_and_answers_to_nobody() {
    let (mut client, now) = (SaClient::new(0), Instant::now());
    client.ask(None, 1, PATH);
    let request = sent(&mut client, now).unwrap();
    let mut stray = answer(&request, 0, 0x81);
    stray.header.transaction_id += 1;
    client.handle_mad(now, &stray.to_mad());
    client.handle_mad(now, &answer(&request, 0, 0x92).to_mad());
    assert_eq!(client.poll_answer(), None);
    client.handle_mad(now, &answer(&request, sa::status::NO_RECORDS, 0x81).to_mad());
    assert_eq!(client.poll_answer(), Some((1, Err(SaError::Status(0x0300)))));
    client.ask(None, 2, PATH);
    client.withdraw(2);
    assert_eq!((sent(&mut client, now), client.poll_timeout()), (None, None));
}

#[test]
fn joining_makes_a_group_and_sending_only_does_not() {
    // IBTA §15.2.5.17.3 asks for components 1, 2, 6, 7, 12, 13 and 16 where a group is made, beside the MGID.
    let (mut client, now) = (SaClient::new(0), Instant::now());
    let (mgid, port_gid) = (Gid([0xff; 16]), Gid([9; 16]));
    for (join, mask) in
        [(join_state::FULL, 0b1_0011_0000_1100_0111), (join_state::SEND_ONLY_NON, 0b1_0000_0000_0000_0011)]
    {
        client.ask(None, 1, Ask::Join { mgid, port_gid, pkey: PKey::DEFAULT, qkey: QKey(0x0123_4567), join });
        let request = sent(&mut client, now).unwrap();
        assert_eq!((request.header.method, request.header.attribute_id), (0x02, 0x0038));
        assert_eq!(request.component_mask, mask);
        let mut good = answer(&request, 0, 0x81);
        good.data[36..38].copy_from_slice(&[0xc0, 0x05]);
        client.handle_mad(now, &good.to_mad());
        let Some((1, Ok(Answer::Member(member)))) = client.poll_answer() else { panic!("joined") };
        assert_eq!((member.mlid, member.qkey), (Lid(0xc005), QKey(0x0123_4567)));
    }
    client.ask(None, 2, Ask::Leave { mgid, port_gid, join: join_state::FULL });
    let request = sent(&mut client, now).unwrap();
    assert_eq!(request.header.method, 0x15);
    client.handle_mad(now, &answer(&request, 0, 0x95).to_mad());
    assert!(matches!(client.poll_answer(), Some((2, Ok(Answer::Member(_))))));
}

#[test]
fn a_table_comes_in_segments() {
    let (mut client, now) = (SaClient::new(0), Instant::now());
    client.ask(None, 1, Ask::Paths { sgid: Gid([1; 16]), dgid: Gid([2; 16]), pkey: PKey::DEFAULT, most: 4 });
    let request = sent(&mut client, now).unwrap();
    assert_eq!(request.header.method, 0x12);
    // Four records of 64 bytes: 256 bytes in two segments.
    let mut data = Vec::new();
    for lid in 1..=4 {
        let mut bytes = [0; 64];
        PathRecord { dlid: Lid(lid), ..path_record() }.emit(&mut bytes);
        data.extend(bytes);
    }
    for (i, chunk) in data.chunks(200).enumerate() {
        let mut segment = answer(&request, 0, 0x92);
        segment.attribute_offset = 8;
        segment.rmpp = RmppHeader {
            version: 1,
            rmpp_type: rmpp::DATA,
            active: true,
            first: i == 0,
            last: i == 1,
            data1: i as u32 + 1,
            data2: 20 + chunk.len() as u32,
            ..RmppHeader::default()
        };
        segment.data[..chunk.len()].copy_from_slice(chunk);
        client.handle_mad(now, &segment.to_mad());
        let ack = sent(&mut client, now).unwrap();
        assert_eq!((ack.rmpp.rmpp_type, ack.rmpp.data1), (rmpp::ACK, i as u32 + 1));
    }
    let Some((1, Ok(Answer::Paths(paths)))) = client.poll_answer() else { panic!("a table") };
    assert_eq!(paths.iter().map(|path| path.dlid.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
}
