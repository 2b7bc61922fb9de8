//! Queries that are more than a comparison of components.

use super::*;
use everywire_wire::sa::method::GET_TABLE;
use everywire_wire::sa::{ClassPortInfo, MATCH_CAPABILITY_BITS, PortInfoRecord, attribute};
use everywire_wire::smp::PortInfo;
use everywire_wire::smp::codes::capability::{IS_SM, SM_DISABLED};

/// PortInfoRecord's component CapabilityMask: field 4 of PortInfo after the record's LID, port and options (IBTA §15.2.5.3).
const CAPABILITY_MASK: u64 = 1 << 7;

fn with_capability(bench: &mut Bench, capability_mask: u32, modifier: u32) -> Vec<(Lid, u8)> {
    let port_info = PortInfo { capability_mask, ..PortInfo::default() };
    let record = PortInfoRecord { port_info, ..PortInfoRecord::default() };
    let mut query = SaMad::with_record(GET_TABLE, &record, CAPABILITY_MASK, 3);
    query.header.attribute_modifier = modifier;
    let answer = bench.ask(2, query);
    let length = answer[0].rmpp.data2 as usize - 20;
    let found = answer[0].data[..length].chunks(usize::from(answer[0].attribute_offset.max(1)) * 8);
    found
        .map(|record| PortInfoRecord::parse(record).unwrap())
        .map(|record| (record.lid, record.port))
        .collect()
}

/// As `saquery -s` asks where the administrator says that it can: bit 13 of its capabilities, bit 31 of the modifier.
#[test]
fn ports_are_found_by_bits_of_their_capability_mask() {
    let mut bench = Bench::up(Topology::ring(3).unwrap(), |_| {});
    let answer = bench.ask(1, SaMad::new(method::GET, attribute::CLASS_PORT_INFO, 6));
    assert_eq!(ClassPortInfo::parse(&answer[0].data).unwrap().capability_mask >> 13 & 1, 1);
    let manager = vec![(bench.lid(0), 1)];
    assert_eq!(with_capability(&mut bench, IS_SM, MATCH_CAPABILITY_BITS), manager);
    assert_eq!(with_capability(&mut bench, SM_DISABLED, MATCH_CAPABILITY_BITS), []);
    assert_eq!(with_capability(&mut bench, IS_SM, 0), [], "as a whole, no port has this mask");
}
