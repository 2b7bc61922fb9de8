//! Reservations against the tables of SPC-4: conflicts of every type, role and class of command; the service actions.

use super::*;
use crate::Status;
use crate::bytes::put;
use crate::cdb::Command;
use crate::sense::Failure;

const CONFLICT: Failure = Failure::Status(Status::RESERVATION_CONFLICT);

fn nexus(n: u8) -> NexusName {
    NexusName {
        initiator: TransportId::iscsi("iqn.2026-11.example:i", [0, 0, 0, 0, 0, n]).expect("short"),
        port: 1,
    }
}

/// A parameter list of 24 bytes.
fn list(key: u64, action_key: u64, flags: u8) -> Vec<u8> {
    let mut list = vec![0; 24];
    put(&mut list, 0, key.to_be_bytes());
    put(&mut list, 8, action_key.to_be_bytes());
    list[20] = flags;
    list
}

fn out(
    state: &mut Reservations,
    from: u8,
    action: u8,
    kind: u8,
    key: u64,
    sakey: u64,
) -> Result<Effects, Failure> {
    let request = OutRequest::parse(action, 0, kind, &list(key, sakey, 0))?;
    state.out(&nexus(from), &request)
}

/// Nexus 1 holds a reservation of this type with key 1, nexus 2 is registered with key 2, nexus 3 is nobody.
fn held(kind: ReservationType) -> Reservations {
    let mut state = Reservations::default();
    out(&mut state, 1, 0, 0, 0, 1).expect("registers");
    out(&mut state, 2, 0, 0, 0, 2).expect("registers");
    out(&mut state, 1, 1, kind.code(), 1, 0).expect("reserves");
    state
}

/// One command of each class, by SPC-4 table 66 and SBC-3 table 13.
fn commands() -> [(&'static str, Vec<u8>); 12] {
    [
        ("INQUIRY", vec![0x12, 0, 0, 0, 36, 0]),
        ("REPORT LUNS", vec![0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0]),
        ("REQUEST SENSE", vec![0x03, 0, 0, 0, 18, 0]),
        ("TEST UNIT READY", vec![0; 6]),
        ("READ CAPACITY (10)", vec![0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("READ (10)", vec![0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
        ("VERIFY (10)", vec![0x2f, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
        ("MODE SENSE (6)", vec![0x1a, 0, 0x3f, 0, 255, 0]),
        ("WRITE (10)", vec![0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
        ("UNMAP", vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]),
        ("SYNCHRONIZE CACHE (10)", vec![0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("MODE SELECT (6)", vec![0x15, 0x10, 0, 0, 24, 0]),
    ]
}

/// Which of [`commands`] a nexus that is not admitted may send: none that writes, and under exclusive access none that reads.
const ALLOWED: [[bool; 12]; 2] = {
    const Y: bool = true;
    const N: bool = false;
    [[Y, Y, Y, Y, Y, Y, Y, Y, N, N, N, N], [Y, Y, Y, Y, Y, N, N, N, N, N, N, N]]
};

#[test]
fn every_type_every_role_every_class() {
    use ReservationType::*;
    // Type, exclusive access, whether registrants are admitted: SPC-4 table 219.
    let types = [
        (WriteExclusive, 0, false),
        (ExclusiveAccess, 1, false),
        (WriteExclusiveRegistrantsOnly, 0, true),
        (ExclusiveAccessRegistrantsOnly, 1, true),
        (WriteExclusiveAllRegistrants, 0, true),
        (ExclusiveAccessAllRegistrants, 1, true),
    ];
    for (kind, exclusive, registrants) in types {
        let state = held(kind);
        for (i, (name, cdb)) in commands().iter().enumerate() {
            let access = Command::parse(cdb).expect("known").access();
            let allowed = ALLOWED[exclusive][i];
            for (role, admitted) in [(1, true), (2, registrants), (3, false)] {
                let conflict = state.conflicts(&nexus(role), access);
                assert_eq!(conflict, !(admitted || allowed), "{name} of nexus {role} under {kind:?}");
            }
        }
    }
}

/// SPC-2 §5.5.1: nothing but INQUIRY, REPORT LUNS, REQUEST SENSE, RELEASE and PREVENT ALLOW with 0.
#[test]
fn an_spc2_reservation_is_nearly_everything() {
    let mut state = Reservations::default();
    assert!(state.reserve_spc2(&nexus(1)) && state.reserve_spc2(&nexus(1)));
    assert!(!state.reserve_spc2(&nexus(2)));
    for (i, (name, cdb)) in commands().iter().enumerate() {
        let access = Command::parse(cdb).expect("known").access();
        assert_eq!(state.conflicts(&nexus(2), access), i > 2, "{name}");
        assert!(!state.conflicts(&nexus(1), access), "{name}");
    }
    assert_eq!(out(&mut state, 2, 0, 0, 0, 2), Err(CONFLICT));
    assert!(state.release_spc2(&nexus(2)), "no error, and no effect");
    assert!(state.conflicts(&nexus(2), Access::Read));
    assert!(state.release_spc2(&nexus(1)));
    assert!(!state.is_reserved());
}

#[test]
fn keys_must_be_right() {
    let mut state = held(ReservationType::WriteExclusive);
    assert_eq!(out(&mut state, 2, 0, 0, 9, 3), Err(CONFLICT), "a wrong key registers nothing");
    assert_eq!(out(&mut state, 3, 1, 1, 0, 0), Err(CONFLICT), "an unregistered nexus reserves nothing");
    assert_eq!(out(&mut state, 2, 1, 1, 2, 0), Err(CONFLICT), "it is held");
    assert_eq!(out(&mut state, 1, 1, 3, 1, 0), Err(CONFLICT), "in another type by the holder itself");
    assert_eq!(out(&mut state, 1, 1, 1, 1, 0), Ok(Effects::default()), "the same again is no error");
    let wrong = out(&mut state, 1, 2, 3, 1, 0);
    let asc = Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION;
    assert!(matches!(wrong, Err(Failure::Check(sense)) if sense.asc == asc), "{wrong:?}");
    assert_eq!(
        out(&mut state, 2, 2, 1, 2, 0),
        Ok(Effects::default()),
        "who does not hold it releases nothing"
    );
    assert!(state.is_reserved());
    // REGISTER AND IGNORE EXISTING KEY.
    assert_eq!(out(&mut state, 2, 6, 0, 77, 5), Ok(Effects::default()));
    assert_eq!(state.report(0, false).expect("keys")[..8], [0, 0, 0, 3, 0, 0, 0, 16]);
}

#[test]
fn releasing_tells_registrants_where_they_were_admitted() {
    let told = vec![(nexus(2), Asc::RESERVATIONS_RELEASED)];
    for kind in ReservationType::ALL {
        let mut state = held(kind);
        let effects = out(&mut state, 1, 2, kind.code(), 1, 0).expect("the holder");
        let expected = if kind.admits_registrants() { told.clone() } else { vec![] };
        assert_eq!(effects, Effects { attentions: expected, aborts: vec![] }, "{kind:?}");
        assert!(!state.is_reserved());
    }
}

#[test]
fn preempting_takes_over_and_tells() {
    let mut state = held(ReservationType::ExclusiveAccess);
    let effects = out(&mut state, 2, 5, 5, 2, 1).expect("registered");
    let attentions = vec![(nexus(1), Asc::REGISTRATIONS_PREEMPTED)];
    assert_eq!(effects, Effects { attentions, aborts: vec![nexus(1)] });
    assert!(state.holds(&nexus(2)) && !state.holds(&nexus(1)));
    assert!(state.conflicts(&nexus(1), Access::Write) && !state.conflicts(&nexus(1), Access::Read));
    // A key that nobody has.
    assert_eq!(out(&mut state, 2, 4, 5, 2, 0x55), Err(CONFLICT));
    // Key 0 is for all-registrants reservations.
    assert!(matches!(out(&mut state, 2, 4, 5, 2, 0), Err(Failure::Check(_))));
    // Without "and abort", nobody's tasks end.
    let mut state = held(ReservationType::WriteExclusiveAllRegistrants);
    let effects = out(&mut state, 2, 4, 7, 2, 0).expect("all others");
    assert_eq!(
        effects,
        Effects { attentions: vec![(nexus(1), Asc::REGISTRATIONS_PREEMPTED)], aborts: vec![] }
    );
}

#[test]
fn clearing_ends_everything() {
    let mut state = held(ReservationType::ExclusiveAccess);
    let effects = out(&mut state, 2, 3, 0, 2, 0).expect("any registrant may");
    assert_eq!(effects.attentions, [(nexus(1), Asc::RESERVATIONS_PREEMPTED)]);
    assert!(!state.is_reserved());
    assert_eq!(state.report(0, false).expect("keys")[4..], [0; 4]);
}

#[test]
fn the_last_holder_of_all_registrants_takes_it_along() {
    let mut state = held(ReservationType::ExclusiveAccessAllRegistrants);
    out(&mut state, 1, 0, 0, 1, 0).expect("unregisters");
    assert!(state.is_reserved() && state.holds(&nexus(2)));
    out(&mut state, 2, 0, 0, 2, 0).expect("unregisters");
    assert!(!state.is_reserved());
    let mut state = held(ReservationType::ExclusiveAccess);
    out(&mut state, 1, 0, 0, 1, 0).expect("unregisters");
    assert!(!state.is_reserved(), "the only holder");
}

#[test]
fn parameter_lists_are_judged() {
    let bad = |action, kind, list: &[u8]| {
        matches!(OutRequest::parse(action, 0, kind, list), Err(Failure::Check(_)))
    };
    assert!(
        bad(0, 0, &[0; 23]) && bad(0, 0, &[0; 25]) && bad(8, 0, &[0; 24]),
        "lengths, and a service action"
    );
    assert!(bad(1, 2, &[0; 24]) && bad(1, 9, &[0; 24]), "obsolete and reserved types");
    assert!(OutRequest::parse(0, 0, 2, &[0; 24]).is_ok(), "REGISTER does not look at the type");
    assert!(matches!(OutRequest::parse(1, 1, 1, &[0; 24]), Err(Failure::Check(_))), "scope");
    assert!(bad(0, 0, &list(0, 1, 4)), "ALL_TG_PT");
    // SPEC_I_PT with one port.
    let id = nexus(9).initiator;
    let mut spec = list(0, 1, 8);
    spec.extend((id.as_bytes().len() as u32).to_be_bytes());
    spec.extend(id.as_bytes());
    let mut state = Reservations::default();
    let request = OutRequest::parse(0, 0, 0, &spec).expect("good");
    state.out(&nexus(1), &request).expect("registers both");
    assert_eq!(state.registrations.len(), 2);
    assert!(bad(0, 0, &spec[..spec.len() - 1]));
}

#[test]
fn records_survive_and_damage_is_seen() {
    let mut state = held(ReservationType::WriteExclusiveRegistrantsOnly);
    assert_eq!(state.record(), None, "APTPL was not asked for");
    let request = OutRequest::parse(0, 0, 0, &list(1, 1, 1)).expect("good");
    state.out(&nexus(1), &request).expect("registers");
    let record = state.record().expect("kept");
    let back = Reservations::from_record(&record).expect("whole");
    assert_eq!((&back.registrations, &back.held), (&state.registrations, &state.held));
    assert_eq!(back.generation, 0, "SPC-4 §5.13.6");
    for cut in 0..record.len() - 1 {
        assert_eq!(Reservations::from_record(&record[..cut]), None, "{cut}");
    }
    let capabilities = state.report(2, true).expect("known");
    // CRH, SIP_C, PTPL_C; TMV, PTPL_A; the six types of table 219.
    assert_eq!(capabilities, [0, 8, 0x19, 0x81, 0xea, 0x01, 0, 0]);
}
