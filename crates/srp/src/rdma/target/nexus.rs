//! I_T nexuses, shared by their channels. SRP r16a §5.3.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use everywire_scsi::TransportId;
use everywire_scsi::target::Nexus;
use everywire_verbs::rt::Notify;

use super::Shared;
use super::channel::Channel;
use crate::PortId;

/// A nexus and its channels.
pub(super) struct SharedNexus {
    pub(super) scsi: Nexus,
    pub(super) channels: RefCell<Vec<Weak<Channel>>>,
    /// Requests that came, on any channel: the number of one tells the order of arrival, and names it to the logical unit, since tags
    /// repeat from channel to channel.
    arrivals: Cell<u64>,
    /// Commands have ended while a task management function waited.
    pub(super) ended: Notify,
}

/// All of them, by initiator port and the number of the target port.
#[derive(Default)]
pub(super) struct Nexuses(RefCell<HashMap<(PortId, usize), Weak<SharedNexus>>>);

impl Nexuses {
    pub(super) fn len(&self) -> usize {
        self.0.borrow().values().filter(|nexus| nexus.strong_count() > 0).count()
    }

    /// The nexus of an initiator with a target port; a new one if it has none.
    pub(super) fn get(&self, shared: &Shared, initiator: PortId, port: usize) -> Rc<SharedNexus> {
        let mut all = self.0.borrow_mut();
        if let Some(nexus) = all.get(&(initiator, port)).and_then(Weak::upgrade) {
            return nexus;
        }
        all.retain(|_, nexus| nexus.strong_count() > 0);
        let maps = shared.maps.borrow();
        let (map, scsi_port) = (maps[port].to(initiator), &maps[port].port);
        let scsi = map.target().nexus(map, scsi_port, TransportId::srp(initiator.to_bytes()));
        let nexus = Rc::new(SharedNexus {
            scsi,
            channels: RefCell::default(),
            arrivals: Cell::new(0),
            ended: Notify::new(),
        });
        all.insert((initiator, port), Rc::downgrade(&nexus));
        nexus
    }

    /// An initiator's single channel takes the place of all: what they had ends now.
    pub(super) fn forget(&self, initiator: PortId, port: usize) {
        self.0.borrow_mut().remove(&(initiator, port));
    }
}

impl SharedNexus {
    /// Its channels.
    pub(super) fn channels(&self) -> Vec<Rc<Channel>> {
        self.channels.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// The number of a request that comes now.
    pub(super) fn arrival(&self) -> u64 {
        self.arrivals.set(self.arrivals.get() + 1);
        self.arrivals.get()
    }

    pub(super) fn add(&self, channel: &Rc<Channel>) {
        let mut channels = self.channels.borrow_mut();
        channels.retain(|channel| channel.strong_count() > 0);
        channels.push(Rc::downgrade(channel));
    }
}
