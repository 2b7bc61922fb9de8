//! Changes while hosts are connected: subsystems, namespaces, hosts, listeners, shutdown.
//! Each change that discovery shows moves the generation counter and tells discovery controllers.

use std::rc::Rc;
use std::sync::Arc;

use everywire_block::Backend;

use super::config::{ConfigError, Listener, NamespaceConfig, SubsystemConfig};
use super::events::{CloseReason, Notice};
use super::subsystem::Subsystem;
use super::{ControllerKey, QueueId, Target};
use crate::Nqn;
use crate::pdu::log::MAX_CHANGED;

impl Target {
    /// Adds a subsystem with its namespaces.
    pub fn add_subsystem(&mut self, config: &SubsystemConfig) -> Result<(), ConfigError> {
        if config.nqn.is_discovery() {
            return Err(ConfigError::DiscoveryName(config.nqn.clone()));
        }
        if self.subsystems.contains_key(&config.nqn) {
            return Err(ConfigError::DuplicateSubsystem(config.nqn.clone()));
        }
        self.subsystems.insert(config.nqn.clone(), Subsystem::new(config)?);
        self.discovery_changed();
        Ok(())
    }

    /// Removes a subsystem and ends its associations.
    pub fn remove_subsystem(&mut self, nqn: &Nqn) -> Result<(), ConfigError> {
        self.subsystems.remove(nqn).ok_or_else(|| ConfigError::NoSubsystem(nqn.clone()))?;
        self.end_where(CloseReason::SubsystemRemoved, |subsystem, _| subsystem == nqn);
        self.discovery_changed();
        Ok(())
    }

    /// Adds a namespace and tells the subsystem's hosts. Gives its NSID.
    pub fn add_namespace(&mut self, nqn: &Nqn, config: &NamespaceConfig) -> Result<u32, ConfigError> {
        let nsid = self.subsystem_mut(nqn)?.add_namespace(config)?;
        self.namespace_changed(nqn, nsid);
        Ok(nsid)
    }

    /// Removes a namespace and tells the subsystem's hosts. Commands that run complete.
    pub fn remove_namespace(&mut self, nqn: &Nqn, nsid: u32) -> Result<(), ConfigError> {
        let removed = Rc::make_mut(&mut self.subsystem_mut(nqn)?.namespaces).remove(&nsid);
        removed.ok_or_else(|| ConfigError::NoNamespace { nqn: nqn.clone(), nsid })?;
        self.namespace_changed(nqn, nsid);
        Ok(())
    }

    /// Lets a host use a subsystem. Has no effect on one that any host may use.
    pub fn allow_host(&mut self, nqn: &Nqn, host: &Nqn) -> Result<(), ConfigError> {
        if let Some(hosts) = &mut self.subsystem_mut(nqn)?.hosts {
            hosts.insert(host.clone());
        }
        self.discovery_changed();
        Ok(())
    }

    /// Takes a host off a subsystem's list; its associations end at once unless `keep_associations`.
    /// A subsystem that any host may use has no list: [`ConfigError::OpenToAnyHost`], and nothing changes.
    pub fn remove_host(&mut self, nqn: &Nqn, host: &Nqn, keep_associations: bool) -> Result<(), ConfigError> {
        let hosts = self.subsystem_mut(nqn)?.hosts.as_mut();
        hosts.ok_or_else(|| ConfigError::OpenToAnyHost(nqn.clone()))?.remove(host);
        if !keep_associations {
            self.end_where(CloseReason::HostRemoved, |subsystem, name| subsystem == nqn && name == host);
        }
        self.discovery_changed();
        Ok(())
    }

    /// Adds an address to the discovery log. The binding does the listening.
    pub fn add_listener(&mut self, listener: Listener) -> Result<(), ConfigError> {
        if self.listeners.contains_key(&listener.port_id) {
            return Err(ConfigError::DuplicatePort(listener.port_id));
        }
        self.listeners.insert(listener.port_id, listener);
        self.discovery_changed();
        Ok(())
    }

    /// Removes an address from the discovery log; open connections stay.
    pub fn remove_listener(&mut self, port_id: u16) {
        if self.listeners.remove(&port_id).is_some() {
            self.discovery_changed();
        }
    }

    /// Ends every association and closes every queue.
    pub fn shutdown(&mut self) {
        self.end_where(CloseReason::Shutdown, |_, _| true);
        let mut queues: Vec<QueueId> = self.queues.keys().copied().collect();
        queues.sort_unstable();
        for queue in queues {
            self.close(queue, CloseReason::Shutdown);
        }
    }

    /// Every backend, to be flushed at the end.
    pub fn backends(&self) -> Vec<Arc<dyn Backend>> {
        let subsystems = self.subsystems.values();
        subsystems
            .flat_map(|subsystem| subsystem.namespaces.values())
            .map(|namespace| namespace.backend.clone())
            .collect()
    }

    fn subsystem_mut(&mut self, nqn: &Nqn) -> Result<&mut Subsystem, ConfigError> {
        self.subsystems.get_mut(nqn).ok_or_else(|| ConfigError::NoSubsystem(nqn.clone()))
    }

    /// Ends the associations whose (subsystem, host) the filter picks, oldest first.
    fn end_where(&mut self, reason: CloseReason, pick: impl Fn(&Nqn, &Nqn) -> bool) {
        for key in self.sorted_controllers(|controller| pick(&controller.subsystem, &controller.host)) {
            self.end_association(key, reason);
        }
    }

    fn sorted_controllers(&self, pick: impl Fn(&super::Controller) -> bool) -> Vec<ControllerKey> {
        let picked = self.controllers.iter().filter(|(_, controller)| pick(controller));
        let mut keys: Vec<_> = picked.map(|(&key, _)| key).collect();
        keys.sort_unstable();
        keys
    }

    fn discovery_changed(&mut self) {
        self.generation += 1;
        for key in self.sorted_controllers(|controller| controller.subsystem.is_discovery()) {
            self.notify(key, Notice::DiscoveryLog);
        }
    }

    fn namespace_changed(&mut self, nqn: &Nqn, nsid: u32) {
        let Some(namespaces) = self.subsystems.get(nqn).map(|subsystem| subsystem.namespaces.clone()) else {
            return;
        };
        for key in self.sorted_controllers(|controller| controller.subsystem == *nqn) {
            if let Some(controller) = self.controllers.get_mut(&key) {
                controller.namespaces = namespaces.clone();
                // One over the maximum stands for "too many to list". NVMe Base 2.0 §5.16.1.5.
                if controller.changed_namespaces.len() <= MAX_CHANGED {
                    controller.changed_namespaces.insert(nsid);
                }
            }
            self.notify(key, Notice::NamespaceAttribute);
        }
    }
}
