//! iSCSI within `everywire serve`: logical units from the configuration, the TCP listeners of its portals, and iSER on every
//! device.
//!
//! Every portal is in portal group 1. A portal that cannot be opened ends the start with its address (IS-01, OP-07).

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use everywire_block::{Backend, BackendSpec};
use everywire_iscsi::PORT;
use everywire_iscsi::rdma::{RdmaOptions, RdmaPortal};
use everywire_iscsi::target::{LunDevice, Node, Portal, Target, TargetOptions};
use everywire_net::{Host, route};
use everywire_nvmeof::Scoped;
use everywire_scsi::lun::{LogicalUnit, LunConfig};
use everywire_scsi::reservations::FileStore;
use everywire_scsi::target::Target as ScsiTarget;
use everywire_verbs::Wire;
use everywire_verbs::rt::Rt;
use tokio::net::TcpListener;

use super::config::iscsi::{Iscsi, Lun, Target as TargetConfig};
use crate::error::{CliError, print};
use crate::iscsi::socket::TcpBytes;

/// What a listener waits after a connection that could not be taken (too many open files).
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// The logical units of all targets, opened.
pub struct Opened {
    units: Vec<(TargetConfig, Numbered)>,
}

/// Logical units by number.
pub type Numbered = Vec<(u16, Arc<LogicalUnit>)>;

/// What listens.
pub struct Served {
    target: Target,
    backends: Vec<Arc<dyn Backend>>,
    /// They listen until they are dropped.
    rdma: RefCell<Vec<RdmaPortal>>,
}

/// Opens every backend.
pub fn open(config: &Iscsi) -> Result<Opened, CliError> {
    let mut units = Vec::new();
    for target in &config.targets {
        units.push((target.clone(), open_units(target.name.as_str(), &target.luns)?));
    }
    Ok(Opened { units })
}

/// Opens the backends of the logical units of the target `whose`.
pub fn open_units(whose: &str, luns: &[Lun]) -> Result<Numbered, CliError> {
    luns.iter().map(|lun| Ok((lun.number, unit(whose, lun)?))).collect()
}

fn unit(whose: &str, lun: &Lun) -> Result<Arc<LogicalUnit>, CliError> {
    let who = format!("target {whose} LUN {}", lun.number);
    let backend = lun.backend.open().map_err(|e| CliError::failed(format_args!("{who}: {e}")))?;
    let store = reservations(lun).map(|path| Arc::new(FileStore::new(path)) as Arc<_>);
    let config = LunConfig {
        serial: lun.serial.clone(),
        removable: lun.removable,
        // Memory is written whole or, when the power goes, not at all.
        atomic_writes: matches!(lun.backend, BackendSpec::Ram { .. }),
        store,
        ..LunConfig::new(format!("{whose}/{}", lun.number), backend)
    };
    LogicalUnit::new(config).map_err(|e| CliError::failed(format_args!("{who}: {e}")))
}

/// Where reservations that outlive a restart are kept: beside an image file, if nothing else is said.
fn reservations(lun: &Lun) -> Option<PathBuf> {
    let beside = match &lun.backend {
        BackendSpec::File { path, options } if !options.read_only && path.is_file() => {
            let mut name = path.clone().into_os_string();
            name.push(".reservations");
            Some(name.into())
        }
        _ => None,
    };
    lun.reservations.clone().or(beside)
}

impl Opened {
    /// Listens on every portal, and for iSER on every device.
    pub async fn listen(self, rt: &Rt, config: &Iscsi, hosts: &[Host]) -> Result<Served, CliError> {
        let mut options = TargetOptions::default();
        if let Some(ping) = config.ping {
            (options.session.ping_after, options.session.ping_timeout) = (ping, ping);
        }
        let target = Target::new(rt.clone(), options).map_err(CliError::usage)?;
        let mut backends = Vec::new();
        for (described, units) in self.units {
            let map = ScsiTarget::new().lun_map();
            for (number, unit) in units {
                backends.push(unit.backend());
                rt.spawn(unit.clone().drive());
                map.add(number, unit).map_err(CliError::usage)?;
            }
            let device = LunDevice::new(described.name.clone(), map);
            let node = Node { alias: described.alias, ..Node::new(described.name, device) };
            target.add_node(node).map_err(CliError::usage)?;
        }
        for &address in &config.portals {
            let listener = TcpListener::bind(address)
                .await
                .map_err(|e| CliError::failed(format_args!("iSCSI portal {address}: cannot listen: {e}")))?;
            target.add_portal(Portal { address, group: 1, rdma: false });
            print(format_args!("listening on {address}, iSCSI over TCP"))?;
            let accepting = accept(rt.clone(), target.clone(), listener);
            rt.spawn(accepting);
        }
        let mut rdma = Vec::new();
        for host in hosts.iter().filter(|_| !config.targets.is_empty()) {
            listen_rdma(&target, host, &config.portals, &mut rdma)?;
        }
        Ok(Served { target, backends, rdma: RefCell::new(rdma) })
    }
}

/// Listens for iSER on every address of a device.
fn listen_rdma(
    target: &Target,
    host: &Host,
    tcp: &[SocketAddr],
    into: &mut Vec<RdmaPortal>,
) -> Result<(), CliError> {
    let device = host.device();
    for (ip, scope_id) in host.addresses() {
        let address = route::with_scope(*ip, PORT, *scope_id);
        let shown = Scoped(address, Some(&host.interface().name));
        // iWARP's ports are TCP's own.
        let taken = |portal: &SocketAddr| {
            portal.port() == PORT && (portal.ip() == *ip || portal.ip().is_unspecified())
        };
        if device.wire() == Wire::Iwarp && tcp.iter().any(taken) {
            tracing::warn!(
                "iSCSI over TCP has port {PORT} of {ip}: device {} takes no iSER there",
                device.name()
            );
            continue;
        }
        let portal = target
            .listen_rdma(device, address, RdmaOptions::default())
            .map_err(|e| CliError::failed(format_args!("iSER on {shown}: {e}")))?;
        target.add_portal(Portal { address: portal.local_addr(), group: 1, rdma: true });
        print(format_args!("listening on {shown}, device {}, iSER", device.name()))?;
        into.push(portal);
    }
    Ok(())
}

async fn accept(rt: Rt, target: Target, listener: TcpListener) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("iSCSI: a connection cannot be taken: {error}");
                rt.sleep(PAUSE).await;
                continue;
            }
        };
        let target = target.clone();
        rt.spawn(async move {
            // A peer that has gone already is no news.
            let Ok(local) = stream.local_addr() else { return };
            match TcpBytes::new(stream) {
                Ok(stream) => target.serve_tcp(stream, peer, local).await,
                Err(error) => tracing::debug!("{peer}: {error}"),
            }
        });
    }
}

impl Served {
    /// Sessions that are open.
    pub fn sessions(&self) -> usize {
        self.target.sessions()
    }

    /// Ends every session, then flushes what they wrote.
    pub async fn shutdown(&self) {
        self.rdma.borrow_mut().clear();
        self.target.shutdown().await;
        for backend in &self.backends {
            if let Err(error) = backend.flush().await {
                tracing::warn!("{}: {error}", backend.describe());
            }
        }
    }
}
