//! The device: the object every other hangs on, its one lock, and what wakes its driver.
//!
//! Read DESIGN §3 first. A device opens no socket and knows no clock: a driver holds it through [`Device::drive`], whose
//! guard ([`Drive`](crate::Drive)) carries the driving contract. All state is behind one mutex, which programs and
//! driver hold briefly; wakers are called, and memory is freed, after it is released.

use std::fmt;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use everywire_transport::ib::wr::MAX_MESSAGE;
use everywire_wire::{Lid, Mtu};

use crate::config::{
    AtomicCap, DeviceAttr, DeviceConfig, DeviceLimits, GidEntry, PortAttr, Wire, WireFeature,
};
use crate::counters::Counters;
use crate::drive::Drive;
use crate::events::{AsyncEvents, PortComesUp};
use crate::state::{State, settle_config};
use crate::stream::StreamError;

/// Exponent of the local ACK delay the device reports: 4.096 µs · 2^15 is 134 ms, as Linux's rxe.
pub(crate) const LOCAL_ACK_DELAY: u8 = 15;

/// How a device makes its driver run. The driver installs it; it must not hold the [`Device`] strongly for ever, or
/// neither is freed.
pub trait Progress: Send + Sync {
    /// Work was queued: wake the driver. Called without any lock held, once until the driver comes.
    fn kick(&self);
    /// A program polls an empty completion queue: run the driver once on this thread, unless it runs already. True if it
    /// ran.
    fn drive_inline(&self) -> bool;
    /// Binds a listening TCP socket for an iWARP device, so that a port that is taken is refused at the call; port 0 takes a
    /// free one. [`Command::StreamListen`](crate::Command) follows, or [`Progress::release_stream`]. Without sockets every
    /// port is free, and the device's own table decides.
    fn reserve_stream(&self, addr: SocketAddr) -> Result<SocketAddr, StreamError> {
        Ok(addr)
    }
    /// What was reserved is not wanted.
    fn release_stream(&self, addr: SocketAddr) {
        let _ = addr;
    }
}

/// How many objects of each sort a device holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Protection domains.
    pub pds: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Memory regions, fast-register ones included.
    pub mrs: usize,
    /// Memory windows.
    pub mws: usize,
    /// Address handles.
    pub ahs: usize,
}

/// A device. Cheap to clone; it lives as long as any handle on it or its objects.
#[derive(Clone)]
pub struct Device(Arc<Shared>);

pub(crate) struct Shared {
    config: Arc<DeviceConfig>,
    state: Mutex<State>,
    /// Set once, so that the paths that look at it for every message make no atomic operation for it.
    progress: OnceLock<Arc<dyn Progress>>,
}

impl Shared {
    fn kick(&self) {
        if let Some(progress) = self.progress.get() {
            progress.kick();
        }
    }
}

impl Device {
    /// Makes a device. Limits above what the implementation can keep are brought down; the attributes tell.
    pub fn new(config: DeviceConfig) -> Device {
        let config = Arc::new(settle_config(config));
        let state = Mutex::new(State::new(config.clone()));
        Device(Arc::new(Shared { config, state, progress: OnceLock::new() }))
    }

    /// Locks the device for its driver: see [`Drive`].
    pub fn drive(&self) -> Drive<'_> {
        Drive::new(self.locked(true))
    }

    /// Installs what wakes the driver; work that is waiting kicks it at once. A device has one for its life: false, and
    /// nothing changes, if there is one.
    #[must_use]
    pub fn install_progress(&self, progress: Arc<dyn Progress>) -> bool {
        if self.0.progress.set(progress).is_err() {
            return false;
        }
        if self.lock().kicked {
            self.0.kick();
        }
        true
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.config.name
    }

    /// What carries its messages.
    pub fn wire(&self) -> Wire {
        self.0.config.wire
    }

    /// What it was made with, as settled.
    pub fn config(&self) -> &DeviceConfig {
        &self.0.config
    }

    /// Its limits.
    pub fn limits(&self) -> &DeviceLimits {
        &self.0.config.limits
    }

    /// Its GID table.
    pub fn gids(&self) -> &[GidEntry] {
        &self.0.config.gids
    }

    /// What it says about itself.
    pub fn attributes(&self) -> DeviceAttr {
        let config = &self.0.config;
        let has = |feature| config.lacks(feature).is_none();
        DeviceAttr {
            name: config.name.clone(),
            wire: config.wire,
            node_type: config.wire.node_type(),
            uc: has(WireFeature::Uc),
            ud: has(WireFeature::Ud),
            multicast: has(WireFeature::Multicast),
            immediate: has(WireFeature::Immediate),
            node_guid: config.node_guid,
            fw_ver: env!("CARGO_PKG_VERSION"),
            limits: config.limits.clone(),
            atomic_cap: if has(WireFeature::Atomics) { AtomicCap::Glob } else { AtomicCap::None },
            page_size_cap: !0xfff,
            mem_extensions: true,
            phys_port_cnt: 1,
            max_pkeys: 1,
            local_ca_ack_delay: LOCAL_ACK_DELAY,
        }
    }

    /// What its port says about itself.
    pub fn port(&self) -> PortAttr {
        let config = &self.0.config;
        let state = self.lock();
        let ib = state.ib.as_ref().map(|ib| &ib.port);
        PortAttr {
            state: state.port,
            max_mtu: Mtu::M4096,
            active_mtu: ib.map_or(config.active_mtu, |port| port.mtu.min(config.active_mtu)),
            gid_tbl_len: config.gids.len() as u32,
            pkey: state.pkey_at(0).unwrap_or_default(),
            lid: ib.map_or(Lid(0), |port| port.lid),
            lmc: ib.map_or(0, |port| port.lmc),
            sm_lid: ib.map_or(Lid(0), |port| port.sm_lid),
            sm_sl: ib.map_or(0, |port| port.sm_sl),
            max_msg_sz: MAX_MESSAGE as u32,
        }
    }

    /// Its counters now.
    pub fn counters(&self) -> Counters {
        self.lock().core.counters.clone()
    }

    /// How many objects there are now.
    pub fn usage(&self) -> Usage {
        let state = self.lock();
        let (mrs, mws) = state.core.keys.usage();
        Usage {
            pds: state.pds.len(),
            cqs: state.core.cqs.len(),
            qps: state.qps.len(),
            srqs: state.core.srqs.len(),
            mrs: mrs as usize,
            mws: mws as usize,
            ahs: state.ahs as usize,
        }
    }

    /// Its asynchronous events.
    pub fn async_events(&self) -> AsyncEvents {
        AsyncEvents { device: self.clone() }
    }

    /// Waits until the port comes up after this call; polled again after that, until it does once more. Unlike
    /// [`AsyncEvent::PortActive`](crate::AsyncEvent::PortActive), which one reader of the queue takes, everybody hears of it.
    pub fn port_comes_up(&self) -> PortComesUp {
        PortComesUp::new(self.clone())
    }

    pub(crate) fn reserve_stream(&self, addr: SocketAddr) -> Result<SocketAddr, StreamError> {
        self.0.progress.get().map_or(Ok(addr), |progress| progress.reserve_stream(addr))
    }

    pub(crate) fn release_stream(&self, addr: SocketAddr) {
        if let Some(progress) = self.0.progress.get() {
            progress.release_stream(addr);
        }
    }

    /// Runs the driver on this thread if it can be. True if it ran.
    pub(crate) fn drive_inline(&self) -> bool {
        self.0.progress.get().is_some_and(|progress| progress.drive_inline())
    }

    /// Locks the device for a program's call.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_> {
        self.locked(false)
    }

    #[inline]
    fn locked(&self, driving: bool) -> Locked<'_> {
        // A panic elsewhere must not take everybody else's device away: state is changed in steps that each hold.
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if driving {
            state.kicked = false;
        }
        Locked { shared: &self.0, state: Some(state), driving }
    }

    /// Whether two handles are of one device.
    pub fn same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

/// The locked state. On release it wakes, frees and kicks, with no lock held.
pub(crate) struct Locked<'a> {
    shared: &'a Shared,
    /// `None` only while it is dropped.
    state: Option<MutexGuard<'a, State>>,
    driving: bool,
}

impl Deref for Locked<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        match &self.state {
            Some(state) => state,
            None => unreachable!("used while being dropped"),
        }
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        match &mut self.state {
            Some(state) => state,
            None => unreachable!("used while being dropped"),
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        let core = &mut state.core;
        let idle = core.wakes.is_empty() && core.trash.is_empty();
        let leaving = (!idle).then(|| (std::mem::take(&mut core.wakes), std::mem::take(&mut core.trash)));
        let work = std::mem::take(&mut state.work);
        // The driver itself drains what it caused before it sleeps; only others must wake it, and once is enough.
        let kick = work && !self.driving && !state.kicked;
        state.kicked |= kick;
        drop(state);
        if let Some((wakes, trash)) = leaving {
            wakes.into_iter().for_each(Waker::wake);
            drop(trash);
        }
        if kick {
            self.shared.kick();
        }
    }
}
