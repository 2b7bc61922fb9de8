//! On InfiniBand: targets found by device management, logins by service id over InfiniBand's own connection manager.

mod lab;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use everywire_block::RamBackend;
use everywire_scsi::lun::{LogicalUnit, LunConfig};
use everywire_scsi::target::Target;
use everywire_sim::{HostConfig, World};
use everywire_srp::dm;
use everywire_srp::rdma::{Initiator, InitiatorOptions, SrpTarget, TargetOptions};
use everywire_srp::target::{Limits, TargetPort};
use lab::{LIMIT, TARGET, options, write_and_read};

const SERVICE: u64 = TARGET.guid;

#[test]
fn found_and_logged_in_to_by_service_id() {
    let world = World::new(1);
    let add = |ip: &str| world.add_host(HostConfig::infiniband(ip.parse().expect("ip")));
    let (there, here) = (add("10.0.0.1"), add("10.0.0.2"));
    assert!(world.ib_up(Duration::from_secs(30)));
    let map = Target::new().lun_map();
    let backend = Arc::new(RamBackend::new(512, 65536).expect("fits"));
    let unit = LogicalUnit::new(LunConfig::new("lab/0", backend)).expect("a unit");
    world.rt(there).spawn(unit.clone().drive());
    map.add(0, unit).expect("free");
    let target = SrpTarget::new(world.rt(there), Limits::default(), TargetOptions::default());
    let port = TargetPort { name: "lab".to_owned(), id: TARGET, initiators: None };
    target.add_port(port, map, 1).expect("a port");
    let device = world.device(there);
    target.listen_service(&device, SERVICE).expect("offers");
    assert!(target.listen_service(&device, SERVICE).is_err(), "it is offered already");
    let agent = target.dm_agent(TARGET.guid, "Everywire", SERVICE);
    world.rt(there).spawn(async move { agent.serve(&device).await.expect("the class is free") });
    let (rt, device) = (world.rt(here), world.device(here));
    let address: SocketAddr = "10.0.0.1:0".parse().expect("an address");
    let program = async move {
        let found = dm::find(&rt, &device, address.ip(), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let [one] = &found[..] else { panic!("{found:?}") };
        assert_eq!((one.id, one.service_id, &one.controller[..]), (TARGET, SERVICE, "Everywire"));
        let by_service = InitiatorOptions { service_id: Some(one.service_id), ..options() };
        let initiator = Initiator::connect(&rt, &device, address, one.id, by_service).await;
        let initiator = initiator.unwrap_or_else(|e| panic!("{e}"));
        let disk = initiator.disk(0).await.expect("a disk");
        write_and_read(&disk, 4096, 65536, 1).await;
        write_and_read(&disk, 0, 512, 2).await;
        initiator.log_out().await;
        // Nobody answers for a port without an agent.
        let silent = dm::find(&rt, &device, "10.0.0.2".parse().expect("ip"), 0).await;
        assert!(silent.is_err());
    };
    world.block_on(LIMIT, program).expect("ends in time");
}
