//! One host: a device, its interface, and the loop that the driving contract asks for.
//!
//! After every mutation of the device the host is dirty; draining it takes everything out of [`everywire_verbs::Drive`] in the order that the
//! contract gives: transmits and commands until there are none, then the next timeout.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use everywire_fabric::network::{LinkId, PortId};
use everywire_verbs::{
    Command, ConnEvent, Datagram, Device, Frame, Gid, GidEntry, GidType, Progress, Route, RouteError,
    Transmit, Wire,
};
use everywire_wire::eth::MacAddr;
use everywire_wire::ip::IpHeader;
use everywire_wire::{Guid, Mtu};

use crate::executor::Group;
use crate::ib::{IbFabric, News};
use crate::nic::{Accepted, Nic, Outgoing};
use crate::tcp::Stack;
use crate::world::{HostConfig, HostId};

/// How soon a device is called again whose port has no room.
const NO_ROOM: Duration = Duration::from_micros(10);

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
    /// TCP, for an iWARP device; made when first needed.
    stack: Option<Box<Stack>>,
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
            stack: None,
            life: 0,
        };
        host.power_on(seed);
        host
    }

    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    pub fn is_infiniband(&self) -> bool {
        self.config.device.wire == Wire::InfiniBand
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
        if self.is_infiniband() {
            config.node_guid = IbFabric::port_guid(self.id);
            let gid = Gid::link_local(config.node_guid).to_ip();
            config.gids = vec![GidEntry::new(gid).of_type(GidType::Ib)];
        } else if let Some(mtu) = Mtu::largest_in(self.config.link.mtu) {
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
        self.stack = None;
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
        if device.wire() == Wire::Iwarp {
            if let Some(stack) = self.stack(now) {
                stack.receive(frame);
            }
            return self.kick.kick();
        }
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

    /// The TCP below an iWARP device.
    fn stack(&mut self, now: Instant) -> Option<&mut Stack> {
        let device = self.device.as_ref()?;
        let (nic, seed) = (&self.nic, device.config().seed);
        let cuts = self.config.stream_cuts;
        let make = || Box::new(Stack::new(now, nic.mac, &nic.ips, nic.mtu, seed, cuts));
        Some(self.stack.get_or_insert_with(make))
    }

    /// Resets every TCP connection.
    pub fn reset_streams(&mut self) {
        if let Some(stack) = &mut self.stack {
            stack.reset_all();
            self.kick.kick();
        }
    }

    /// The same for an iWARP device: its streams, through TCP.
    fn drain_streams(&mut self, now: Instant, neighbours: &[(MacAddr, Vec<IpAddr>)]) -> Vec<Outgoing> {
        let Some(device) = self.device.clone() else { return Vec::new() };
        let ips = self.nic.ips.clone();
        let mtu = self.nic.mtu;
        let Some(stack) = self.stack(now) else { return Vec::new() };
        let mut frames = Vec::new();
        loop {
            let mut busy = stack.turn(&device, now, &mut frames);
            loop {
                let Some(command) = device.drive().poll_command() else { break };
                busy = true;
                match command {
                    Command::ResolveRoute { token, dst, src, .. } => {
                        let route = route_to(dst, src, neighbours, &ips, mtu);
                        device.drive().resolved(now, token, route);
                    }
                    Command::StreamListen { listener, addr, .. } => stack.listen(listener, addr),
                    Command::StreamUnlisten { listener } => stack.unlisten(listener, now),
                    Command::StreamConnect { conn, src, dst, .. } => {
                        if let Err(error) = stack.connect(conn, src, dst) {
                            device.drive().stream_event(now, conn, ConnEvent::Failed(error));
                        }
                    }
                    Command::StreamClose { conn } => stack.close(conn),
                    Command::StreamReset { conn } => stack.reset(conn, now),
                    // Groups are refused at the call.
                    _ => {}
                }
            }
            if !busy {
                break;
            }
        }
        let own = device.drive().poll_timeout();
        self.timeout = own.into_iter().chain(stack.poll_timeout(now)).min();
        self.nic.counters.sent += frames.len() as u64;
        frames.into_iter().map(Outgoing::Wire).collect()
    }

    /// Something has arrived at the InfiniBand port.
    pub fn hear(&mut self, now: Instant, news: News) {
        let Some(device) = &self.device else { return };
        match news {
            News::Packet(_, packet) => device.drive().handle_frame(now, Frame::InfiniBand(&packet)),
            News::Port(_, values) => device.drive().ib_port(now, values),
            News::Room(_) => {}
        }
        self.kick.kick();
    }

    /// As [`Host::drain`], into the InfiniBand port; a port without room is left until it has some. Gives what was sent.
    pub fn drain_into(
        &mut self,
        now: Instant,
        fabric: &mut IbFabric,
        names: &[(HostId, Vec<IpAddr>)],
    ) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        let Some(device) = &self.device else { return sent };
        let mut drive = device.drive();
        loop {
            let mut quiet = true;
            while fabric.has_room(self.id) && drive.poll_transmit(now, &mut self.transmit) {
                quiet = false;
                for packet in self.transmit.segments() {
                    sent.push(packet.to_vec());
                    fabric.send(now, self.id, packet.to_vec());
                }
            }
            while let Some(command) = drive.poll_command() {
                quiet = false;
                if let Command::ReportWrongKey { is_qkey, head } = &command {
                    fabric.report(now, self.id, *is_qkey, head);
                }
                if let Command::ResolveNeighbour { token, ip } = command {
                    let gid = fabric.resolve(ip, names).ok_or(RouteError::NoRoute);
                    drive.neighbour(now, token, gid.map(Into::into));
                }
            }
            if quiet {
                break;
            }
        }
        // Without room nothing leaves, and so what is due stays due: it is looked at again later.
        let least = if fabric.has_room(self.id) { now } else { now + NO_ROOM };
        self.timeout = drive.poll_timeout().map(|at| at.max(least));
        sent
    }

    /// Takes out everything the device has to say.
    pub fn drain(&mut self, now: Instant, neighbours: &[(MacAddr, Vec<IpAddr>)]) -> Vec<Outgoing> {
        let mut out = Vec::new();
        if self.device.as_ref().is_some_and(|device| device.wire() == Wire::Iwarp) {
            return self.drain_streams(now, neighbours);
        }
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
                        let route = route_to(dst, src, neighbours, &self.nic.ips, self.nic.mtu);
                        drive.resolved(now, token, route);
                    }
                    Command::JoinGroup { group, .. } => drop(self.nic.groups.insert(group)),
                    Command::LeaveGroup { group, .. } => drop(self.nic.groups.remove(&group)),
                    // Streams are iWARP's.
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

/// The route to a neighbour, from one of our addresses.
fn route_to(
    dst: IpAddr,
    src: Option<IpAddr>,
    neighbours: &[(MacAddr, Vec<IpAddr>)],
    ips: &[IpAddr],
    mtu: usize,
) -> Result<Route, RouteError> {
    let known = neighbours.iter().any(|(_, ips)| ips.contains(&dst));
    let src = src.or_else(|| ips.iter().copied().find(|ip| ip.is_ipv4() == dst.is_ipv4()));
    src.filter(|_| known).map(|src| Route { src, scope_id: 0, mtu }).ok_or(RouteError::NoRoute)
}
