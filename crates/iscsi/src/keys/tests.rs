//! Rules of keys, from the clauses of RFC 7143 §13 and RFC 7145 §6.

use super::*;
use crate::keys::text::TextError;

fn target(offers: Offers) -> Negotiation {
    Negotiation::new(Side::Target, offers)
}

fn answer(negotiation: &mut Negotiation, key: &str, value: &str) -> Option<String> {
    negotiation.receive(Phase::Operational, key, value).unwrap().map(|(_, value)| value)
}

/// §13.10, §13.11: OR and AND over all four combinations.
#[test]
fn booleans() {
    for (rule, own, theirs, agreed) in [
        (Key::InitialR2T, "No", "No", "No"),
        (Key::InitialR2T, "No", "Yes", "Yes"),
        (Key::InitialR2T, "Yes", "No", "Yes"),
        (Key::InitialR2T, "Yes", "Yes", "Yes"),
        (Key::ImmediateData, "No", "No", "No"),
        (Key::ImmediateData, "No", "Yes", "No"),
        (Key::ImmediateData, "Yes", "No", "No"),
        (Key::ImmediateData, "Yes", "Yes", "Yes"),
    ] {
        let mut negotiation = target(Offers::default().with(rule, own));
        assert_eq!(answer(&mut negotiation, rule.name(), theirs).unwrap(), agreed);
        assert_eq!(negotiation.value(rule), agreed);
    }
}

/// §13.13, §13.15, §13.16: minimum and maximum; out of range is rejected.
#[test]
fn numbers() {
    let offers = Offers::default().with(Key::MaxBurstLength, 65536).with(Key::DefaultTime2Wait, 5);
    let mut negotiation = target(offers);
    assert_eq!(answer(&mut negotiation, "MaxBurstLength", "262144").unwrap(), "65536");
    assert_eq!(answer(&mut negotiation, "DefaultTime2Wait", "0").unwrap(), "5");
    assert_eq!(answer(&mut negotiation, "DefaultTime2Retain", "0x10").unwrap(), "16");
    assert_eq!(answer(&mut negotiation, "FirstBurstLength", "100").unwrap(), "Reject");
    // FirstBurstLength stays at its default and is cut to MaxBurstLength (§13.14).
    assert_eq!(Params::of(&negotiation, Side::Target).first_burst, 65536);
}

/// §6.2.1: the first of the offered list that is supported.
#[test]
fn lists() {
    let offers = || Offers::default().with(Key::HeaderDigest, "None,CRC32C").with(Key::DataDigest, "None");
    let mut negotiation = target(offers());
    assert_eq!(answer(&mut negotiation, "HeaderDigest", "CRC32C,None").unwrap(), "CRC32C");
    assert_eq!(answer(&mut negotiation, "DataDigest", "CRC32C").unwrap(), "Reject");
    assert!(Params::of(&negotiation, Side::Target).digests.header);
}

/// §6.2: a key is sent once; §13.12 may be declared again in the full feature phase.
#[test]
fn once_only() {
    let mut negotiation = target(Offers::default());
    assert_eq!(answer(&mut negotiation, "MaxRecvDataSegmentLength", "65536"), None);
    let twice = negotiation.receive(Phase::Operational, "MaxRecvDataSegmentLength", "4096");
    assert_eq!(twice, Err(TextError::Twice("MaxRecvDataSegmentLength".to_owned()).into()));
    assert_eq!(negotiation.receive(Phase::FullFeature, "MaxRecvDataSegmentLength", "4096"), Ok(None));
    assert_eq!(Params::of(&negotiation, Side::Target).max_send, 4096);
    assert!(negotiation.receive(Phase::FullFeature, "InitialR2T", "No").is_err());
}

/// §6.2: words; §13.10 "Irrelevant when: SessionType=Discovery".
#[test]
fn words() {
    let mut negotiation = target(Offers::default());
    assert_eq!(answer(&mut negotiation, "X-com.example.feature", "1").unwrap(), "NotUnderstood");
    assert_eq!(answer(&mut negotiation, "Unheard", "1").unwrap(), "NotUnderstood");
    negotiation.discovery = true;
    assert_eq!(answer(&mut negotiation, "InitialR2T", "No").unwrap(), "Irrelevant");
    assert_eq!(answer(&mut negotiation, "DefaultTime2Wait", "0").unwrap(), "2");
}

/// IS-04, RFC 7145 §6.1 and §6.2: RDMAExtensions, both lengths, no digests; irrelevant on TCP.
#[test]
fn keys_of_iser() {
    let offers = Offers::default()
        .with(Key::RDMAExtensions, "Yes")
        .with(Key::HeaderDigest, "CRC32C,None")
        .with(Key::TargetRecvDataSegmentLength, 8192)
        .with(Key::InitiatorRecvDataSegmentLength, 262_144);
    let mut negotiation = target(offers.clone());
    negotiation.rdma_capable = true;
    assert_eq!(answer(&mut negotiation, "RDMAExtensions", "Yes").unwrap(), "Yes");
    assert_eq!(answer(&mut negotiation, "HeaderDigest", "CRC32C,None").unwrap(), "None");
    assert_eq!(answer(&mut negotiation, "TargetRecvDataSegmentLength", "65536").unwrap(), "8192");
    assert_eq!(answer(&mut negotiation, "InitiatorRecvDataSegmentLength", "65536").unwrap(), "65536");
    assert_eq!(answer(&mut negotiation, "MaxOutstandingUnexpectedPDUs", "0"), None);
    let params = Params::of(&negotiation, Side::Target);
    assert_eq!((params.rdma, params.max_recv, params.max_send), (true, 8192, 65536));

    let mut tcp = target(offers);
    assert_eq!(answer(&mut tcp, "RDMAExtensions", "Yes").unwrap(), "No");
    assert_eq!(answer(&mut tcp, "TargetRecvDataSegmentLength", "65536").unwrap(), "Irrelevant");
}

/// The originator's half: what is not offered is not accepted.
#[test]
fn answers_must_fit_the_offer() {
    let offers = Offers::default()
        .with(Key::InitialR2T, "No")
        .with(Key::MaxBurstLength, 65536)
        .with(Key::HeaderDigest, "None")
        .with(Key::MaxRecvDataSegmentLength, 131_072);
    let mut negotiation = Negotiation::new(Side::Initiator, offers);
    let pairs = negotiation.offer_all(Phase::Operational);
    assert_eq!(pairs.len(), 4);
    assert!(negotiation.offer_all(Phase::Operational).is_empty(), "each is said once");
    assert_eq!(negotiation.open().count(), 3);
    let got = |n: &mut Negotiation, key: &str, value: &str| n.receive(Phase::Operational, key, value);
    assert_eq!(got(&mut negotiation, "InitialR2T", "Yes"), Ok(None));
    assert!(matches!(got(&mut negotiation, "MaxBurstLength", "131072"), Err(KeyError::Inadmissible { .. })));
    assert!(matches!(got(&mut negotiation, "HeaderDigest", "CRC32C"), Err(KeyError::Inadmissible { .. })));
    assert_eq!(Params::of(&negotiation, Side::Initiator).max_recv, 131_072);
}

/// §6.2.2: an answer is optional where the offer decides.
#[test]
fn what_an_offer_decides_needs_no_answer() {
    let offers =
        |r2t, immediate| Offers::default().with(Key::InitialR2T, r2t).with(Key::ImmediateData, immediate);
    let mut negotiation = Negotiation::new(Side::Initiator, offers("Yes", "No"));
    negotiation.offer_all(Phase::Operational);
    assert_eq!(negotiation.open().next(), None);
    let params = Params::of(&negotiation, Side::Initiator);
    assert!(params.initial_r2t && !params.immediate_data);
    let mut negotiation = Negotiation::new(Side::Initiator, offers("No", "Yes"));
    negotiation.offer_all(Phase::Operational);
    assert_eq!(negotiation.open().count(), 2);
}
