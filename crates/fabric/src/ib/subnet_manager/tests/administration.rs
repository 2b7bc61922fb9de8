//! What ports ask subnet administration.

use super::*;
use everywire_wire::mad::method::{GET, SET};
use everywire_wire::notice::{InformInfo, Report, TrapGid, kind, producer, trap};
use everywire_wire::sa::method::{DELETE, GET_TABLE};
use everywire_wire::sa::{
    ClassPortInfo, InformInfoRecord, LinkRecord, McMemberRecord, NodeRecord, PKeyTableRecord, PathRecord,
    PortInfoRecord, Record, ServiceRecord, SmInfoRecord, SwitchInfoRecord, attribute, join_state, selector,
    status,
};

fn tree() -> Bench {
    Bench::up(Topology::fat_tree(16, 8).unwrap(), |config| {
        config.engine = RoutingEngine::FatTree { roots: vec![] };
    })
}

fn gid(bench: &Bench, n: usize) -> Gid {
    let node = bench.host(n).node.0 as usize;
    Gid::link_local(Guid(bench.shape.nodes[node].guid.0 + 1))
}

/// All records of a table answer.
fn records<R: Record>(answer: &[SaMad]) -> Vec<R> {
    let offset = usize::from(answer[0].attribute_offset) * 8;
    let headers = 20 * answer.len();
    let len = answer[0].rmpp.data2 as usize - headers;
    let bytes: Vec<u8> = answer.iter().flat_map(|mad| mad.data).take(len).collect();
    assert!(answer.iter().all(|mad| mad.header.status == 0), "{:#x}", answer[0].header.status);
    bytes.chunks(offset).map(|record| R::parse(record).unwrap()).collect()
}

fn table<R: Record + Default>(bench: &mut Bench) -> Vec<R> {
    records(&bench.ask(3, SaMad::with_record(GET_TABLE, &R::default(), 0, 77)))
}

#[test]
fn tables_of_everything() {
    let mut bench = tree();
    let nodes: Vec<NodeRecord> = table(&mut bench);
    assert_eq!(nodes.len(), 24);
    let mut names: Vec<String> = nodes.iter().map(|n| n.description.name()).collect();
    names.sort();
    assert_eq!((names[0].as_str(), names[23].as_str()), ("h1", "spine4"));
    // 16 hosts, 8 switches of 8 ports and port 0.
    assert_eq!(table::<PortInfoRecord>(&mut bench).len(), 16 + 8 * 9);
    assert_eq!(table::<SwitchInfoRecord>(&mut bench).len(), 8);
    let links: Vec<LinkRecord> = table(&mut bench);
    assert_eq!(links.len(), 2 * 32);
    for link in &links {
        let back = LinkRecord {
            from_lid: link.to_lid,
            from_port: link.to_port,
            to_port: link.from_port,
            to_lid: link.from_lid,
        };
        assert!(links.contains(&back));
    }
    assert_eq!(table::<SmInfoRecord>(&mut bench).len(), 1);
    // No way leads from one of the four spines to another: none is above them.
    assert_eq!(table::<PathRecord>(&mut bench).len(), 24 * 24 - 4 * 3);
    let keys: Vec<PKeyTableRecord> = table(&mut bench);
    // A table each of hosts and switches, and of the 16 switch ports that check a host's packets.
    assert!(keys.iter().all(|record| record.table.keys[0] == PKey::DEFAULT) && keys.len() == 24 + 16);
    assert_eq!(table::<ServiceRecord>(&mut bench), []);
}

#[test]
fn one_record_none_or_too_many() {
    let mut bench = tree();
    let ask = |bench: &mut Bench, mask, lid| {
        let record = NodeRecord { lid, ..NodeRecord::default() };
        let answer = bench.ask(1, SaMad::with_record(GET, &record, mask, 5));
        assert_eq!((answer.len(), answer[0].header.transaction_id), (1, 5));
        answer[0]
    };
    let lid = bench.lid(7);
    let answer = ask(&mut bench, 1, lid);
    assert_eq!((answer.header.status, answer.header.method, answer.attribute_offset), (0, 0x81, 14));
    assert_eq!(NodeRecord::parse(&answer.data).unwrap().description.name(), "h8");
    assert_eq!(ask(&mut bench, 1, Lid(500)).header.status, status::NO_RECORDS);
    assert_eq!(ask(&mut bench, 0, Lid(0)).header.status, status::TOO_MANY_RECORDS);
    // Unknown attribute, method and class version.
    let answer = bench.ask(1, SaMad::new(GET, 0x0099, 6));
    assert_eq!(answer[0].header.status, 0x000c);
    let answer = bench.ask(1, SaMad::new(0x13, attribute::PATH, 6));
    assert_eq!(answer[0].header.status, 0x0008);
    let mut old = SaMad::new(GET, attribute::NODE, 6);
    old.header.class_version = 1;
    assert_eq!(bench.ask(1, old)[0].header.status, 0x0004);
    let answer = bench.ask(1, SaMad::new(GET, attribute::CLASS_PORT_INFO, 6));
    let info = ClassPortInfo::parse(&answer[0].data).unwrap();
    assert_eq!((info.class_version, info.trap_lid), (2, bench.lid(0)));
    // Send-only full members: bit 12 of the second mask, as clients look for it.
    assert_eq!(info.capability_mask2, 1 << 12);
}

fn path(bench: &mut Bench, want: PathRecord, mask: u64) -> Result<PathRecord, u16> {
    let answer = bench.ask(2, SaMad::with_record(GET, &want, mask, 9));
    match answer[0].header.status {
        0 => Ok(PathRecord::parse(&answer[0].data).unwrap()),
        status => Err(status),
    }
}

#[test]
fn paths_say_what_the_way_allows() {
    let mut bench = tree();
    let (sgid, dgid) = (gid(&bench, 2), gid(&bench, 14));
    let want = PathRecord { sgid, dgid, ..PathRecord::default() };
    let ends = PathRecord::SGID | PathRecord::DGID;
    let found = path(&mut bench, want, ends).unwrap();
    assert_eq!((found.slid, found.dlid), (bench.lid(2), bench.lid(14)));
    assert_eq!((found.sgid, found.dgid, found.pkey), (sgid, dgid, PKey::DEFAULT));
    // 4x EDR is 100 Gbit/s, code 16; MTU 4096 is code 5; "exactly".
    assert_eq!((found.rate, found.mtu, found.rate_selector, found.mtu_selector), (16, 5, 2, 2));
    assert!(found.reversible);
    let with_mtu = |how, mtu| PathRecord { mtu_selector: how, mtu, ..want };
    let mask = ends | PathRecord::MTU_SELECTOR | PathRecord::MTU;
    assert_eq!(path(&mut bench, with_mtu(selector::EXACTLY, 3), mask).unwrap().mtu, 3);
    assert_eq!(path(&mut bench, with_mtu(selector::LESS, 5), mask).unwrap().mtu, 4);
    assert_eq!(path(&mut bench, with_mtu(selector::GREATER, 5), mask), Err(status::NO_RECORDS));
    assert_eq!(path(&mut bench, with_mtu(selector::LARGEST, 1), mask).unwrap().mtu, 5);
    let mut nobody = want;
    nobody.dgid = Gid::link_local(Guid(99));
    assert_eq!(path(&mut bench, nobody, ends), Err(status::REQ_INVALID_GID));
    assert_eq!(path(&mut bench, want, 0), Err(status::REQ_INSUFFICIENT_COMPONENTS));
    let foreign = PathRecord { pkey: PKey(0x8123), ..want };
    assert_eq!(path(&mut bench, foreign, ends | PathRecord::PKEY), Err(status::NO_RECORDS));
    // By LID.
    let want = PathRecord { slid: bench.lid(2), dlid: bench.lid(3), ..PathRecord::default() };
    let found = path(&mut bench, want, PathRecord::SLID | PathRecord::DLID).unwrap();
    assert_eq!(found.dgid, gid(&bench, 3));
}

#[test]
fn all_pairs_of_a_large_subnet_are_not_walked() {
    let mut bench = Bench::up(Topology::fat_tree(128, 16).unwrap(), |_| {});
    let query = SaMad::with_record(GET_TABLE, &PathRecord::default(), 0, 9);
    assert_eq!(bench.ask(2, query)[0].header.status, status::REQ_INSUFFICIENT_COMPONENTS);
    let want = PathRecord { sgid: gid(&bench, 2), ..PathRecord::default() };
    let found: Vec<PathRecord> =
        records(&bench.ask(2, SaMad::with_record(GET_TABLE, &want, PathRecord::SGID, 9)));
    assert!(found.len() >= 128);
}

#[test]
fn every_lid_of_a_port_has_its_path() {
    let mut bench = Bench::up(Topology::fat_tree(16, 8).unwrap(), |config| config.lmc = 2);
    let want = PathRecord { sgid: gid(&bench, 2), dgid: gid(&bench, 14), ..PathRecord::default() };
    let mask = PathRecord::SGID | PathRecord::DGID;
    let found: Vec<PathRecord> = records(&bench.ask(2, SaMad::with_record(GET_TABLE, &want, mask, 9)));
    let base = bench.lid(14).0;
    assert_eq!(found.iter().map(|p| p.dlid.0).collect::<Vec<_>>(), [base, base + 1, base + 2, base + 3]);
}

#[test]
fn partitions_keep_apart() {
    let shape = Topology::ring(4).unwrap();
    let guid = |n: usize| Guid(shape.nodes[shape.hosts().nth(n).unwrap()].guid.0 + 1);
    let members = vec![(guid(1), true), (guid(2), false), (guid(3), false)];
    let mut bench = Bench::up(shape, |config| {
        let special = Partition { pkey: 0x123, members, others: None, ipoib: false, sl: 0 };
        let mut everyone = Partition::default_for_all();
        everyone.others = Some(false);
        everyone.members = vec![(config.guid, true)];
        config.partitions = vec![everyone, special];
    });
    let keys = |bench: &Bench, n| bench.subnet.port_values(bench.host(n)).unwrap().pkeys[..2].to_vec();
    assert_eq!(keys(&bench, 1), [PKey(0x7fff), PKey(0x8123)]);
    assert_eq!(keys(&bench, 2), [PKey(0x7fff), PKey(0x0123)]);
    let mut ask = |from, to| {
        let want = PathRecord { sgid: gid(&bench, from), dgid: gid(&bench, to), ..PathRecord::default() };
        path(&mut bench, want, PathRecord::SGID | PathRecord::DGID).map(|p| p.pkey)
    };
    assert_eq!(ask(1, 2), Ok(PKey(0x8123)));
    assert_eq!(ask(2, 1), Ok(PKey(0x0123)));
    assert_eq!(ask(2, 3), Err(status::NO_RECORDS), "two limited members");
    assert_eq!(ask(2, 0), Ok(PKey(0x7fff)));
    // The switches see to it: of another partition's packets none passes.
    for (pkey, passes) in [(PKey(0x8123), true), (PKey(0x0123), true), (PKey(0x8124), false)] {
        bench.delivered.clear();
        let mut mad = [0; 256];
        (mad[0], mad[1]) = (1, 0x0a);
        let route = MadRoute { pkey, ..MadRoute::services(bench.lid(2), bench.lid(1), 0) };
        bench.subnet.send(bench.now, bench.host(2), route.packet(&mad)).unwrap();
        bench.run(Duration::from_millis(1));
        assert_eq!(bench.delivered.len(), usize::from(passes), "{pkey:?}");
    }
}

fn join(bench: &mut Bench, n: usize, want: McMemberRecord, mask: u64) -> Result<McMemberRecord, u16> {
    let want = McMemberRecord { port_gid: gid(bench, n), ..want };
    let answer = bench.ask(n, SaMad::with_record(SET, &want, mask, 11));
    match answer[0].header.status {
        0 => Ok(McMemberRecord::parse(&answer[0].data).unwrap()),
        status => Err(status),
    }
}

fn leave(bench: &mut Bench, n: usize, mgid: Gid, join_state: u8) -> u16 {
    let want = McMemberRecord { port_gid: gid(bench, n), mgid, join_state, ..McMemberRecord::default() };
    bench.ask(n, SaMad::with_record(DELETE, &want, JOIN, 12))[0].header.status
}

const JOIN: u64 = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
const MGID: Gid = Gid([0xff, 0x12, 0x60, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);

fn group() -> McMemberRecord {
    McMemberRecord {
        mgid: MGID,
        qkey: QKey(0x1234_5678),
        pkey: PKey::DEFAULT,
        join_state: join_state::FULL,
        ..McMemberRecord::default()
    }
}

/// Hosts that a packet from a host to a multicast LID reaches.
fn reached(bench: &mut Bench, from: usize, mlid: Lid) -> Vec<usize> {
    bench.delivered.clear();
    let mut mad = [0; 256];
    (mad[0], mad[1]) = (1, 0x0a);
    let route =
        MadRoute { gids: Some((gid(bench, from), MGID)), ..MadRoute::services(bench.lid(from), mlid, 0) };
    bench.subnet.send(bench.now, bench.host(from), route.packet(&mad)).unwrap();
    bench.run(Duration::from_millis(1));
    let mut hosts: Vec<usize> = (0..bench.hosts())
        .filter(|n| bench.delivered.iter().any(|(port, _)| *port == bench.host(*n)))
        .collect();
    hosts.sort();
    assert_eq!(hosts.len(), bench.delivered.len(), "each once");
    hosts
}

#[test]
fn groups_are_made_joined_and_left() {
    let mut bench = tree();
    assert_eq!(join(&mut bench, 1, group(), JOIN), Err(status::REQ_INSUFFICIENT_COMPONENTS));
    let made = join(&mut bench, 1, group(), JOIN | McMemberRecord::CREATE).unwrap();
    assert!(made.mlid.0 >= 0xc000 && made.qkey == QKey(0x1234_5678));
    assert_eq!((made.join_state, made.mtu_selector, made.rate_selector), (1, 2, 2));
    assert_eq!(join(&mut bench, 6, group(), JOIN).unwrap().mlid, made.mlid);
    let sender = McMemberRecord { join_state: join_state::SEND_ONLY_NON, ..group() };
    assert_eq!(join(&mut bench, 13, sender, JOIN).unwrap().join_state, 4);
    // What disagrees is refused.
    let other = McMemberRecord { qkey: QKey(1), ..group() };
    assert_eq!(join(&mut bench, 8, other, JOIN | McMemberRecord::QKEY), Err(status::REQ_INVALID));
    assert_eq!(reached(&mut bench, 1, made.mlid), [6]);
    assert_eq!(reached(&mut bench, 13, made.mlid), [1, 6]);
    join(&mut bench, 10, group(), JOIN).unwrap();
    assert_eq!(reached(&mut bench, 13, made.mlid), [1, 6, 10]);
    // A link goes: the tree grows round it.
    let uplink = bench.links[0];
    bench.subnet.link_down(bench.now, uplink).unwrap();
    bench.run(Duration::from_secs(1));
    assert_eq!(reached(&mut bench, 10, made.mlid), [1, 6]);
    // A path to the group.
    let want = PathRecord { sgid: gid(&bench, 2), dgid: MGID, ..PathRecord::default() };
    let found = path(&mut bench, want, PathRecord::SGID | PathRecord::DGID).unwrap();
    assert_eq!((found.dlid, found.mtu), (made.mlid, made.mtu));
    assert_eq!(leave(&mut bench, 6, MGID, join_state::NON), status::REQ_INVALID);
    for n in [1, 6, 10] {
        assert_eq!(leave(&mut bench, n, MGID, join_state::FULL), 0);
    }
    // The last full member took the group along, the sender's membership too.
    assert_eq!(leave(&mut bench, 13, MGID, join_state::SEND_ONLY_NON), status::REQ_INVALID);
    assert_eq!(reached(&mut bench, 1, made.mlid), []);
}

#[test]
fn nobody_joins_for_another_nor_with_nonsense() {
    let mut bench = tree();
    let all = JOIN | McMemberRecord::CREATE;
    let foreign = McMemberRecord { port_gid: gid(&bench, 5), ..group() };
    let answer = bench.ask(4, SaMad::with_record(SET, &foreign, all, 1));
    assert_eq!(answer[0].header.status, status::REQ_DENIED);
    let unicast = McMemberRecord { mgid: gid(&bench, 5), ..group() };
    assert_eq!(join(&mut bench, 5, unicast, all), Err(status::REQ_INVALID_GID));
    assert_eq!(
        join(&mut bench, 5, McMemberRecord { join_state: 0, ..group() }, all),
        Err(status::REQ_INVALID)
    );
    let listener = McMemberRecord { join_state: join_state::NON, ..group() };
    assert_eq!(join(&mut bench, 5, listener, all), Err(status::REQ_INVALID));
    let partition = McMemberRecord { pkey: PKey(0x8077), ..group() };
    assert_eq!(join(&mut bench, 5, partition, all), Err(status::REQ_INVALID));
    // No MGID: the manager makes one up.
    let unnamed = McMemberRecord { mgid: Gid::ZERO, ..group() };
    let made = join(&mut bench, 5, unnamed, all & !McMemberRecord::MGID).unwrap();
    assert_eq!(made.mgid.0[..4], [0xff, 0x12, 0xa0, 0x1b]);
}

#[test]
fn ipoibs_broadcast_group_is_there() {
    let mut bench = tree();
    let mgid = Gid([0xff, 0x12, 0x40, 0x1b, 255, 255, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]);
    let joined = join(&mut bench, 4, McMemberRecord { mgid, ..group() }, JOIN).unwrap();
    assert_eq!((joined.qkey, joined.mtu, joined.rate), (QKey(0x0b1b), 4, 3));
    assert_eq!(leave(&mut bench, 4, mgid, join_state::FULL), 0);
    assert!(join(&mut bench, 4, McMemberRecord { mgid, ..group() }, JOIN).is_ok());
}

#[test]
fn services_are_kept_for_their_lease() {
    let mut bench = tree();
    let names = ServiceRecord::SERVICE_ID | ServiceRecord::SERVICE_GID | ServiceRecord::SERVICE_PKEY;
    let record = ServiceRecord {
        service_id: 0x1000_0000_0000_0001,
        service_gid: gid(&bench, 1),
        service_pkey: PKey::DEFAULT,
        service_lease: 10,
        service_key: [7; 16],
        ..ServiceRecord::default()
    };
    let set = SaMad::with_record(SET, &record, names | ServiceRecord::SERVICE_LEASE, 1);
    assert_eq!(bench.ask(1, set)[0].header.status, 0);
    let get = SaMad::with_record(GET, &record, ServiceRecord::SERVICE_ID, 2);
    let answer = bench.ask(2, get);
    let found = ServiceRecord::parse(&answer[0].data).unwrap();
    assert_eq!((found.service_gid, found.service_key), (record.service_gid, [0; 16]));
    let other = ServiceRecord { service_key: [1; 16], ..record };
    let delete = SaMad::with_record(DELETE, &other, names, 3);
    assert_eq!(bench.ask(1, delete)[0].header.status, status::REQ_DENIED, "the wrong key");
    // With the right key, but of another port: neither withdrawn nor registered, unless by who knows the SM_Key.
    let delete = SaMad::with_record(DELETE, &record, names, 5);
    assert_eq!(bench.ask(2, delete)[0].header.status, status::REQ_DENIED);
    assert_eq!(bench.ask(2, set)[0].header.status, status::REQ_DENIED);
    let foreign = ServiceRecord { service_gid: Gid::link_local(Guid(99)), ..record };
    assert_eq!(
        bench.ask(1, SaMad::with_record(SET, &foreign, names, 6))[0].header.status,
        status::REQ_DENIED
    );
    assert_eq!(bench.ask(2, SaMad { sm_key: 1, ..set })[0].header.status, 0);
    bench.run(Duration::from_secs(11));
    assert_eq!(bench.ask(2, get)[0].header.status, status::NO_RECORDS);
    assert_eq!(bench.ask(1, set)[0].header.status, 0);
    let delete = SaMad::with_record(DELETE, &record, names, 4);
    assert_eq!(bench.ask(1, delete)[0].header.status, 0);
    assert_eq!(bench.ask(2, get)[0].header.status, status::NO_RECORDS);
}

#[test]
fn subscribers_hear_of_groups_and_ports() {
    let mut bench = tree();
    let info = InformInfo {
        lid_range_begin: Lid::PERMISSIVE,
        is_generic: 1,
        subscribe: 1,
        notice_type: kind::ALL,
        trap_number: trap::ALL,
        producer_type: producer::ALL,
        ..InformInfo::default()
    };
    assert_eq!(bench.ask(7, SaMad::with_record(SET, &info, 0, 1))[0].header.status, 0);
    let query = SaMad::with_record(GET_TABLE, &InformInfoRecord::default(), 0, 2);
    assert_eq!(bench.ask(7, query)[0].header.status, status::REQ_DENIED);
    bench.delivered.clear();
    let all = JOIN | McMemberRecord::CREATE;
    let want = McMemberRecord { port_gid: gid(&bench, 1), ..group() };
    let packet = MadRoute::services(bench.lid(1), bench.lid(0), 0)
        .packet(&SaMad::with_record(SET, &want, all, 3).to_mad());
    bench.subnet.send(bench.now, bench.host(1), packet).unwrap();
    bench.run(Duration::from_millis(10));
    let report = |bench: &Bench| {
        let (_, packet) = bench.delivered.iter().find(|(port, _)| *port == bench.host(7)).expect("a report");
        let (route, mad) = MadRoute::parse(packet).unwrap();
        let sa = SaMad::from_mad(&mad).unwrap();
        assert_eq!((sa.header.method, sa.header.attribute_id), (6, 2));
        (route, sa, Report::parse(&sa.data).unwrap())
    };
    let (route, mut sa, told) = report(&bench);
    assert_eq!((told.notice.trap_number, told.notice.producer_type), (66, 4));
    assert_eq!(TrapGid::parse(&told.notice.details).unwrap().gid, MGID);
    // Not answered: again. Answered: no more.
    bench.delivered.clear();
    bench.run(Duration::from_millis(250));
    assert_eq!(report(&bench).1.header.transaction_id, sa.header.transaction_id);
    sa.header.method = 0x86;
    bench.subnet.send(bench.now, bench.host(7), route.reversed().packet(&sa.to_mad())).unwrap();
    bench.run(Duration::from_millis(10));
    bench.delivered.clear();
    bench.run(Duration::from_secs(2));
    assert!(bench.delivered.is_empty());
    bench.subnet.power_off(bench.now, bench.host(12).node);
    bench.run(Duration::from_millis(150));
    let traps: Vec<u16> = bench
        .delivered
        .iter()
        .map(|(_, packet)| SaMad::from_mad(&MadRoute::parse(packet).unwrap().1).unwrap())
        .map(|sa| Report::parse(&sa.data).unwrap().notice.trap_number)
        .collect();
    assert!(traps.contains(&128) && traps.contains(&65), "{traps:?}");
}
