//! What a target serves: nodes with their logical units, secrets and rules, and the portals that lead to them.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use super::access::Rule;
use crate::keys::Offers;
use crate::login::chap::{ChapError, ChapPolicy};
use crate::name::{IscsiName, Isid};
use crate::session::scsi::Nexus;

/// Access rules of one node.
pub const MAX_RULES: usize = 1024;

/// The initiator's end of an I_T nexus (RFC 7143 §4.4.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitiatorPort {
    /// The initiator.
    pub name: IscsiName,
    /// Its part of the session's identity.
    pub isid: Isid,
    /// The target's portal group.
    pub portal_group: u16,
}

/// A set of logical units, as one kind of initiator sees it.
pub trait Device {
    /// A new I_T nexus.
    fn nexus(&self, initiator: &InitiatorPort) -> Box<dyn Nexus>;
}

/// Where a node went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// `address:port[,group]`.
    pub to: String,
    /// For good.
    pub permanently: bool,
}

/// A target node.
#[derive(Clone)]
pub struct Node {
    /// Its name.
    pub name: IscsiName,
    /// A name for people.
    pub alias: Option<String>,
    /// Secrets.
    pub chap: ChapPolicy,
    /// Who may use it, and what they see: the first rule that fits decides. Without rules everybody sees `device`.
    pub rules: Vec<Rule>,
    /// What those see whose rule names nothing else.
    pub device: Rc<dyn Device>,
    /// What it wants of sessions, where that differs from the target's.
    pub offers: Option<Offers>,
    /// Logins are sent elsewhere.
    pub moved: Option<Moved>,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Two nodes of one name.
    #[error("target {0} is described twice")]
    Duplicate(IscsiName),
    /// Secrets that must not be.
    #[error("{0}: {1}")]
    Chap(String, ChapError),
    /// More than [`MAX_RULES`].
    #[error("target {0}: more than {MAX_RULES} access rules")]
    TooManyRules(IscsiName),
}

impl Node {
    /// Open to everybody.
    pub fn new(name: IscsiName, device: Rc<dyn Device>) -> Node {
        Node {
            name,
            alias: None,
            chap: ChapPolicy::default(),
            rules: Vec::new(),
            device,
            offers: None,
            moved: None,
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.rules.len() > MAX_RULES {
            return Err(ConfigError::TooManyRules(self.name.clone()));
        }
        self.chap.check().map_err(|e| ConfigError::Chap(format!("target {}", self.name), e))
    }

    fn rule_for(&self, initiator: &IscsiName, address: IpAddr) -> Option<(usize, &Rule)> {
        self.rules.iter().enumerate().find(|(_, rule)| rule.fits(initiator, address))
    }

    /// Whether the initiator may log in, and by which rule. The transport plays no part.
    pub(super) fn judge(&self, initiator: &IscsiName, address: IpAddr) -> (String, bool) {
        match self.rule_for(initiator, address) {
            _ if self.rules.is_empty() => ("the target is open to everybody".to_owned(), true),
            Some((at, rule)) => (format!("access rule {} ({rule})", at + 1), !rule.deny),
            None => {
                (format!("none of {} access rules fits {initiator} at {address}", self.rules.len()), false)
            }
        }
    }

    pub(super) fn device_for(&self, initiator: &IscsiName, address: IpAddr) -> Option<Rc<dyn Device>> {
        match self.rule_for(initiator, address) {
            _ if self.rules.is_empty() => Some(self.device.clone()),
            Some((_, rule)) if !rule.deny => Some(rule.device.clone().unwrap_or_else(|| self.device.clone())),
            _ => None,
        }
    }
}

/// An address that leads to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Portal {
    /// Where it listens; an unspecified address is shown to an initiator as the one it came by.
    pub address: SocketAddr,
    /// Its portal group tag.
    pub group: u16,
    /// It is reached over RDMA (iSER), else over TCP. An initiator is shown those of the kind by which it asks.
    pub rdma: bool,
}

impl Portal {
    /// As TargetAddress shows it to a connection that came by `came_by`.
    pub(super) fn shown_to(&self, came_by: SocketAddr) -> String {
        let ip = if self.address.ip().is_unspecified() { came_by.ip() } else { self.address.ip() };
        format!("{},{}", SocketAddr::new(ip.to_canonical(), self.address.port()), self.group)
    }
}
