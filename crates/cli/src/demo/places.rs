//! Where target and initiator are: free loopback addresses, the device that the user named, two ports of a fabric of our own, or two
//! network namespaces.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use everywire_net::Host;
use everywire_net::fabric_host::{Fabric, FabricEvent, FabricOptions};

use crate::device::DeviceArgs;
use crate::error::CliError;
use crate::fabric;
use crate::second::places::ByHand;
use crate::second::{self, SecondProcess};

/// Two hosts on a switch.
const TOPOLOGY: &str = "links = [\"h1 - s1/1\", \"h2 - s1/2\"]\n\
    [[host]]\nname = \"h1\"\n[[host]]\nname = \"h2\"\n[[switch]]\nname = \"s1\"\nports = 2\n";
/// What the demo does, by hand.
const BY_HAND: ByHand<'static> = ByHand { server: "perf --listen", client: "perf write" };
/// How long its subnet manager may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The devices of both sides, where they are not looked for.
#[derive(Default)]
pub struct Places {
    /// The target's.
    target: Option<String>,
    /// This process's.
    own: Option<String>,
    /// The process in whose network namespace the target runs, where that is not this one's.
    beside: Option<u32>,
    /// Runs as long as the places are used.
    _fabric: Option<Fabric>,
}

impl Places {
    /// On this wire; `device` is the target's, if the user named one.
    pub fn on(wire: &str, device: Option<&str>) -> Result<Places, CliError> {
        match (wire, device) {
            ("ib", None) => Places::of_fabric(),
            ("ib", Some(device)) => Err(CliError::usage(format_args!(
                "--device {device}: the demo of InfiniBand runs a fabric of its own; `everywire perf` and `everywire ping` \
                 take a port of any"
            ))),
            _ => Ok(Places { target: device.map(str::to_owned), ..Places::default() }),
        }
    }

    /// Between this process's network namespace and that of process `beside`.
    pub fn in_namespace(target: String, own: String, beside: u32) -> Places {
        Places { target: Some(target), own: Some(own), beside: Some(beside), _fabric: None }
    }

    /// Starts the target's process.
    pub fn second(
        &self,
        wire: &str,
        arguments: impl Fn(&str) -> Vec<String>,
    ) -> Result<SecondProcess, CliError> {
        let devices = match &self.target {
            Some(device) => vec![device.clone()],
            None => second::places::beside(Some(wire), BY_HAND)?,
        };
        SecondProcess::start_beside(self.beside, &devices, arguments)
    }

    fn of_fabric() -> Result<Places, CliError> {
        let name = format!("demo-{}", std::process::id());
        let plan = fabric::topology::parse(TOPOLOGY, "the demo's topology", &name)?;
        let (fabric, events) = fabric::run::start(plan, &FabricOptions::default())?;
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match events.recv_timeout(left) {
                Ok(FabricEvent::Ready) => break,
                Ok(_) => {}
                Err(_) => {
                    return Err(CliError::failed(format_args!(
                        "the demo's fabric was not up within {PATIENCE:?}"
                    )));
                }
            }
        }
        let port = |host: &str| Some(format!("ib:{name}/{host}/1"));
        Ok(Places { target: port("h2"), own: port("h1"), beside: None, _fabric: Some(fabric) })
    }

    /// Opens this process's device.
    pub fn open(&self, wire: &str, peer: SocketAddr) -> Result<Host, CliError> {
        match &self.own {
            Some(device) => {
                DeviceArgs { device: Some(device.clone()), ..DeviceArgs::default() }.open_for_peer(peer)
            }
            None => DeviceArgs::on_wire(wire).open_for_peer(peer),
        }
    }
}
