//! One host: a device, its interface, and the loop that the driving contract asks for.
//!
//! After every mutation of the device the host is dirty; draining it takes everything out of [`everywire_verbs::Drive`] in the order that the
//! contract gives: transmits and commands until there are none, then the next timeout.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use everywire_fabric::network::{LinkId, PortId};
use everywire_verbs::{Command, Datagram, Device, Frame, Progress, Route, RouteError, Transmit};
use everywire_wire::eth::MacAddr;
use everywire_wire::ip::IpHeader;
use everywire_wire::{Guid, Mtu};

use crate::executor::Group;
use crate::nic::{Accepted, Nic, Outgoing};
use crate::world::{HostConfig, HostId};

/// Notes that the device has work; the world looks at it before time moves.
#[derive(Debug, Default)]
struct Kick(AtomicBool);

impl Progress for Kick {
    fn kick(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn drive_inline(&self) -> bool {
        false // the world is the only driver
    }
}

/// A host and, while it is up, its device.
pub(crate) struct Host {
    id: HostId,
    pub config: HostConfig,
    pub port: PortId,
    pub link: LinkId,
    pub nic: Nic,
    /// When the device wants to be called.
    pub timeout: Option<Instant>,
    device: Option<Device>,
    kick: Arc<Kick>,
    /// Kept for its buffer.
    transmit: Transmit,
    /// Lives so far.
    life: u64,
}

impl Host {
    pub fn new(id: HostId, port: PortId, link: LinkId, config: HostConfig, seed: u64) -> Self {
        let n = id.0 as u16;
        let mac = MacAddr([0x02, 0, 0, 0, (n >> 8) as u8, n as u8]);
        let mut nic = Nic::new(mac, config.ips.clone(), config.link.mtu, config.udp_checksum);
        nic.vlan = config.vlan;
        let mut host = Host {
            id,
            config,
            port,
            link,
            nic,
            timeout: None,
            device: None,
            kick: Arc::default(),
            transmit: Transmit::default(),
            life: 0,
        };
        host.power_on(seed);
        host
    }

    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// The task group of this life. Group 0 belongs to no host.
    pub fn group(&self) -> Group {
        Group(((self.id.0 as u64 + 1) << 32) | self.life)
    }

    pub fn power_on(&mut self, world_seed: u64) {
        if self.device.is_some() {
            return;
        }
        self.life += 1;
        let mut config = self.config.device.clone();
        config.seed = world_seed.rotate_left(17) ^ self.group().0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        config.node_guid = Guid(0x0200_00ff_fe00_0000 | (self.id.0 as u64 + 1));
        if let Some(mtu) = Mtu::largest_in(self.config.link.mtu) {
            config.active_mtu = mtu;
        }
        let device = Device::new(config);
        self.kick = Arc::new(Kick(AtomicBool::new(true)));
        let installed = device.install_progress(self.kick.clone());
        debug_assert!(installed, "the device is new");
        self.device = Some(device);
    }

    pub fn power_off(&mut self) -> Option<Device> {
        self.timeout = None;
        self.nic.groups.clear();
        self.device.take()
    }

    /// The addresses by which others find this host.
    pub fn neighbour_entry(&self) -> (MacAddr, Vec<IpAddr>) {
        (self.nic.mac, self.nic.ips.clone())
    }

    pub fn take_dirty(&self) -> bool {
        self.device.is_some() && self.kick.0.swap(false, Ordering::Relaxed)
    }

    pub fn fire_timeout(&mut self, now: Instant) {
        self.timeout = None;
        if let Some(device) = &self.device {
            device.drive().handle_timeout(now);
            self.kick.kick();
        }
    }

    pub fn receive(&mut self, now: Instant, frame: &[u8]) {
        let Some(device) = &self.device else { return };
        let udp = match self.nic.accept(frame) {
            Some(Accepted::Datagram(udp)) => udp,
            Some(Accepted::RoceV1(packet)) => {
                device.drive().handle_frame(now, Frame::RoceV1(packet));
                return self.kick.kick();
            }
            None => return,
        };
        let ip_id = match udp.ip {
            IpHeader::V4(header) => Some(header.id),
            IpHeader::V6(_) => None,
        };
        let datagram = Datagram {
            src: udp.src(),
            dst: udp.ip.dst(),
            tos: udp.ip.traffic_class(),
            ttl: udp.ip.hop_limit(),
            ip_id,
            bytes: udp.payload,
        };
        device.drive().handle_datagram(now, datagram);
        self.kick.kick();
    }

    /// Takes out everything the device has to say.
    pub fn drain(&mut self, now: Instant, neighbours: &[(MacAddr, Vec<IpAddr>)]) -> Vec<Outgoing> {
        let mut out = Vec::new();
        let Some(device) = &self.device else { return out };
        let find = |ip: IpAddr| neighbours.iter().find(|(_, ips)| ips.contains(&ip)).map(|&(mac, _)| mac);
        let mut drive = device.drive();
        let transmit = &mut self.transmit;
        loop {
            let mut quiet = true;
            while drive.poll_transmit(now, transmit) {
                self.nic.frames(transmit, find, &mut out);
                quiet = false;
            }
            while let Some(command) = drive.poll_command() {
                quiet = false;
                match command {
                    Command::ResolveRoute { token, dst, src, .. } => {
                        let source = src.or_else(|| {
                            self.nic.ips.iter().copied().find(|ip| ip.is_ipv4() == dst.is_ipv4())
                        });
                        let route = match (find(dst), source) {
                            (Some(_), Some(src)) => Ok(Route { src, scope_id: 0, mtu: self.nic.mtu }),
                            _ => Err(RouteError::NoRoute),
                        };
                        drive.resolved(now, token, route);
                    }
                    Command::JoinGroup { group, .. } => drop(self.nic.groups.insert(group)),
                    Command::LeaveGroup { group, .. } => drop(self.nic.groups.remove(&group)),
                    _ => {}
                }
            }
            if quiet {
                break;
            }
        }
        self.timeout = drive.poll_timeout();
        out
    }
}
