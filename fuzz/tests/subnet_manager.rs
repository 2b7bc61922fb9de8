//! Targets for the subnet manager: whatever arrives on its QP0 and QP1, it neither panics nor says anything malformed, and a
//! subnet that it manages stays up.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use everywire_fabric::ib::subnet_manager::{
    Address, GsiAddress, HostedSm, RoutingEngine, Sm, SmConfig, SmMad, SmState,
};
use everywire_fabric::ib::topology::Topology;
use everywire_fabric::ib::{LinkParams, NodeId, PortId, Subnet, SubnetOptions};
use everywire_fuzz::target;
use everywire_wire::mad::method::{GET, SET, TRAP};
use everywire_wire::notice::{InformInfo, Notice, kind, trap};
use everywire_wire::sa::method::{DELETE, GET_TABLE};
use everywire_wire::sa::{McMemberRecord, PathRecord, SaMad, ServiceRecord};
use everywire_wire::smp::{Smp, attribute};
use everywire_wire::{Gid, Guid, Lid, MAD_LEN, PKey, Qpn};

/// A ring of three with a manager.
struct Managed {
    subnet: Subnet,
    manager: HostedSm,
    now: Instant,
}

impl Managed {
    fn new() -> Managed {
        let now = Instant::now();
        let shape = Topology::ring(3).unwrap();
        let options = SubnetOptions::default();
        let mut subnet = Subnet::of_shape(now, 1, options, &shape, LinkParams::DEFAULT).unwrap();
        let host = shape.hosts().next().unwrap();
        let mut config = SmConfig::new(Guid(shape.nodes[host].guid.0 + 1));
        config.engine = RoutingEngine::UpDown { roots: vec![] };
        let port = PortId { node: NodeId(host as u32), port: 1 };
        let manager = HostedSm::start(now, Sm::new(config, 1), port, &mut subnet);
        let mut managed = Managed { subnet, manager, now };
        managed.run(Duration::from_secs(1));
        assert_eq!(managed.manager.sm.state(), SmState::Master);
        managed
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            while let Some(event) = self.subnet.poll(self.now) {
                self.manager.handle_event(self.now, &event);
                self.manager.drive(self.now, &mut self.subnet);
            }
            self.manager.drive(self.now, &mut self.subnet);
            while self.manager.sm.poll_event().is_some() {}
            let next = [self.manager.poll_timeout(), self.subnet.poll_timeout()].into_iter().flatten().min();
            match next.filter(|at| *at <= end) {
                Some(at) => self.now = at.max(self.now),
                None => break,
            }
        }
        self.now = end;
    }
}

thread_local! {
    static MANAGED: RefCell<Managed> = RefCell::new(Managed::new());
}

/// How a seed arrives, the LID it comes from, and the MAD.
fn seed(on_qp1: bool, lid: u8, mad: [u8; MAD_LEN]) -> Vec<u8> {
    [&[u8::from(on_qp1), lid], &mad[..]].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let port_gid = Gid::link_local(Guid(0x0200_0000_0001_0001));
    let member =
        McMemberRecord { mgid: Gid([0xff; 16]), port_gid, join_state: 1, ..McMemberRecord::default() };
    let mask = McMemberRecord::CREATE | McMemberRecord::MGID;
    let path = PathRecord { sgid: port_gid, dgid: port_gid, ..PathRecord::default() };
    let service = ServiceRecord { service_id: 1, service_gid: port_gid, ..ServiceRecord::default() };
    let mut seeds = vec![
        seed(true, 1, SaMad::with_record(SET, &member, mask, 1).to_mad()),
        seed(true, 1, SaMad::with_record(DELETE, &member, mask, 2).to_mad()),
        seed(true, 1, SaMad::with_record(GET, &path, 0xc, 3).to_mad()),
        seed(true, 1, SaMad::with_record(SET, &service, 7, 4).to_mad()),
        seed(
            true,
            1,
            SaMad::with_record(SET, &InformInfo { subscribe: 1, ..InformInfo::default() }, 0, 5).to_mad(),
        ),
    ];
    for record in (0x11..=0x38).chain([0xf3, 0x01]) {
        seeds.push(seed(true, 2, SaMad::new(GET_TABLE, record, 6).to_mad()));
        seeds.push(seed(true, 2, SaMad::new(GET, record, 7).to_mad()));
    }
    for number in [trap::LINK_STATE_CHANGED, trap::CAPABILITIES_CHANGED, trap::BAD_M_KEY] {
        let mut smp = Smp::lid_routed(TRAP, attribute::NOTICE, 0, 8);
        Notice::generic(kind::URGENT, 2, number, Lid(4)).emit(&mut smp.data);
        seeds.push(seed(false, 4, smp.to_mad()));
    }
    for control in 0..=5 {
        seeds.push(seed(false, 4, Smp::directed(SET, attribute::SM_INFO, control, 9, &[]).to_mad()));
    }
    for answer in 1..0x40 {
        seeds.push(seed(false, 4, Smp::directed(0x81, attribute::NODE_INFO, 0, answer, &[1]).to_mad()));
    }
    seeds
}

target!(subnet_manager, seeds(), |bytes| {
    MANAGED.with_borrow_mut(|managed| {
        let [how, lid, rest @ ..] = bytes else { return };
        let mut mad = [0; MAD_LEN];
        let len = rest.len().min(MAD_LEN);
        mad[..len].copy_from_slice(&rest[..len]);
        let lid = Lid((*lid).into());
        let qp1 = GsiAddress { lid, qpn: Qpn::GSI, sl: 0, pkey: PKey::DEFAULT, gid: None };
        let address = if how & 1 != 0 { Address::Gsi(qp1) } else { Address::Smi(lid) };
        managed.manager.sm.handle_mad(managed.now, SmMad { address, mad });
        managed.manager.drive(managed.now, &mut managed.subnet);
        managed.run(Duration::from_micros(200));
    });
});
