//! A target: its nodes, portals, access rules and sessions; what every connection of every binding shares.
//!
//! Read RFC 7143 §4.4 (architecture), §6.3.5 (reinstatement), §4.3 (discovery). A [`Target`] is served by one thread. A binding
//! hands a connection to [`Target::serve_tcp`], or uses [`Target`] as `login::target::Gate` and asks for [`Target::session`].

mod access;
pub mod config;
mod device;
mod inbox;
mod registry;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use everywire_verbs::peer_log::{About, PeerLog};
use everywire_verbs::rt::Rt;

pub use access::{Rule, Subnet};
pub use config::{ConfigError, Device, InitiatorPort, Node, Portal};
pub use device::LunDevice;
pub(crate) use inbox::Inbox;
pub(crate) use registry::{Ended, Order};

use crate::keys::{Key, Offers};
use crate::login::chap::ChapPolicy;
use crate::login::target::{Admission, Established, Gate, Refusal};
use crate::login::{Identity, LoginStatus, SessionKind};
use crate::session::target::{Directory, Listed, Session, SessionOptions};
use crate::tcp::{self, ByteStream};
use registry::Registry;

/// Limits and times of a target.
#[derive(Debug, Clone)]
pub struct TargetOptions {
    /// Sessions at once.
    pub max_sessions: usize,
    /// Connections at once, those that log in included.
    pub max_connections: usize,
    /// How long a login may take.
    pub login_timeout: Duration,
    /// How long initiators have to log out at the target's end.
    pub logout_wait: Duration,
    /// How long the last PDUs of a connection may take.
    pub linger: Duration,
    /// Of each session.
    pub session: SessionOptions,
    /// What the target wants of normal sessions.
    pub offers: Offers,
    /// Who may discover; separate from who may log in.
    pub discovery_chap: ChapPolicy,
}

/// Most data in a PDU that this target takes on TCP.
const MAX_RECV: u32 = 256 << 10;

impl Default for TargetOptions {
    fn default() -> Self {
        let offers = Offers::default()
            .with(Key::HeaderDigest, "None,CRC32C")
            .with(Key::DataDigest, "None,CRC32C")
            .with(Key::MaxRecvDataSegmentLength, MAX_RECV)
            .with(Key::MaxBurstLength, 1 << 20)
            .with(Key::FirstBurstLength, 256 << 10)
            .with(Key::MaxOutstandingR2T, 16)
            .with(Key::InitialR2T, "No")
            .with(Key::ImmediateData, "Yes")
            .with(Key::DefaultTime2Wait, 0)
            .with(Key::DefaultTime2Retain, 0)
            .with(Key::ErrorRecoveryLevel, 0)
            .with(Key::RDMAExtensions, "Yes")
            .with(Key::TargetRecvDataSegmentLength, 8192)
            .with(Key::InitiatorRecvDataSegmentLength, (1 << 24) - 1);
        Self {
            max_sessions: 1024,
            max_connections: 2048,
            login_timeout: Duration::from_secs(15),
            logout_wait: Duration::from_secs(3),
            linger: Duration::from_secs(1),
            session: SessionOptions::default(),
            offers,
            discovery_chap: ChapPolicy::default(),
        }
    }
}

/// A target. Cheap to clone.
#[derive(Clone)]
pub struct Target(Rc<Shared>);

struct Shared {
    rt: Rt,
    options: TargetOptions,
    nodes: RefCell<Vec<Node>>,
    portals: RefCell<Vec<Portal>>,
    registry: RefCell<Registry>,
    /// What initiators provoke is their choice: so many lines a second of it are written.
    log: Rc<PeerLog>,
}

impl Target {
    /// With no node and no portal.
    ///
    /// # Errors
    /// [`ConfigError`] if the discovery secrets make no sense.
    pub fn new(rt: Rt, options: TargetOptions) -> Result<Target, ConfigError> {
        options.discovery_chap.check().map_err(|e| ConfigError::Chap("discovery".to_owned(), e))?;
        Ok(Target(Rc::new(Shared {
            log: PeerLog::kept(&rt, "iSCSI target"),
            rt,
            options,
            nodes: RefCell::default(),
            portals: RefCell::default(),
            registry: RefCell::default(),
        })))
    }

    pub(crate) fn rt(&self) -> &Rt {
        &self.0.rt
    }

    /// Whether a line about a peer may be written; counted if not.
    pub(crate) fn may_log(&self, about: About) -> bool {
        self.0.log.may(about)
    }

    pub(crate) fn options(&self) -> &TargetOptions {
        &self.0.options
    }

    /// Adds a node.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn add_node(&self, node: Node) -> Result<(), ConfigError> {
        node.check()?;
        let mut nodes = self.0.nodes.borrow_mut();
        if nodes.iter().any(|there| there.name == node.name) {
            return Err(ConfigError::Duplicate(node.name));
        }
        nodes.push(node);
        Ok(())
    }

    /// Adds a portal that SendTargets shows; listening on it is the caller's.
    pub fn add_portal(&self, portal: Portal) {
        self.0.portals.borrow_mut().push(portal);
    }

    /// Sessions that are open.
    pub fn sessions(&self) -> usize {
        self.0.registry.borrow().len()
    }

    /// Room for one more connection, until [`Target::leave`].
    pub(crate) fn enter(&self) -> bool {
        self.0.registry.borrow_mut().enter(self.0.options.max_connections)
    }

    pub(crate) fn leave(&self) {
        self.0.registry.borrow_mut().leave();
    }

    /// Serves a TCP connection from `peer` that came by `portal` (its local address) to its end.
    pub async fn serve_tcp<S: ByteStream>(&self, stream: S, peer: SocketAddr, portal: SocketAddr) {
        if !self.enter() {
            if self.may_log(About::Trouble) {
                tracing::warn!("{peer}: too many connections; this one is closed");
            }
            return;
        }
        let why = tcp::target::serve(self, stream, peer, portal).await;
        self.leave();
        tracing::debug!("{peer}: connection ended: {why}");
    }

    /// Asks every initiator to log out, and waits until they have or the time for it is over.
    pub async fn shutdown(&self) {
        self.0.registry.borrow_mut().end_all(Ended::Shutdown);
        let until = self.rt().now() + self.0.options.logout_wait + self.0.options.linger * 2;
        while self.sessions() > 0 && self.rt().now() < until {
            self.rt().sleep(Duration::from_millis(10)).await;
        }
    }

    /// The order of the session of this handle, once the session whose place it takes has ended.
    pub(crate) async fn take_place(&self, tsih: u16) -> Rc<Order> {
        let (order, old) = self.0.registry.borrow_mut().claim(tsih);
        if let Some(old) = old {
            // Its commands end with it, so that none of them runs beside the new session's.
            let until = self.0.options.linger * 3;
            let _ = self.rt().timeout(until, old.gone()).await;
        }
        order
    }

    /// The order of a session that will not begin after all.
    pub(crate) fn forget(&self, tsih: u16) -> Rc<Order> {
        self.0.registry.borrow_mut().claim(tsih).0
    }

    pub(crate) fn ended(&self, tsih: u16, order: &Rc<Order>) {
        self.0.registry.borrow_mut().remove(tsih);
        order.is_gone();
    }

    /// TARGET COLD RESET: every session of this node ends (RFC 7143 §11.5.1).
    pub(crate) fn cold_reset(&self, kind: &SessionKind) {
        self.0.registry.borrow_mut().end(Ended::Reset, |identity| identity.kind == *kind);
    }

    /// The session of an established login, over RDMA or TCP.
    ///
    /// # Errors
    /// The node went away meanwhile; the text says so.
    pub fn session(
        &self,
        now: Instant,
        established: Established,
        peer: SocketAddr,
        portal: SocketAddr,
        rdma: bool,
    ) -> Result<Session, String> {
        let nexus = match &established.identity.kind {
            SessionKind::Discovery => None,
            SessionKind::Normal(name) => {
                let nodes = self.0.nodes.borrow();
                let node = nodes.iter().find(|node| node.name == *name);
                let device =
                    node.and_then(|node| node.device_for(&established.identity.initiator, peer.ip()));
                let device = device.ok_or_else(|| format!("{name} is gone"))?;
                Some(device.nexus(&InitiatorPort {
                    name: established.identity.initiator.clone(),
                    isid: established.identity.isid,
                    portal_group: established.portal_group,
                }))
            }
        };
        let view = View { shared: self.0.clone(), peer, portal, rdma };
        Ok(Session::new(now, established, self.0.options.session.clone(), nexus, Rc::new(view)))
    }
}

impl Gate for Target {
    fn admit(&self, identity: &Identity, peer: SocketAddr, portal: SocketAddr) -> Result<Admission, Refusal> {
        let shared = &self.0;
        let portal_group = shared.group_of(portal);
        let SessionKind::Normal(name) = &identity.kind else {
            let chap = shared.options.discovery_chap.clone();
            return Ok(Admission { chap, offers: shared.options.offers.clone(), portal_group, alias: None });
        };
        let nodes = shared.nodes.borrow();
        let node = nodes.iter().find(|node| node.name == *name);
        let node = node
            .ok_or_else(|| Refusal::new(LoginStatus::NotFound, format_args!("there is no target {name}")))?;
        let (rule, allowed) = node.judge(&identity.initiator, peer.ip());
        if !allowed {
            return Err(Refusal::new(LoginStatus::AuthorizationFailure, rule));
        }
        if let Some(moved) = &node.moved {
            let status =
                if moved.permanently { LoginStatus::MovedPermanently } else { LoginStatus::MovedTemporarily };
            let refusal = Refusal::new(status, format_args!("{name} moved to {}", moved.to));
            return Err(Refusal { moved_to: Some(moved.to.clone()), ..refusal });
        }
        tracing::debug!("{} at {peer} may use {name}: {rule}", identity.initiator);
        Ok(Admission {
            chap: node.chap.clone(),
            offers: node.offers.clone().unwrap_or_else(|| shared.options.offers.clone()),
            portal_group,
            alias: node.alias.clone(),
        })
    }

    fn open(&self, identity: &Identity, portal_group: u16) -> Result<u16, Refusal> {
        self.0.registry.borrow_mut().open(identity, portal_group, self.0.options.max_sessions)
    }

    fn join(&self, tsih: u16) -> Refusal {
        if self.0.registry.borrow().has(tsih) {
            let why = "a second connection for a session; MaxConnections is 1 (RFC 7143 §13.2)";
            return Refusal::new(LoginStatus::TooManyConnections, why);
        }
        Refusal::new(LoginStatus::NoSession, format_args!("there is no session of TSIH {tsih}"))
    }
}

impl Shared {
    fn group_of(&self, portal: SocketAddr) -> u16 {
        let portals = self.portals.borrow();
        let exact = portals.iter().find(|one| one.address == portal);
        let any = || {
            portals
                .iter()
                .find(|one| one.address.ip().is_unspecified() && one.address.port() == portal.port())
        };
        exact.or_else(any).map_or(1, |one| one.group)
    }
}

/// What one connection sees of the targets.
struct View {
    shared: Rc<Shared>,
    peer: SocketAddr,
    portal: SocketAddr,
    rdma: bool,
}

impl Directory for View {
    fn targets(
        &self,
        initiator: &crate::name::IscsiName,
        only: Option<&crate::name::IscsiName>,
    ) -> Vec<Listed> {
        let portals = self.shared.portals.borrow();
        let alike = portals.iter().filter(|one| one.rdma == self.rdma);
        let addresses: Vec<String> = alike.map(|one| one.shown_to(self.portal)).collect();
        let nodes = self.shared.nodes.borrow();
        let seen = nodes.iter().filter(|node| only.is_none_or(|name| *name == node.name));
        seen.filter(|node| node.judge(initiator, self.peer.ip()).1)
            .map(|node| Listed { name: node.name.clone(), addresses: addresses.clone() })
            .collect()
    }
}
