//! [`Host`]: one device on this host's network, and who drives it.
//!
//! Read first: the driving contract in `everywire_verbs::Drive`; then `engine.rs` (what a turn does), `shared.rs` (who is
//! woken when), `thread.rs` and `task.rs` (how to sleep). After [`Host::open`] programs that poll drive the device
//! themselves; [`Host::spawn_thread`] or [`Host::run`] adds a driver for those that wait.

mod either;
mod engine;
mod fabric;
mod identity;
mod paths;
mod reattach;
mod shared;
mod streams;
mod task;
#[cfg(test)]
mod tests;
mod thread;
mod wire;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use everywire_verbs::{Device, DeviceConfig, DeviceLimits, Gid, IcrcCheck, IwarpOptions, Mtu, Progress};

use crate::capture::Capture;
use crate::error::{OpenError, with_limit};
use crate::fabric_port::FabricPort;
use crate::link::Link;
use crate::raw::RawPort;
use crate::route::{self, Interface};
use crate::runtime::TokioRt;
use crate::spec::{DeviceSpec, FabricWire, WireKind};
use crate::tcp::{Listening, PlainListener, StreamCapture};
use crate::udp::{PortCounters, PortOptions, UdpPort};

use either::Engine;
use engine::DatagramEngine;
use fabric::FabricEngine;
use identity::{active_mtu, find_interface, gid_table, node_guid, wire_of};
use reattach::Seat;
pub(crate) use shared::{Mode, Patience, Shared};
use streams::StreamEngine;
pub(crate) use thread::timespec;
use wire::{Port, Wire as DatagramWire};

/// Source port of raw Ethernet devices' QP1, as Linux' own RoCE has it, and of the flows that are spread beside it.
const RAW_SOURCE_PORTS: [u16; 8] = [55_410, 49_152, 50_411, 52_003, 54_117, 57_329, 60_901, 63_499];

/// How long opening a device on a fabric waits for a subnet manager to bring its port up.
const BRING_UP_PATIENCE: Duration = Duration::from_secs(3);

/// Most turns that a closing host takes to send what is left.
const CLOSING_TURNS: usize = 16;

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Write every datagram to this pcapng file.
    pub capture: Option<PathBuf>,
    /// Largest path MTU to use; the interface's largest if `None`.
    pub mtu: Option<Mtu>,
    /// How sockets are made.
    pub port: PortOptions,
    /// Where the device's entropy comes from; the system if `None`.
    pub seed: Option<u64>,
    /// What the device may hold.
    pub limits: DeviceLimits,
    /// How strictly ICRCs are checked.
    pub icrc_check: IcrcCheck,
    /// How an iWARP device sets connections up.
    pub iwarp: IwarpOptions,
}

/// One device on real sockets. The device is driven for as long as the host lives: by programs that poll and by
/// [`crate::block_on`], until there is a thread or a task for it. Without one nothing moves, not even an acknowledgement,
/// while the program does neither: a peer may give up meanwhile.
#[derive(Debug)]
pub struct Host {
    device: Device,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    interface: Interface,
    addresses: Vec<(IpAddr, u32)>,
}

impl Host {
    /// Opens a device by name: `rocev2:ADDRESS` (ordinary UDP sockets), `rocev2-raw:INTERFACE/ADDRESS`,
    /// `rocev1:INTERFACE/ADDRESS`, `iwarp:ADDRESS` (ordinary TCP sockets) or `ib:FABRIC/HOST/PORT[,path=N]` (a running fabric).
    ///
    /// # Errors
    /// In words: a name that is none, an address that is not this host's, who owns the address if somebody does, which limit
    /// was met; a capture that would overwrite something else.
    pub fn open(name: &str, options: &OpenOptions) -> Result<Host, OpenError> {
        if let Some(path) = &options.capture {
            Capture::may_write(path).map_err(|error| capture_error(path, error).with_limit())?;
        }
        Host::open_device(name, options).map_err(OpenError::with_limit)
    }

    fn open_device(name: &str, options: &OpenOptions) -> Result<Host, OpenError> {
        let spec = DeviceSpec::parse(name)?;
        if let WireKind::Fabric(wire) = &spec.wire {
            return Host::open_fabric(name, wire, options);
        }
        let (ip, scope_id) = (spec.ip, spec.scope_id);
        let system = |step| move |source| OpenError::System { step, ip, source };
        let interface = find_interface(&spec)?;
        let seed = match options.seed {
            Some(seed) => seed,
            None => entropy().map_err(system("get entropy"))?,
        };
        let (port, source_ports) = match &spec.wire {
            WireKind::Udp => {
                let port = UdpPort::open(ip, scope_id, interface.index, &options.port, seed)?;
                let ports = port.source_ports();
                (Some(Port::Udp(port)), ports)
            }
            WireKind::Raw(raw) => {
                let port = RawPort::open(&raw.interface, ip, scope_id, &options.port, raw.vlan)?;
                (Some(Port::Raw(port)), RAW_SOURCE_PORTS.to_vec())
            }
            WireKind::Tcp | WireKind::Fabric(_) => (None, Vec::new()),
        };
        let config = DeviceConfig {
            name: name.to_owned(),
            wire: wire_of(&spec),
            iwarp: spec.iwarp.unwrap_or(options.iwarp),
            gids: gid_table(&spec, &interface),
            node_guid: node_guid(ip, interface.mac),
            active_mtu: active_mtu(&interface, options.mtu)?,
            limits: options.limits.clone(),
            seed,
            source_ports,
            icrc_check: options.icrc_check,
            ..DeviceConfig::default()
        };
        let capture = match &options.capture {
            Some(path) => Some(Capture::create(path, name).map_err(|error| capture_error(path, error))?),
            None => None,
        };
        let device = Device::new(config);
        let link = match Link::watch(interface.index) {
            Ok(link) => Some(link),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                return Err(system("watch the interface")(error));
            }
            Err(error) => {
                tracing::debug!(%error, "the port's state is not watched");
                None
            }
        };
        let (engine, listening) =
            make_engine(&device, ip, port, link, capture).map_err(system("watch the sockets"))?;
        Ok(Host::on(device, engine, listening, interface, vec![(ip, scope_id)]))
    }

    /// A device at a port of a running fabric.
    fn open_fabric(name: &str, wire: &FabricWire, options: &OpenOptions) -> Result<Host, OpenError> {
        let failed = |source| OpenError::fabric(name, source);
        let (port, welcome) = FabricPort::attach(&wire.fabric, &wire.port).map_err(failed)?;
        let seed = options.seed.map_or_else(entropy, Ok).map_err(failed)?;
        let most = welcome.port.mtu;
        let active_mtu = options.mtu.filter(|asked| asked.bytes() < most.bytes()).unwrap_or(most);
        let named = Some(welcome.ip).filter(|ip| !ip.is_zero()).map(|ip| ip.to_ip());
        let config = DeviceConfig {
            name: name.to_owned(),
            node_guid: welcome.node_guid,
            active_mtu,
            path_bits: wire.path_bits,
            limits: options.limits.clone(),
            seed,
            ..DeviceConfig::infiniband(welcome.port_guid, named.into_iter().collect())
        };
        let addresses = vec![(named.unwrap_or_else(|| Gid::link_local(welcome.port_guid).to_ip()), 0)];
        let capture = match &options.capture {
            Some(path) => {
                Some(Capture::create_infiniband(path, name).map_err(|error| capture_error(path, error))?)
            }
            None => None,
        };
        let device = Device::new(config);
        let interface = Interface {
            name: format!("{}/{}", wire.fabric, wire.port),
            index: 0,
            mtu: most.bytes(),
            mac: None,
            loopback: false,
        };
        let seat = Seat::new(&wire.fabric, &wire.port, &welcome);
        let made = FabricEngine::new(device.clone(), port, seat, &welcome.port, capture);
        let mut engine = made.map_err(failed)?;
        engine.await_active(BRING_UP_PATIENCE);
        Ok(Host::on(device, Engine::Fabric(Box::new(engine)), None, interface, addresses))
    }

    fn on(
        device: Device,
        engine: Engine,
        listening: Option<Arc<Listening>>,
        interface: Interface,
        addresses: Vec<(IpAddr, u32)>,
    ) -> Host {
        let shared = Arc::new(Shared::new(engine, listening));
        let installed = device.install_progress(shared.clone());
        debug_assert!(installed, "the device is new");
        INLINE_HOSTS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&shared));
        Host { device, shared, thread: Mutex::new(None), interface, addresses }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The interface it is on.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The IP addresses by which it is listened at, each with the interface index of a link-local one, else 0. An InfiniBand
    /// port without one has its GID's.
    pub fn addresses(&self) -> &[(IpAddr, u32)] {
        &self.addresses
    }

    /// What happened to datagrams at its sockets.
    pub fn socket_counters(&self) -> PortCounters {
        self.shared.lock().counters()
    }

    /// Starts a background thread that drives the device and sleeps when nothing happens.
    ///
    /// # Errors
    /// `AlreadyExists` if the device has a driver; or there is no thread, or no descriptor for it to sleep on.
    pub fn spawn_thread(&self) -> io::Result<()> {
        let bed = thread::Bed::new(&self.shared).map_err(with_limit)?;
        self.claim(Mode::Thread)?;
        let shared = self.shared.clone();
        let name = format!("ew {}", self.device.name());
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || thread::run(&shared, &bed))
            .inspect_err(|_| self.shared.release())?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Makes the driver a task of this runtime, on whose thread everything then runs.
    ///
    /// # Errors
    /// `AlreadyExists` if the device has a driver; or there are no descriptors for it to sleep on.
    pub fn run(&self, runtime: &TokioRt) -> io::Result<()> {
        let bed = {
            let _guard = runtime.enter();
            task::Bed::new(&self.shared).map_err(with_limit)?
        };
        self.claim(Mode::Task)?;
        let shared = self.shared.clone();
        let name = self.device.name().to_owned();
        runtime.spawn_local(async move {
            if let Err(error) = task::run(shared, bed).await {
                tracing::debug!(device = name, %error, "the device's driver task ends with its runtime");
            }
        });
        Ok(())
    }

    /// A plain TCP service on a port of this iWARP device, which the device may listen on too: a connection that begins with
    /// an MPA request (RFC 5044 §7.1) is the device's, any other the service's. Port 0 takes a free one.
    ///
    /// # Errors
    /// The device is on another wire; or the port is taken.
    pub fn listen_plain(&self, addr: SocketAddr) -> io::Result<PlainListener> {
        let Some(listening) = &self.shared.listening else {
            let text = format!("{} has no TCP ports to share: it is no iWARP device", self.device.name());
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        };
        let listener = PlainListener::new(listening, addr)?;
        self.shared.kick();
        Ok(listener)
    }

    fn claim(&self, mode: Mode) -> io::Result<()> {
        self.shared.claim(mode).map_err(|other| {
            let text = format!("{} is driven already ({other:?})", self.device.name());
            io::Error::new(io::ErrorKind::AlreadyExists, text)
        })
    }
}

impl Drop for Host {
    /// Sends what is left, then stops driving: objects of the device that live on make no progress any more.
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            thread.thread().unpark();
            // It ends at its next look at the mode; its panic, if any, was reported by its own thread.
            let _ = thread.join();
        }
        let mut engine = self.shared.lock();
        for _ in 0..CLOSING_TURNS {
            if !self.shared.turn(&mut engine).more {
                break;
            }
        }
        engine.going_idle();
        // The device holds `shared` (as its Progress), and the engine holds the device: end the circle.
        engine.shut_down();
    }
}

/// The engine of a device: of datagrams through a port, or of TCP streams, whose listening sockets the device's calls reach
/// too.
fn make_engine(
    device: &Device,
    local: IpAddr,
    port: Option<Port>,
    link: Option<Link>,
    capture: Option<Capture>,
) -> io::Result<(Engine, Option<Arc<Listening>>)> {
    let device = device.clone();
    match port {
        Some(port) => {
            let wire = DatagramWire { port, capture, local };
            Ok((Engine::Datagrams(Box::new(DatagramEngine::new(device, wire, link)?)), None))
        }
        None => {
            let listening = Arc::new(Listening::default());
            let capture = capture.map(StreamCapture::new);
            let engine = StreamEngine::new(device, local, listening.clone(), link, capture)?;
            Ok((Engine::Streams(Box::new(engine)), Some(listening)))
        }
    }
}

/// Hosts of this process, for `block_on` to drive those that nobody else does.
static INLINE_HOSTS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// The hosts that only polling programs drive.
pub(crate) fn inline_hosts() -> Vec<Arc<Shared>> {
    let mut hosts = INLINE_HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
    hosts.retain(|host| host.upgrade().is_some_and(|host| host.mode() != Mode::Closed));
    hosts.iter().filter_map(Weak::upgrade).filter(|host| host.mode() == Mode::Inline).collect()
}

fn capture_error(path: &Path, error: io::Error) -> OpenError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::AlreadyExists => OpenError::NoCapture { path, why: error.to_string() },
        _ => OpenError::Capture { path, source: error },
    }
}

/// 64 bits from the system.
pub(crate) fn entropy() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(u64::from_ne_bytes(bytes))
}

/// An address that a device can have on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PossibleDevice {
    /// Its name, for [`Host::open`].
    pub name: String,
    /// Its address.
    pub ip: IpAddr,
    /// The interface.
    pub interface: Interface,
    /// The path MTU that it would use; `None` if the interface is too small.
    pub active_mtu: Option<Mtu>,
}

/// Every device that could be opened here on ordinary UDP sockets.
///
/// # Errors
/// The kernel does not list its addresses.
pub fn possible_devices() -> io::Result<Vec<PossibleDevice>> {
    let mut found = Vec::new();
    for address in route::addresses()? {
        let interface = route::interface(&address.interface)?;
        let name = match address.scope_id {
            0 => format!("rocev2:{}", address.ip),
            _ => format!("rocev2:{}%{}", address.ip, address.interface),
        };
        let active_mtu = Mtu::largest_in(interface.mtu);
        found.push(PossibleDevice { name, ip: address.ip, interface, active_mtu });
    }
    Ok(found)
}
