//! Tests of subnet administration: complete tables, and component masks as the standard numbers them.
//!
//! The numbers of components are those of `ib_types.h` and of Linux' `ib_sa.h`.

use super::membership::Byte;
use super::*;
use crate::layout::assert_complete;
use crate::smp::{NodeInfo, PortInfo, SmInfo};
use crate::{Guid, QKey};

#[test]
fn every_bit_of_every_table_is_accounted_for() {
    macro_rules! check {
        ($($name:ident),*) => {
            $(assert_complete(stringify!($name), $name::FIELDS, $name::LEN);)*
        };
    }
    check!(
        SaMad,
        ClassPortInfo,
        NodeRecord,
        PortInfoRecord,
        SlToVlRecord,
        SwitchInfoRecord,
        LftRecord,
        MftRecord
    );
    check!(SmInfoRecord, LinkRecord, GuidInfoRecord, PKeyTableRecord, VlArbitrationRecord, InformInfoRecord);
    check!(PathRecord, McMemberRecord, ServiceRecord, Byte);
}

/// First bit of component `n`.
fn component<R: Record>(n: u32) -> (usize, usize) {
    R::components(1 << n).ranges[0]
}

#[test]
fn components_are_numbered_as_the_standard_does() {
    // NodeRecord: 8 is the port GUID, 14 the description.
    assert_eq!(component::<NodeRecord>(8), ((4 + 20) * 8, 64));
    assert_eq!(component::<NodeRecord>(14), (44 * 8, 512));
    // PortInfoRecord: 5 base LID, 15 state, 20 LMC, 45 subnet timeout, 57 enabled extended speeds.
    assert_eq!(component::<PortInfoRecord>(5), ((4 + 16) * 8, 16));
    assert_eq!(component::<PortInfoRecord>(15), ((4 + 32) * 8 + 4, 4));
    assert_eq!(component::<PortInfoRecord>(20), ((4 + 34) * 8 + 5, 3));
    assert_eq!(component::<PortInfoRecord>(45), ((4 + 51) * 8 + 3, 5));
    assert_eq!(component::<PortInfoRecord>(57), ((4 + 63) * 8 + 3, 5));
    // PathRecord: 2 DGID, 13 P_Key, 21 life time. MCMemberRecord: 16 join state. SMInfoRecord: 6 state.
    assert_eq!(component::<PathRecord>(2), (8 * 8, 128));
    assert_eq!(component::<PathRecord>(13), (50 * 8, 16));
    assert_eq!(component::<PathRecord>(21), (56 * 8 + 2, 6));
    assert_eq!(component::<McMemberRecord>(16), (48 * 8 + 4, 4));
    assert_eq!(component::<SmInfoRecord>(6), ((4 + 20) * 8 + 4, 4));
    // ServiceRecord: 7 first data byte, 23 first data word, 36 the last component. InformInfoRecord: 11 QPN.
    assert_eq!(component::<ServiceRecord>(7), (112 * 8, 8));
    assert_eq!(component::<ServiceRecord>(23), (128 * 8, 16));
    assert_eq!(component::<ServiceRecord>(36), (168 * 8, 64));
    assert_eq!(component::<InformInfoRecord>(11), ((24 + 28) * 8, 24));
}

#[test]
fn offsets_between_records() {
    assert_eq!(attribute_offset(NodeRecord::LEN), 14);
    assert_eq!(attribute_offset(PortInfoRecord::LEN), 9);
    assert_eq!(attribute_offset(LinkRecord::LEN), 1);
    assert_eq!(attribute_offset(McMemberRecord::LEN), 7);
    assert_eq!(attribute_offset(SmInfoRecord::LEN), 4);
}

#[test]
fn matching_looks_at_the_mask_only() {
    let emit = |record: &PathRecord| {
        let mut bytes = [0; PathRecord::LEN];
        record.emit(&mut bytes);
        bytes
    };
    let a = emit(&PathRecord { dlid: Lid(3), sl: 2, mtu: 4, ..PathRecord::default() });
    let b = emit(&PathRecord { dlid: Lid(3), sl: 2, mtu: 5, ..PathRecord::default() });
    assert!(PathRecord::components(PathRecord::DLID | PathRecord::SL).match_bytes(&a, &b));
    assert!(!PathRecord::components(PathRecord::MTU).match_bytes(&a, &b));
    assert!(PathRecord::components(0).match_bytes(&a, &b));
    assert!(!PathRecord::components(PathRecord::MTU).match_bytes(&a, &b[..10]));
}

#[test]
fn a_request_as_it_travels() {
    let record = McMemberRecord {
        mgid: Gid([0xff; 16]),
        qkey: QKey(0x0b1b),
        join_state: join_state::FULL,
        ..McMemberRecord::default()
    };
    let mad = SaMad::with_record(crate::mad::method::SET, &record, McMemberRecord::CREATE, 5).to_mad();
    assert_eq!(mad[..4], [1, 3, 2, 2]);
    assert_eq!(mad[16..18], [0, 0x38]);
    assert_eq!(mad[44..46], [0, 7]);
    // P_Key 7, Q_Key 2, traffic class 6, SL 12, flow label 13, join state 16, port GID 1.
    assert_eq!(mad[48..56], [0, 0, 0, 0, 0, 0x01, 0x30, 0xc6]);
    assert_eq!((mad[56], &mad[56 + 32..56 + 36], mad[56 + 48]), (0xff, &[0, 0, 0x0b, 0x1b][..], 1));
    assert_eq!(SaMad::from_mad(&mad).unwrap().to_mad(), mad);
}

#[test]
fn nested_attributes_keep_their_place() {
    let node = NodeRecord {
        node_info: NodeInfo { node_guid: Guid(7), ..NodeInfo::default() },
        ..NodeRecord::default()
    };
    let mut bytes = [0; NodeRecord::LEN];
    node.emit(&mut bytes);
    assert_eq!(bytes[4 + 12 + 7], 7);
    let port = PortInfoRecord {
        port_info: PortInfo { lid: Lid(0x102), ..PortInfo::default() },
        ..PortInfoRecord::default()
    };
    let mut bytes = [0; PortInfoRecord::LEN];
    port.emit(&mut bytes);
    assert_eq!(bytes[20..22], [1, 2]);
    let sm =
        SmInfoRecord { sm_info: SmInfo { priority: 15, ..SmInfo::default() }, ..SmInfoRecord::default() };
    let mut bytes = [0; SmInfoRecord::LEN];
    sm.emit(&mut bytes);
    assert_eq!(bytes[24], 0xf0);
}
