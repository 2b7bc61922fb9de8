//! The smallest fabric there is, for tests: two hosts on a switch. The crate's own tests use it, and its conformance test, which
//! is another crate: hence the crate's name in paths.

use everywire_net::fabric_host::Plan;
use everywire_net::fabric_host::plan::{
    Engine, HostPlan, Layout, LinkPlan, LinkShape, NodeRef, PortRef, SwitchPlan,
};
use everywire_wire::{Gid, Guid};

/// h1 at 10.77.0.1 and h2 at 10.77.0.2 on s1, under a name that no other process has.
pub(crate) fn plan(name: &str) -> Plan {
    let host = |n: u64| HostPlan {
        name: format!("h{n}"),
        ports: 1,
        guid: Guid(0x0245_5700_0100_0000 + n * 16),
        ips: vec![[10, 77, 0, n as u8].into()],
        router: false,
    };
    let link = |host: usize| LinkPlan {
        ends: [
            PortRef { node: NodeRef::Host(host), port: 1 },
            PortRef { node: NodeRef::Switch(0), port: host as u8 + 1 },
        ],
        shape: LinkShape::default(),
    };
    Plan {
        name: format!("{name}-{}", std::process::id()),
        hosts: vec![host(1), host(2)],
        switches: vec![SwitchPlan { name: "s1".to_owned(), ports: 2, guid: Guid(0x0245_5700_0200_0000) }],
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
