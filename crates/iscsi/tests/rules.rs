//! A target's session driven PDU by PDU: numbers, rejects, data, text, logout, by the clauses of RFC 7143.

mod lab;
mod raw_session;

use std::time::Duration;

use everywire_iscsi::keys::text;
use everywire_iscsi::pdu::*;
use everywire_iscsi::session::target::Action;
use lab::TARGET;
use raw_session::{FIRST, Raw, command, write};

/// §4.2.2.1: in order, held, ignored, over a wrap of the numbers.
#[test]
fn commands_run_in_the_order_of_their_numbers() {
    let mut raw = Raw::normal();
    assert_eq!(raw.sent(Pdu::new(command(FIRST.wrapping_add(2), 0))), []);
    assert_eq!(raw.sent(Pdu::new(command(FIRST.wrapping_add(4), 0))), [], "above MaxCmdSN");
    assert_eq!(raw.sent(Pdu::new(command(FIRST.wrapping_sub(1), 0))), [], "below ExpCmdSN");
    assert_eq!(raw.sent(Pdu::new(command(FIRST, 0))).len(), 1);
    let both = raw.sent(Pdu::new(command(FIRST.wrapping_add(1), 0)));
    let [Header::ScsiResponse(one), Header::ScsiResponse(two)] = [both[0].header, both[1].header] else {
        panic!("{both:?}");
    };
    assert_eq!((one.itt, two.itt), (FIRST.wrapping_add(101), FIRST.wrapping_add(102)));
    assert_eq!((two.stat_sn, two.exp_cmd_sn), (one.stat_sn + 1, FIRST.wrapping_add(3)));
    assert_eq!(two.max_cmd_sn, FIRST.wrapping_add(6), "three are answered: all four places are free");
}

/// §11.16 at level 0, §7.10, and PDUs that only targets send.
#[test]
fn rejects() {
    let mut raw = Raw::normal();
    assert_eq!(raw.reject(Pdu::new(Snack::default())), RejectReason::Snack);
    assert_eq!(raw.reject(Pdu::new(LoginRequest::default()).immediate()), RejectReason::Protocol);
    assert_eq!(raw.reject(Pdu::new(R2t::default())), RejectReason::Protocol);
    assert_eq!(
        raw.reject(Pdu::new(ScsiCommand { itt: NO_TAG, ..command(FIRST, 0) })),
        RejectReason::InvalidField
    );
    let mut bad = Pdu::new(command(FIRST.wrapping_add(1), 0));
    bad.ahs = vec![0, 9, 1, 0].into();
    assert_eq!(raw.reject(bad), RejectReason::InvalidField);
    let mut discovery = Raw::new(&[("SessionType", "Discovery")]);
    assert_eq!(discovery.reject(Pdu::new(command(FIRST, 0))), RejectReason::Protocol);
}

fn sense_of(pdus: &[Pdu]) -> (u8, u8, u8) {
    let data = &pdus[0].data;
    assert_eq!(usize::from(u16::from_be_bytes([data[0], data[1]])), data.len() - 2);
    (data[4], data[14], data[15])
}

/// §11.4.7.2 and §13.10–§13.14: data that was not allowed, too much, or in the wrong place.
#[test]
fn unsolicited_data_keeps_to_the_rules() {
    let data = |itt: u32, flags, data_sn, offset, len: usize| {
        let header = DataOut { flags, itt, ttt: NO_TAG, data_sn, offset, ..DataOut::default() };
        Pdu::with_data(header, vec![5; len])
    };
    let no_immediate = &[("TargetName", TARGET), ("ImmediateData", "No"), ("InitialR2T", "Yes")];
    let mut raw = Raw::new(no_immediate);
    let pdus = raw.sent(Pdu::with_data(write(FIRST, FINAL, 512, 1), vec![1; 512]));
    assert_eq!(sense_of(&pdus), (0x0b, 0x0c, 0x0c), "unexpected unsolicited data");
    let pdus = raw.sent(Pdu::new(write(FIRST.wrapping_add(1), 0, 512, 1)));
    assert_eq!(sense_of(&pdus), (0x0b, 0x0c, 0x0c), "InitialR2T=Yes");

    let mut raw = Raw::normal();
    let pdus = raw.sent(Pdu::with_data(write(FIRST, FINAL, 2048, 4), vec![1; 1536]));
    assert_eq!(sense_of(&pdus), (0x0b, 0x0c, 0x0d), "more than FirstBurstLength");
    let (number, itt) = (FIRST.wrapping_add(1), FIRST.wrapping_add(101));
    assert_eq!(raw.sent(Pdu::with_data(write(number, 0, 1024, 2), vec![1; 512])), []);
    let pdus = raw.sent(data(itt, FINAL, 0, 256, 512));
    assert_eq!(sense_of(&pdus), (0x0b, 0x0c, 0x0d), "the wrong place");
    assert_eq!(raw.sent(data(itt, FINAL, 1, 512, 512)), [], "of a task that has ended: dropped");
    assert!(raw.disk.bytes.borrow().iter().all(|&byte| byte == 0), "nothing was written");
}

/// Data of a held command waits with it.
#[test]
fn held_commands_keep_their_data() {
    let mut raw = Raw::normal();
    let number = FIRST.wrapping_add(1);
    raw.sent(Pdu::with_data(write(number, 0, 1024, 2), vec![1; 512]));
    let header = DataOut {
        flags: FINAL,
        itt: number.wrapping_add(100),
        ttt: NO_TAG,
        offset: 512,
        ..DataOut::default()
    };
    raw.sent(Pdu::with_data(header, vec![2; 512]));
    let actions = raw.say(Pdu::new(command(FIRST, 0)));
    let asked = actions.into_iter().find_map(|action| match action {
        Action::Allocate { task, len } => Some((task, len)),
        _ => None,
    });
    let (task, len) = asked.expect("its turn has come");
    assert_eq!(len, 1024);
    raw.session.memory(task, everywire_block::SharedBuffer::new(vec![0; len]).io());
    assert!(matches!(raw.session.poll(), Some(Action::Respond(response)) if response.status == 0));
    let bytes = raw.disk.bytes.borrow();
    assert_eq!((&bytes[..512], &bytes[512..1024]), (&[1; 512][..], &[2; 512][..]));
}

/// §11.18, §11.19: data comes back; a target's ping is answered without a number.
#[test]
fn pings() {
    let mut raw = Raw::normal();
    let nop = NopOut { flags: FINAL, itt: 3, ttt: NO_TAG, cmd_sn: FIRST, ..NopOut::default() };
    let pdus = raw.sent(Pdu::with_data(nop, &b"ping"[..]));
    let Header::NopIn(answer) = pdus[0].header else { panic!("{pdus:?}") };
    assert_eq!((answer.itt, answer.ttt, &pdus[0].data[..]), (3, NO_TAG, &b"ping"[..]));
    let before = raw.session.numbers();
    raw.now += Duration::from_secs(15);
    assert_eq!(raw.session.deadline(), Some(raw.now));
    raw.session.tick(raw.now);
    let Some(Action::Send(Pdu { header: Header::NopIn(ping), .. })) = raw.session.poll() else {
        panic!("a ping")
    };
    assert_eq!((ping.itt, ping.stat_sn), (NO_TAG, before.stat_sn));
    assert_ne!(ping.ttt, NO_TAG);
    assert_eq!(raw.session.numbers(), before);
    raw.now += Duration::from_secs(15);
    raw.session.tick(raw.now);
    assert!(matches!(raw.session.poll(), Some(Action::Close(_))));
}

/// IS-06: nothing unasked before the initiator has spoken.
#[test]
fn silence_until_the_initiator_speaks() {
    let mut raw = Raw::normal();
    assert_eq!(raw.session.deadline(), None);
    raw.session.tick(raw.now + Duration::from_secs(3600));
    assert!(raw.session.poll().is_none());
}

/// Appendix C: an answer longer than a PDU is fetched with the target's tag.
#[test]
fn send_targets_goes_on() {
    let mut raw = Raw::new(&[("SessionType", "Discovery")]);
    let request = |ttt| TextRequest { flags: FINAL, itt: 8, ttt, cmd_sn: FIRST, ..TextRequest::default() };
    let mut pdus =
        raw.sent(Pdu::with_data(request(NO_TAG), text::emit([("SendTargets", "All")])).immediate());
    let (mut all, mut pieces) = (Vec::new(), 0);
    loop {
        let Header::TextResponse(response) = pdus[0].header else { panic!("{pdus:?}") };
        assert!(pdus[0].data.len() <= 8192);
        all.extend_from_slice(&pdus[0].data);
        pieces += 1;
        if response.flags & FINAL != 0 {
            assert_eq!(response.ttt, NO_TAG);
            break;
        }
        assert_eq!(response.flags & CONTINUE, CONTINUE);
        pdus = raw.sent(Pdu::new(request(response.ttt)).immediate());
    }
    assert!(pieces > 1);
    assert_eq!(all.iter().filter(|&&byte| byte == 0).count(), 800, "two keys a target");
}

/// §11.11.1: who has more to say is not told that this is the end. §11.10.4: a request without the target's tag begins anew.
#[test]
fn text_goes_on_and_begins_anew() {
    let mut raw = Raw::new(&[("SessionType", "Discovery")]);
    let request = |flags, ttt| TextRequest { flags, itt: 8, ttt, cmd_sn: FIRST, ..TextRequest::default() };
    let all = text::emit([("SendTargets", "iqn.2026-11.example:nobody")]);
    let said = raw.sent(Pdu::with_data(request(0, NO_TAG), all.clone()).immediate());
    let Header::TextResponse(response) = said[0].header else { panic!("{said:?}") };
    assert_eq!(response.flags, 0, "neither F nor C");
    assert_ne!(response.ttt, NO_TAG);
    let said = raw.sent(Pdu::new(request(FINAL, response.ttt)).immediate());
    let Header::TextResponse(response) = said[0].header else { panic!("{said:?}") };
    assert_eq!((response.flags, response.ttt), (FINAL, NO_TAG));
    // The first half of a key is given up.
    let said = raw.sent(Pdu::with_data(request(CONTINUE, NO_TAG), &b"SendTar"[..]).immediate());
    let Header::TextResponse(response) = said[0].header else { panic!("{said:?}") };
    assert_eq!((response.flags, said[0].data.len()), (0, 0));
    let said = raw.sent(Pdu::with_data(request(FINAL, NO_TAG), all).immediate());
    let Header::TextResponse(response) = said[0].header else { panic!("{said:?}") };
    assert_eq!((response.flags, said[0].data.len()), (FINAL, 0), "nobody is there: {:?}", said[0].data);
}

/// §11.14 and §11.15, each reason.
#[test]
fn logouts() {
    for (reason, cid, result, closes) in [
        (LogoutReason::CloseSession, 0, LogoutResult::Closed, true),
        (LogoutReason::CloseConnection, 5, LogoutResult::Closed, true),
        (LogoutReason::CloseConnection, 6, LogoutResult::NoConnection, false),
        (LogoutReason::Recovery, 5, LogoutResult::NoRecovery, false),
    ] {
        let mut raw = Raw::normal();
        let request = LogoutRequest {
            flags: FINAL | reason.code(),
            itt: 4,
            cid,
            cmd_sn: FIRST,
            ..LogoutRequest::default()
        };
        let actions = raw.say(Pdu::new(request).immediate());
        let Action::Send(Pdu { header: Header::LogoutResponse(response), .. }) = actions[0] else { panic!() };
        assert_eq!(response.response, result.code());
        assert_eq!(matches!(actions.get(1), Some(Action::Close(_))), closes);
    }
}
