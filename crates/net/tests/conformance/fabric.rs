//! An InfiniBand subnet of a run's own: two hosts on a switch, under a name that no other run has.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use everywire_net::fabric_host::{Fabric, FabricEvent, FabricOptions};

use crate::two_hosts::plan;

/// How long the subnet manager may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// A subnet that is up, and the names of a device at either host, with the addresses that programs know.
pub(crate) fn start() -> (Fabric, [(String, &'static str); 2]) {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let plan = plan(&format!("conform-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    let name = plan.name.clone();
    let (sender, events) = channel();
    let tell = move |event| drop(sender.send(event));
    let fabric = Fabric::start(plan, &FabricOptions::default(), tell).expect("a fabric");
    while events.recv_timeout(PATIENCE).expect("the subnet comes up") != FabricEvent::Ready {}
    (fabric, [(format!("ib:{name}/h1/1"), "10.77.0.1"), (format!("ib:{name}/h2/1"), "10.77.0.2")])
}
