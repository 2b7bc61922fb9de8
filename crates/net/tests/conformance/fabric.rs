//! An InfiniBand subnet of a run's own: two hosts on a switch, under a name that no other run has.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use everywire_net::fabric_host::plan::{
    Engine, HostPlan, Layout, LinkPlan, LinkShape, NodeRef, PortRef, SwitchPlan,
};
use everywire_net::fabric_host::{Fabric, FabricEvent, FabricOptions, Plan};
use everywire_wire::{Gid, Guid};

/// How long the subnet manager may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// GUIDs of the hosts, 16 apart.
const HOSTS: u64 = 0x0245_5700_0300_0000;

fn plan(name: String) -> Plan {
    let host = |n: u8| HostPlan {
        name: format!("h{n}"),
        ports: 1,
        guid: Guid(HOSTS + u64::from(n) * 16),
        ips: vec![[10, 77, 0, n].into()],
        router: false,
    };
    let link = |host: u8| LinkPlan {
        ends: [
            PortRef { node: NodeRef::Host(usize::from(host)), port: 1 },
            PortRef { node: NodeRef::Switch(0), port: host + 1 },
        ],
        shape: LinkShape::default(),
    };
    Plan {
        name,
        hosts: vec![host(1), host(2)],
        switches: vec![SwitchPlan { name: "s1".to_owned(), ports: 2, guid: Guid(HOSTS + 256) }],
        links: vec![link(0), link(1)],
        sm: PortRef { node: NodeRef::Host(0), port: 1 },
        sm_key: None,
        sm_priority: 0,
        gid_prefix: Gid::DEFAULT_PREFIX,
        subnets: Vec::new(),
        engine: Engine::UpDown,
        roots: Vec::new(),
        lmc: 0,
        sl: 0,
        lanes: None,
        partitions: Vec::new(),
        layout: Layout::Levels,
    }
}

/// A subnet that is up, and the names of a device at either host, with the addresses that programs know.
pub(crate) fn start() -> (Fabric, [(String, &'static str); 2]) {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let name = format!("conform-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let (sender, events) = channel();
    let tell = move |event| drop(sender.send(event));
    let fabric = Fabric::start(plan(name.clone()), &FabricOptions::default(), tell).expect("a fabric");
    while events.recv_timeout(PATIENCE).expect("the subnet comes up") != FabricEvent::Ready {}
    (fabric, [(format!("ib:{name}/h1/1"), "10.77.0.1"), (format!("ib:{name}/h2/1"), "10.77.0.2")])
}
