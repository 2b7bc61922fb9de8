//! SRP within `everywire serve`: logical units from the configuration, and target ports on every device.
//!
//! What Linux's ib_srp needs to log in is printed in the words of its add_target file.

use everywire_net::{Host, route};
use everywire_nvmeof::Scoped;
use everywire_srp::PortId;
use everywire_srp::rdma::{SrpTarget, TargetOptions};
use everywire_srp::target::{Limits, TargetPort};
use everywire_verbs::Wire;
use everywire_verbs::rt::Rt;

use super::config::srp::{Srp, Target};
use super::units::{Numbered, Units};
use crate::error::{CliError, print};

/// Target port group of every port.
const GROUP: u16 = 1;

/// The logical units of all targets, opened.
pub struct Opened(Vec<(Target, Numbered)>);

/// What listens.
pub struct Served {
    target: SrpTarget,
}

/// Opens the logical units of every target.
pub fn open(config: &Srp, units: &mut Units) -> Result<Opened, CliError> {
    let targets = config.targets.iter();
    let opened = targets.map(|target| Ok((target.clone(), units.of(&target.name, &target.luns)?)));
    opened.collect::<Result<_, CliError>>().map(Opened)
}

impl Opened {
    /// Listens on every address of every device, if there is anything to serve.
    pub fn listen(self, rt: &Rt, hosts: &[Host], port: u16) -> Result<Served, CliError> {
        let target = SrpTarget::new(rt.clone(), Limits::default(), TargetOptions::default());
        let mut ids = Vec::new();
        for (described, units) in self.0 {
            ids.push((described.name.clone(), described.id));
            let port =
                TargetPort { name: described.name, id: described.id, initiators: described.initiators };
            target.add_port(port, units.map(None)?, GROUP).map_err(CliError::usage)?;
            for rule in described.access.iter().filter(|rule| rule.luns.is_some()) {
                let map = units.map(rule.luns.as_ref())?;
                rule.initiators
                    .iter()
                    .for_each(|&initiator| target.show(described.id, initiator, map.clone()));
            }
        }
        if ids.is_empty() {
            return Ok(Served { target });
        }
        for host in hosts {
            offer_service(&target, rt, host, &ids)?;
            for (ip, scope_id) in host.addresses() {
                let address = route::with_scope(*ip, port, *scope_id);
                let address = target.listen(host.device(), address).map_err(CliError::failed)?;
                let shown = Scoped(address, Some(&host.interface().name));
                print(format_args!("listening on {shown}, device {}, SRP", host.device().name()))?;
                for (name, id) in &ids {
                    print(format_args!(
                        "SRP target {name}: id_ext={:016x},ioc_guid={:016x},dest={shown}",
                        id.ext, id.guid
                    ))?;
                }
            }
        }
        Ok(Served { target })
    }
}

/// Where a device has management datagrams, targets are found there, and logged in to by service id; the id is the controller's
/// GUID, as ib_srpt has it.
fn offer_service(target: &SrpTarget, rt: &Rt, host: &Host, ids: &[(String, PortId)]) -> Result<(), CliError> {
    let device = host.device().clone();
    let Some((_, id)) = ids.first().filter(|_| device.wire() != Wire::Iwarp) else { return Ok(()) };
    target.listen_service(&device, id.guid).map_err(CliError::failed)?;
    let agent = target.dm_agent(id.guid, "Everywire", id.guid);
    rt.spawn(async move {
        if let Err(error) = agent.serve(&device).await {
            tracing::warn!("SRP targets cannot be found by device management: {error}");
        }
    });
    Ok(())
}

impl Served {
    /// Channels that are open.
    pub fn channels(&self) -> usize {
        self.target.channels()
    }

    /// Logs every initiator out.
    pub async fn shutdown(&self) {
        self.target.shutdown().await;
    }
}
