//! iSCSI within `everywire serve`: targets from the configuration with their rules, the TCP listeners of its portals, and iSER on every
//! device.
//!
//! Every portal is in portal group 1. A portal that cannot be opened ends the start with its address (IS-01, OP-07).

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use everywire_iscsi::PORT;
use everywire_iscsi::keys::Key;
use everywire_iscsi::login::chap::ChapPolicy;
use everywire_iscsi::rdma::{RdmaOptions, RdmaPortal};
use everywire_iscsi::target::{Device, LunDevice, Node, Portal, Rule, Target, TargetOptions};
use everywire_net::tcp::PlainListener;
use everywire_net::{Host, route};
use everywire_nvmeof::Scoped;
use everywire_verbs::Wire;
use everywire_verbs::rt::Rt;
use tokio::net::{TcpListener, TcpStream};

use super::config::iscsi::{Iscsi, Target as TargetConfig};
use super::units::{Numbered, Units};
use crate::error::{CliError, print};
use crate::iscsi::socket::TcpBytes;

/// What a listener waits after a connection that could not be taken (too many open files).
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// The logical units of all targets, opened, and their secrets.
pub struct Opened {
    targets: Vec<(TargetConfig, Numbered, ChapPolicy)>,
    discovery_chap: ChapPolicy,
}

/// What listens.
pub struct Served {
    target: Target,
    /// They listen until they are dropped.
    rdma: RefCell<Vec<RdmaPortal>>,
}

/// Opens the logical units of every target.
pub fn open(config: &Iscsi, units: &mut Units) -> Result<Opened, CliError> {
    let mut targets = Vec::new();
    for target in &config.targets {
        let numbered = units.of(target.name.as_str(), &target.luns)?;
        targets.push((target.clone(), numbered, target.chap.read().map_err(CliError::usage)?));
    }
    Ok(Opened { targets, discovery_chap: config.discovery_chap.read().map_err(CliError::usage)? })
}

/// A target with its rules.
fn node(target: TargetConfig, units: &Numbered, chap: ChapPolicy) -> Result<Node, CliError> {
    let device = LunDevice::new(target.name.clone(), units.map(None)?);
    let mut rules = Vec::new();
    for rule in target.access {
        let shown = match &rule.luns {
            Some(seen) => Some(device.showing(units.map(Some(seen))?) as Rc<dyn Device>),
            None => None,
        };
        rules.push(Rule {
            initiators: rule.initiators,
            addresses: rule.addresses,
            deny: rule.deny,
            device: shown,
        });
    }
    Ok(Node { alias: target.alias, chap, rules, ..Node::new(target.name, device) })
}

impl Opened {
    /// Listens on every portal, and for iSER on every device.
    pub async fn listen(self, rt: &Rt, config: &Iscsi, hosts: &[Host]) -> Result<Served, CliError> {
        let mut options = TargetOptions::default();
        if let Some(ping) = config.ping {
            (options.session.ping_after, options.session.ping_timeout) = (ping, ping);
        }
        options.discovery_chap = self.discovery_chap;
        let wanted = [(Key::InitialR2T, config.initial_r2t), (Key::ImmediateData, config.immediate_data)];
        for (key, yes) in wanted.into_iter().filter_map(|(key, yes)| Some((key, yes?))) {
            options.offers.set(key, if yes { "Yes" } else { "No" });
        }
        let rdma_options =
            RdmaOptions { unsolicited: config.initial_r2t == Some(false), ..Default::default() };
        let target = Target::new(rt.clone(), options).map_err(CliError::usage)?;
        for (described, units, chap) in self.targets {
            target.add_node(node(described, &units, chap)?).map_err(CliError::usage)?;
        }
        for &address in &config.portals {
            let door = Door::open(address, hosts)
                .await
                .map_err(|e| CliError::failed(format_args!("iSCSI portal {address}: cannot listen: {e}")))?;
            target.add_portal(Portal { address, group: 1, rdma: false });
            print(format_args!("listening on {address}, iSCSI over TCP"))?;
            let accepting = accept(rt.clone(), target.clone(), door);
            rt.spawn(accepting);
        }
        let mut rdma = Vec::new();
        for host in hosts.iter().filter(|_| !config.targets.is_empty()) {
            listen_rdma(&target, host, &config.portals, &rdma_options, &mut rdma)?;
        }
        Ok(Served { target, rdma: RefCell::new(rdma) })
    }
}

/// Listens for iSER on every address of a device.
fn listen_rdma(
    target: &Target,
    host: &Host,
    tcp: &[SocketAddr],
    options: &RdmaOptions,
    into: &mut Vec<RdmaPortal>,
) -> Result<(), CliError> {
    let device = host.device();
    for (ip, scope_id) in host.addresses() {
        let address = route::with_scope(*ip, PORT, *scope_id);
        let shown = Scoped(address, Some(&host.interface().name));
        // iWARP's ports are TCP's own, and one port of all addresses is not to be shared.
        let taken = |portal: &SocketAddr| portal.port() == PORT && portal.ip().is_unspecified();
        if device.wire() == Wire::Iwarp && tcp.iter().any(taken) {
            tracing::warn!(
                "iSCSI over TCP has port {PORT} of {ip}: device {} takes no iSER there",
                device.name()
            );
            continue;
        }
        let portal = target
            .listen_rdma(device, address, options.clone())
            .map_err(|e| CliError::failed(format_args!("iSER on {shown}: {e}")))?;
        target.add_portal(Portal { address: portal.local_addr(), group: 1, rdma: true });
        print(format_args!("listening on {shown}, device {}, iSER", device.name()))?;
        into.push(portal);
    }
    Ok(())
}

/// A listening socket of TCP.
enum Door {
    Own(TcpListener),
    /// An iWARP device takes iSER by the same port: the first bytes of a connection decide (RFC 5044 §7.1).
    Shared(PlainListener),
}

impl Door {
    async fn open(address: SocketAddr, hosts: &[Host]) -> std::io::Result<Door> {
        let has = |host: &&Host| host.addresses().iter().any(|(ip, _)| *ip == address.ip());
        let iwarp = hosts.iter().filter(|host| host.device().wire() == Wire::Iwarp && address.port() == PORT);
        match iwarp.into_iter().find(has) {
            Some(host) => host.listen_plain(address).map(Door::Shared),
            None => TcpListener::bind(address).await.map(Door::Own),
        }
    }

    async fn accept(&self) -> std::io::Result<(TcpStream, SocketAddr)> {
        match self {
            Door::Own(listener) => listener.accept().await,
            Door::Shared(listener) => listener.accept().await,
        }
    }
}

async fn accept(rt: Rt, target: Target, door: Door) {
    loop {
        let (stream, peer) = match door.accept().await {
            Ok(accepted) => accepted,
            // The device has gone.
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => return,
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

    /// Ends every session.
    pub async fn shutdown(&self) {
        self.rdma.borrow_mut().clear();
        self.target.shutdown().await;
    }
}
