//! The picture of a fabric that runs: the plan's, with what the agents of its nodes say.

use everywire_fabric::ib::PortId;
use everywire_wire::smp::{PortInfo, SwitchInfo, attribute};

use super::super::built::Built;
use super::super::plan::{NodeRef, PortRef};
use super::super::seat::Seat;
use super::{Node, Snapshot, State};

/// LIDs of one block of a forwarding table.
const BLOCK: u16 = 64;

/// Takes it. `process` says who is attached to a port.
pub(in super::super) fn take(
    built: &mut Built,
    process: impl Fn(PortId) -> Option<i32>,
    seats: &[Seat],
) -> Snapshot {
    let mut snapshot = Snapshot::of_plan(&built.plan);
    snapshot.running = true;
    let without = match seats {
        [] => Vec::new(), // whose manager is where, nobody here knows
        _ => built.plan.without_way(|link| built.plugged[link]),
    };
    snapshot.mark_ways(&built.plan, &without);
    match seats {
        [first, ..] => {
            snapshot.engine = first.engine();
            snapshot.warnings = seats.iter().flat_map(|seat| seat.warnings().iter().cloned()).collect();
        }
        [] => snapshot.sm = String::new(),
    }
    for (link, picture) in built.plan.links.iter().zip(&mut snapshot.links) {
        for (end, port) in picture.ends.iter_mut().zip(link.ends) {
            end.state = State::from_code(built.subnet.state(built.port_id(port)));
        }
    }
    let refs: Vec<NodeRef> = built.plan.nodes().collect();
    for (node, picture) in refs.into_iter().zip(&mut snapshot.nodes) {
        for port in &mut picture.end_ports {
            let id = built.port_id(PortRef { node, port: port.port });
            port.state = State::from_code(built.subnet.state(id));
            port.process = process(id);
            let info = built.subnet.inspect(id, attribute::PORT_INFO, port.port.into());
            if let Some(info) = info.and_then(|data| PortInfo::parse(&data).ok()) {
                (port.lid, port.lmc) = (info.lid.0, info.lmc);
            }
        }
        if matches!(node, NodeRef::Switch(_)) {
            tables(built, node, picture);
        }
    }
    snapshot
}

/// A switch's linear forwarding table, up to its top.
fn tables(built: &mut Built, node: NodeRef, picture: &mut Node) {
    let id = built.port_id(PortRef { node, port: 0 });
    let info = built.subnet.inspect(id, attribute::SWITCH_INFO, 0);
    let Some(info) = info.and_then(|data| SwitchInfo::parse(&data).ok()) else { return };
    let top = info.linear_fdb_top;
    for block in 0..=top / BLOCK {
        let data = built.subnet.inspect(id, attribute::LINEAR_FORWARDING_TABLE, block.into());
        picture.forwarding.extend(data.unwrap_or([255; 64]));
    }
    picture.forwarding.truncate(usize::from(top) + 1);
}
