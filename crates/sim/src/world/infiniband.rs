//! A world's InfiniBand hosts: what they hear, what they send, and when their subnet is up.

use std::time::{Duration, Instant};

use everywire_fabric::clock::SimTime;
use everywire_fabric::ib::Subnet;
use everywire_fabric::pcapng;
use everywire_verbs::PortState;

use super::{HostId, Inner, World};
use crate::host::Host;
use crate::ib::{IbFabric, IbShape, MAX_SPINES, News};

impl World {
    /// Gives the world two InfiniBand subnets with a router between them: hosts that are added from now on are in one and the
    /// other in turn.
    ///
    /// # Panics
    /// When there is an InfiniBand host already.
    pub fn route_infiniband(&self) {
        self.shape_infiniband(IbShape { routed: true, ..IbShape::default() });
    }

    /// Says what the world's InfiniBand subnet is like.
    ///
    /// # Panics
    /// When there is an InfiniBand host already, or the shape cannot be.
    pub fn shape_infiniband(&self, shape: IbShape) {
        let inner = &mut *self.inner.borrow_mut();
        assert!(inner.ib.is_none(), "the subnet has hosts already");
        assert!(shape.spines <= MAX_SPINES && !(shape.routed && shape.spines > 0), "{shape:?}");
        inner.ib = Some(Box::new(IbFabric::new(self.executor.now(), inner.seed, shape)));
    }

    /// Waits until the subnet manager has brought the ports of all InfiniBand hosts up; whether it has within `limit`.
    pub fn ib_up(&self, limit: Duration) -> bool {
        self.run_until(limit, || {
            let inner = self.inner.borrow();
            let mut devices = inner.hosts.iter().filter(|host| host.is_infiniband()).filter_map(Host::device);
            devices.all(|device| device.port().state == PortState::Active)
        })
    }

    /// Pulls one of the cables between the two switches, or plugs it in again; without a subnet nothing happens.
    pub fn cut_trunk(&self, trunk: u8, cut: bool) {
        let now = self.now();
        if let Some(ib) = &mut self.inner.borrow_mut().ib {
            ib.set_trunk_cut(now, trunk, cut);
        }
    }

    /// Looks at the InfiniBand subnet, if there is one.
    pub fn with_subnet<T>(&self, look: impl FnOnce(&mut Subnet) -> T) -> Option<T> {
        self.inner.borrow_mut().ib.as_mut().map(|ib| look(&mut ib.subnet))
    }
}

impl Inner {
    /// The subnet; the default one, if there is none.
    pub(super) fn infiniband(&mut self, now: Instant) -> &mut IbFabric {
        self.ib.get_or_insert_with(|| Box::new(IbFabric::new(now, self.seed, IbShape::default())))
    }

    /// An InfiniBand host hears something.
    pub(super) fn heard(&mut self, now: Instant, elapsed: SimTime, news: News) {
        let host = match &news {
            News::Packet(host, _) | News::Port(host, _) | News::Room(host) => *host,
        };
        self.digest.number(elapsed.as_nanos());
        self.digest.number(host.0 as u64);
        if let News::Packet(_, packet) = &news {
            self.digest.bytes(packet);
            if let Some(capture) = &mut self.capture {
                capture.packet(host.0, elapsed, pcapng::Direction::Inbound, packet);
            }
        }
        self.hosts[host.0].hear(now, news);
    }

    pub(super) fn drain_infiniband(&mut self, index: usize, now: Instant, elapsed: SimTime) {
        let names: Vec<_> =
            self.hosts.iter().enumerate().map(|(i, host)| (HostId(i), host.nic.ips.clone())).collect();
        let Some(fabric) = &mut self.ib else { return };
        let sent = self.hosts[index].drain_into(now, fabric, &names);
        self.hosts[index].nic.counters.sent += sent.len() as u64;
        if let Some(capture) = &mut self.capture {
            for packet in &sent {
                capture.packet(index, elapsed, pcapng::Direction::Outbound, packet);
            }
        }
    }
}
