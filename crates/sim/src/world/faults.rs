//! What goes wrong between a world's hosts: cables, frames and streams.

use std::time::Instant;

use everywire_fabric::faults::Faults;
use everywire_fabric::network::{Change, Direction};

use super::{HostId, World};

impl World {
    /// Cuts a host off from the network, or joins it again.
    pub fn partition(&self, host: HostId, cut: bool) {
        let inner = &mut *self.inner.borrow_mut();
        let link = inner.hosts[host.0].link;
        if let Some(ib) = &mut inner.ib {
            ib.set_cut(self.executor.now(), host, cut);
        }
        for direction in Direction::BOTH {
            if let Some(link) = inner.network.link_mut(link, direction) {
                link.set_partition(cut);
            }
        }
    }

    /// Resets every TCP connection of an iWARP host, as a firewall or an administrator can.
    pub fn reset_streams(&self, host: HostId) {
        self.inner.borrow_mut().hosts[host.0].reset_streams();
    }

    /// Changes the faults of a host's link, both directions.
    pub fn set_faults(&self, host: HostId, faults: Faults) {
        let inner = &mut *self.inner.borrow_mut();
        let link = inner.hosts[host.0].link;
        for direction in Direction::BOTH {
            if let Some(link) = inner.network.link_mut(link, direction) {
                link.set_faults(faults);
            }
        }
    }

    /// Makes a change to one direction of a host's link (`Forth` leads from the host) happen later.
    pub fn schedule(&self, at: Instant, host: HostId, direction: Direction, change: Change) {
        let inner = &mut *self.inner.borrow_mut();
        let link = inner.hosts[host.0].link;
        inner.network.schedule(at, link, direction, change);
    }
}
