//! Tests of the subnet management tables: complete, and where the standard's figures put things.

use super::*;
use crate::layout::assert_complete;
use crate::mad::method;
use crate::{Guid, PKey};

#[test]
fn every_bit_of_every_table_is_accounted_for() {
    macro_rules! check {
        ($($name:ident),*) => {
            $(assert_complete(stringify!($name), $name::FIELDS, $name::LEN);)*
        };
    }
    check!(Smp, NodeDescription, NodeInfo, SwitchInfo, GuidInfo, PortInfo, PKeyTable, SlToVl, VlWeight);
    check!(VlArbitration, LinearForwardingTable, MulticastForwardingTable, SmInfo, LedInfo);
}

#[test]
fn a_directed_route_smp_as_the_standard_lays_it_out() {
    let mad = Smp::directed(method::GET, attribute::NODE_INFO, 0, 7, &[1, 3]).to_mad();
    // Base version, class, class version, method; no status; pointer 0 and count 2 (IBTA §14.2.1.2).
    assert_eq!(mad[..8], [1, 0x81, 1, 1, 0, 0, 0, 2]);
    assert_eq!(mad[16..18], [0, 0x11]);
    assert_eq!(mad[32..36], [0xff; 4]);
    assert_eq!(mad[128..132], [0, 1, 3, 0]);
    assert!(mad[192..].iter().all(|b| *b == 0));
    let smp = Smp::from_mad(&mad).unwrap();
    assert!(smp.is_directed() && !smp.is_returning());
    assert_eq!((smp.hop_pointer(), smp.hop_count()), (0, 2));
}

#[test]
fn the_direction_bit_is_no_status() {
    let mut smp = Smp::directed(method::GET_RESP, attribute::NODE_INFO, 0, 7, &[]);
    smp.header.status = 0x801c;
    assert!(smp.is_returning());
    assert_eq!(smp.status(), 0x1c);
}

#[test]
fn port_info_fields_where_the_standard_puts_them() {
    // IBTA table 155, with the offsets that `smpquery` and Wireshark use.
    let mut bytes = [0; 64];
    let info = PortInfo {
        m_key: 1,
        lid: Lid(0x1234),
        link_width_active: 2,
        port_state: codes::port_state::ACTIVE,
        port_physical_state: codes::physical_state::LINK_UP,
        link_down_default_state: 2,
        lmc: 3,
        link_speed_active: 4,
        neighbor_mtu: 5,
        vl_cap: 4,
        mtu_cap: 5,
        hoq_life: 0x12,
        operational_vls: 4,
        subnet_timeout: 18,
        client_reregister: true,
        link_speed_ext_enabled: 31,
        ..PortInfo::default()
    };
    info.emit(&mut bytes);
    assert_eq!((bytes[7], &bytes[16..18]), (1, &[0x12, 0x34][..]));
    assert_eq!(bytes[31..38], [2, 0x04, 0x52, 0x03, 0x40, 0x50, 0x40]);
    assert_eq!((bytes[41], bytes[42], bytes[43]), (5, 0x12, 0x40));
    assert_eq!((bytes[51], bytes[63]), (0x80 | 18, 31));
}

#[test]
fn small_tables() {
    let map = SlToVl::new(std::array::from_fn(|sl| sl as u8 % 8));
    let mut bytes = [0; 8];
    map.emit(&mut bytes);
    assert_eq!(bytes, [0x01, 0x23, 0x45, 0x67, 0x01, 0x23, 0x45, 0x67]);
    assert_eq!((map.vl(0), map.vl(7), map.vl(9)), (0, 7, 1));

    let mut table = PKeyTable { keys: [PKey(0); 32] };
    table.keys[1] = PKey(0x8001);
    let mut bytes = [0; 64];
    table.emit(&mut bytes);
    assert_eq!(bytes[..4], [0, 0, 0x80, 1]);

    let info = SmInfo { guid: Guid(9), priority: 15, state: codes::sm_state::MASTER, ..SmInfo::default() };
    let mut bytes = [0; 21];
    info.emit(&mut bytes);
    assert_eq!((bytes[7], bytes[20]), (9, 0xf3));
    assert_eq!(NodeDescription::new("sw 1").name(), "sw 1");
}

#[test]
fn rates_as_path_records_number_them() {
    use codes::{link_speed as speed, link_width as width, rate};
    assert_eq!(rate::of(width::X1, speed::SDR, 0), 2);
    assert_eq!(rate::megabits(rate::of(width::X4, speed::SDR, 0)), 10_000);
    assert_eq!(rate::megabits(rate::of(width::X4, speed::QDR, 0)), 40_000);
    assert_eq!(rate::megabits(rate::of(width::X4, speed::QDR, speed::EXT_EDR)), 100_000);
    assert_eq!(rate::megabits(rate::of(width::X4, speed::QDR, speed::EXT_FDR)), 56_000);
    assert_eq!(rate::megabits(rate::of(width::X12, speed::DDR, 0)), 60_000);
}
