//! The door for programs: who is attached to which port, and packets both ways with nothing dropped.
//!
//! A program's packets wait here until its port takes them, a lane each, and only then gets it room for more. What reaches the
//! port waits here until the program has room and the socket takes it, and only then is the port's buffer given back, so
//! that a slow program slows its senders down by InfiniBand's own credits. A program that dies is a link down, but at the port
//! of a subnet manager of ours, which lives on; one that leaves in order is not.

mod client;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use everywire_fabric::ib::PortId;
use everywire_wire::{Gid, Guid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::built::Built;
use super::place;
use super::plan::NodeRef;
use super::ready::Ready;
use crate::fabric_port::channel::Channel;
use crate::fabric_port::message::{Message, VERSION, Welcome};
pub(super) use client::Client;

/// Programs that have connected and not said who they are.
const MAX_NEWCOMERS: usize = 64;
/// How long they may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What happened at the door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DoorEvent {
    /// A program is attached.
    Attached { port: PortId, pid: i32 },
    /// It is no longer.
    Left { port: PortId, pid: i32, why: Departure, link: Link },
}

/// What a departure has made of the port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Nothing.
    Untouched,
    /// It is down.
    Down,
    /// It would be down, but for the subnet manager there.
    Manager,
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Link::Untouched => "",
            Link::Down => "; the link is down until somebody attaches",
            Link::Manager => "; the link stays up, since the subnet manager is there",
        })
    }
}

/// How a program has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// It said so.
    Orderly,
    /// Its process has ended, or its end of the socket is closed.
    Died,
    /// It broke the protocol.
    Broke(&'static str),
}

impl std::fmt::Display for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Departure::Orderly => f.write_str("it has left"),
            Departure::Died => f.write_str("it has ended without a word"),
            Departure::Broke(what) => write!(f, "it broke the attach protocol ({what})"),
        }
    }
}

/// Why a program is not let in.
enum Refusal {
    /// There is no such port, or none for programs.
    NoSuchPort(String),
    /// Anything else.
    Other(String),
}

#[derive(Debug)]
struct Newcomer {
    channel: Channel,
    pid: i32,
    until: Instant,
}

/// The door.
#[derive(Debug)]
pub(super) struct Door {
    listener: OwnedFd,
    newcomers: Vec<Newcomer>,
    clients: BTreeMap<PortId, Client>,
    events: Vec<DoorEvent>,
}

impl Door {
    /// Opens it.
    pub(super) fn open(fabric: &str) -> io::Result<Door> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(place::attach_socket(fabric))?)?;
        rustix::net::listen(&listener, MAX_NEWCOMERS as i32)?;
        Ok(Door { listener, newcomers: Vec::new(), clients: BTreeMap::new(), events: Vec::new() })
    }

    /// Descriptors to watch, and whether for writing too.
    pub(super) fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let newcomers = self.newcomers.iter().map(|one| (one.channel.as_fd(), false));
        let clients = self.clients.values().map(|one| (one.as_fd(), one.is_blocked()));
        std::iter::once((self.listener.as_fd(), false)).chain(newcomers).chain(clients)
    }

    /// Takes what programs say; whether there was anything.
    pub(super) fn receive(&mut self, ready: &Ready, built: &mut Built, now: Instant) -> bool {
        let mut progress = ready.has(self.listener.as_fd()) && self.accept(now);
        progress |= self.hear_newcomers(built, now);
        let mut gone = Vec::new();
        for (port, client) in self.clients.iter_mut().filter(|(_, client)| ready.has(client.as_fd())) {
            match client.receive(built, now, *port) {
                Ok(moved) => progress |= moved,
                Err(why) => gone.push((*port, why)),
            }
        }
        progress |= !gone.is_empty();
        gone.into_iter().for_each(|(port, why)| self.part(built, now, port, why));
        progress
    }

    /// Sends what waits for programs; whether anything went.
    pub(super) fn flush(&mut self, ready: &Ready, built: &mut Built, now: Instant) -> bool {
        let (mut progress, mut gone) = (false, Vec::new());
        for (port, client) in &mut self.clients {
            match client.flush(ready, &mut built.subnet, now) {
                Ok(moved) => progress |= moved,
                Err(why) => gone.push((*port, why)),
            }
        }
        gone.into_iter().for_each(|(port, why)| self.part(built, now, port, why));
        progress
    }

    /// The program at a port.
    pub(super) fn client(&mut self, port: PortId) -> Option<&mut Client> {
        self.clients.get_mut(&port)
    }

    /// The process at a port.
    pub(super) fn process(&self, port: PortId) -> Option<i32> {
        self.clients.get(&port).map(|client| client.pid)
    }

    /// What has happened since.
    pub(super) fn events(&mut self) -> Vec<DoorEvent> {
        std::mem::take(&mut self.events)
    }

    /// When a newcomer has taken too long.
    pub(super) fn timeout(&self) -> Option<Instant> {
        self.newcomers.iter().map(|one| one.until).min()
    }

    /// Tells programs that the fabric ends.
    pub(super) fn close(&mut self) {
        for client in self.clients.values_mut() {
            client.refuse("the fabric ends");
        }
    }

    fn accept(&mut self, now: Instant) -> bool {
        let before = self.newcomers.len();
        while self.newcomers.len() < MAX_NEWCOMERS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(fd) = rustix::net::accept_with(&self.listener, flags) else { break };
            let Ok(who) = rustix::net::sockopt::socket_peercred(&fd) else { continue };
            let pid = who.pid.as_raw_nonzero().get();
            self.newcomers.push(Newcomer { channel: Channel::new(fd), pid, until: now + PATIENCE });
        }
        before != self.newcomers.len()
    }

    fn hear_newcomers(&mut self, built: &mut Built, now: Instant) -> bool {
        let (mut index, mut progress) = (0, false);
        while index < self.newcomers.len() {
            let one = &mut self.newcomers[index];
            let said = one.channel.receive();
            if matches!(said, Ok(0)) && now < one.until {
                index += 1;
                continue;
            }
            progress = true;
            let mut one = self.newcomers.swap_remove(index);
            if !matches!(said, Ok(1..)) {
                continue;
            }
            match self.admit(built, now, one.channel.message(0)) {
                Ok((port, welcome)) => {
                    // A hello's answer fits any socket; whoever does not listen is found gone at the next look.
                    let values = welcome.port.clone();
                    let _ = one.channel.send(&Message::Welcome(Box::new(welcome)).bytes());
                    built.attached.insert(port);
                    self.clients.insert(port, Client::new(one.channel, one.pid, values));
                    self.events.push(DoorEvent::Attached { port, pid: one.pid });
                }
                Err(refusal) => {
                    let message = match &refusal {
                        Refusal::NoSuchPort(text) => Message::NoSuchPort(text),
                        Refusal::Other(text) => Message::Refused(text),
                    };
                    let _ = one.channel.send(&message.bytes()); // it may have gone
                }
            }
        }
        progress
    }

    /// Whom to let in with what words; or why not.
    fn admit(&self, built: &mut Built, now: Instant, hello: &[u8]) -> Result<(PortId, Welcome), Refusal> {
        let Some(Message::Hello { version, port: text }) = Message::parse(hello) else {
            return Err(Refusal::Other("the first message is no hello of this protocol".to_owned()));
        };
        if version != VERSION {
            return Err(Refusal::Other(format!(
                "it speaks version {VERSION} of the attach protocol, this program {version}: both must be of one release"
            )));
        }
        let wanted = built.plan.port(text).map_err(Refusal::NoSuchPort)?;
        let of = |whose: &str| {
            Err(Refusal::NoSuchPort(format!("{text} is a {whose}'s port; programs attach to hosts")))
        };
        let NodeRef::Host(index) = wanted.node else { return of("switch") };
        if built.plan.hosts[index].router {
            return of("router");
        }
        let port = built.port_id(wanted);
        if let Some(client) = self.clients.get(&port) {
            let name = built.plan.port_name(wanted);
            return Err(Refusal::Other(format!("{name} is taken by process {}", client.pid)));
        }
        // A process that died has left the link down.
        if let Some(link) = built.link_at(port)
            && built.plugged[link]
        {
            let _ = built.subnet.link_up(now, built.links[link]); // the link is the plan's
        }
        let host = &built.plan.hosts[index];
        let ip = host.ips.get(usize::from(wanted.port) - 1).map_or(Gid::ZERO, |ip| Gid::from(*ip));
        let port_values = client::values(&built.subnet, port)
            .ok_or_else(|| Refusal::Other("the port is not in the subnet".to_owned()))?;
        let port_guid = Guid(host.guid.0 + u64::from(wanted.port));
        Ok((port, Welcome { version: VERSION, node_guid: host.guid, port_guid, ip, port: port_values }))
    }

    /// A program is no longer there.
    fn part(&mut self, built: &mut Built, now: Instant, port: PortId, why: Departure) {
        let Some(mut client) = self.clients.remove(&port) else { return };
        built.attached.remove(&port);
        if let Departure::Broke(text) = why {
            client.refuse(text);
        }
        client.give_back(&mut built.subnet, now);
        let (refused, foreign) = (client.refused, client.foreign);
        if refused + foreign > 0 {
            let port = built.name(port);
            tracing::debug!(port, refused, foreign, "packets of process {} were not taken", client.pid);
        }
        let link = match built.link_at(port) {
            Some(_) if why != Departure::Orderly && built.managers.contains(&port) => Link::Manager,
            Some(link) if why != Departure::Orderly => {
                let _ = built.subnet.link_down(now, built.links[link]); // the link is the plan's
                Link::Down
            }
            _ => Link::Untouched,
        };
        self.events.push(DoorEvent::Left { port, pid: client.pid, why, link });
    }
}

/// The GID of an IP address, zero where nobody has it; and the name of its port, where no program is attached to that.
pub(super) fn resolve(built: &Built, ip: Gid) -> (Gid, bool, String) {
    let wanted = ip.to_ip();
    for (index, host) in built.plan.hosts.iter().enumerate() {
        if let Some(place) = host.ips.iter().position(|own| *own == wanted) {
            let port = super::plan::PortRef { node: NodeRef::Host(index), port: place as u8 + 1 };
            let id = built.port_id(port);
            let prefix = built.subnet.port_values(id).map_or(0, |values| values.gid_prefix);
            let guid = host.guid.0 + place as u64 + 1;
            let gid = Gid((u128::from(prefix) << 64 | u128::from(guid)).to_be_bytes());
            return (gid, built.attached.contains(&id), built.name(id));
        }
    }
    (Gid::ZERO, false, String::new())
}
