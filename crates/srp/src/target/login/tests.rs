//! Every reason of SRP_LOGIN_REJ, and MULTI-CHANNEL ACTION, of logins as Linux sends them.

use super::*;

const TARGET: PortId = PortId::new(0x5054_00ff_fe77_000b, 0x5054_00ff_fe77_000b);
const INITIATOR: PortId = PortId::new(0, 0x5054_00ff_fe77_000c);

/// Of captures/srp.pcap, its first frame.
fn linux() -> LoginRequest {
    LoginRequest {
        tag: 0,
        it_iu_len: 8260,
        formats: BufferFormats(6),
        multi_channel: MultiChannel::Single,
        immediate_offset: Some(68),
        initiator: INITIATOR,
        target: TARGET,
    }
}

fn gate(limits: Limits) -> Gate {
    let mut gate = Gate::new(limits);
    assert!(gate.add(TargetPort { name: "lab".to_owned(), id: TARGET, initiators: None }));
    assert!(!gate.add(TargetPort { name: "other".to_owned(), id: TARGET, initiators: None }));
    gate
}

#[test]
fn what_ib_srpt_grants_is_granted() {
    let accepted = gate(Limits::default()).login(&linux()).expect("a channel");
    assert_eq!((accepted.response.request_limit_delta, accepted.response.immediate), (128, true));
    assert_eq!(accepted.response.formats, BufferFormats(6));
    assert_eq!(accepted.response.multi_channel, MultiChannelResult::None);
    // SRP §6.5: no less than was asked for.
    assert!(accepted.response.max_it_iu_len >= 8260);
}

#[test]
fn every_reason() {
    let limits = Limits { channels: 3, channels_per_nexus: 2, ..Limits::default() };
    let mut gate = gate(limits);
    gate.add(TargetPort { name: "closed".to_owned(), id: PortId::new(9, 9), initiators: Some(vec![]) });
    let mut refused = |change: &dyn Fn(&mut LoginRequest)| {
        let mut request = LoginRequest { tag: 0x77, ..linux() };
        change(&mut request);
        let refusal = gate.login(&request).expect_err("refused");
        assert_eq!(refusal.reject.tag, 0x77);
        assert!(refusal.why.contains(&format!("{:#010x}", refusal.reject.reason.0)), "{}", refusal.why);
        refusal.reject.reason
    };
    assert_eq!(refused(&|r| r.it_iu_len = 8261), RejectReason::IU_LENGTH_TOO_LARGE);
    assert_eq!(refused(&|r| r.it_iu_len = 63), RejectReason::IU_LENGTH_TOO_LARGE);
    assert_eq!(refused(&|r| r.formats = BufferFormats(0x16)), RejectReason::UNSUPPORTED_FORMAT);
    let reserved = |r: &mut LoginRequest| r.multi_channel = MultiChannel::Reserved(2);
    assert_eq!(refused(&reserved), RejectReason::MULTI_CHANNEL_UNSUPPORTED);
    assert_eq!(refused(&|r| r.target = PortId::new(1, 2)), RejectReason::UNABLE_TO_ASSOCIATE);
    assert_eq!(refused(&|r| r.target = PortId::new(9, 9)), RejectReason::UNABLE_TO_ASSOCIATE);
    let multi = LoginRequest { multi_channel: MultiChannel::Multi, ..linux() };
    gate.login(&multi).expect("the first");
    let second = gate.login(&multi).expect("the second");
    assert_eq!((second.response.multi_channel, &second.ends[..]), (MultiChannelResult::Maintained, &[][..]));
    assert_eq!(gate.login(&multi).expect_err("full").reject.reason, RejectReason::CHANNEL_LIMIT);
    let other = LoginRequest { initiator: PortId::new(1, 1), ..linux() };
    gate.login(&other).expect("another nexus");
    let more = LoginRequest { initiator: PortId::new(1, 2), ..linux() };
    assert_eq!(gate.login(&more).expect_err("full").reject.reason, RejectReason::INSUFFICIENT_RESOURCES);
    let error = IuError::Short { iu: "SRP_LOGIN_REQ", needed: 56, given: 3 };
    assert_eq!(Gate::malformed(&error).reject.reason, RejectReason::UNABLE_TO_ESTABLISH);
}

#[test]
fn a_single_channel_ends_the_others() {
    let mut gate = gate(Limits::default());
    let first = gate.login(&linux()).expect("a channel");
    let multi = LoginRequest { multi_channel: MultiChannel::Multi, ..linux() };
    let second = gate.login(&multi).expect("another");
    let third = gate.login(&linux()).expect("alone");
    assert_eq!(third.ends, [first.channel, second.channel]);
    assert_eq!((third.response.multi_channel, gate.len()), (MultiChannelResult::Terminated, 1));
}
