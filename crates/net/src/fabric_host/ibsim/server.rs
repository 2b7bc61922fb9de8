//! The server's sockets and its clients: control messages answered, MADs passed on both ways.
//!
//! Names are abstract, with a NUL at the end as well: `NAME:ctl` for control, `NAME:out0` to `NAME:out9` for MADs; clients have
//! `NAME:ctlPID` and `NAME:inPID`. Whose each datagram is the kernel says (`peer.rs`). A client's queue holds ten datagrams or so (net.unix.max_dgram_qlen); what does not fit
//! waits here.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use everywire_fabric::ib::PortId;
use everywire_fabric::ib::mad_packet::MadRoute;
use everywire_wire::mad::{MadHeader, class};
use everywire_wire::{Lid, Mad, Qpn};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, send, socket_with,
};

use super::super::built::Built;
use super::super::mads::{Backlog, To};
use super::super::ready::Ready;
use super::client::{Client, client_of, is_answer, is_request};
use super::message::{PACKET_LEN, Packet};
use super::peer::{self, Datagram, Peer};
use crate::rarely::Rarely;

/// Clients at a time.
pub(crate) const MAX_CLIENTS: usize = 10;
/// MADs that wait for a client; older ones go first, as in a kernel's queue that is full.
const MAX_QUEUE: usize = 8192;
/// MADs taken from one client in one turn.
const BURST: usize = 256;
/// Why nobody listens to a message.
pub(super) const OTHER_USER: &str = "another user's clients are not let in";
pub(super) const NO_MESSAGE: &str = "it is no message of ibsim's protocol";
/// How often to look whether clients' processes are there.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What has happened at this door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IbsimEvent {
    /// A client is connected.
    Connected { pid: u32, port: PortId },
    /// It has left, or its process has ended.
    Left { pid: u32, port: PortId },
    /// It has become, or is no longer, a subnet manager.
    IsSm { pid: u32, port: PortId, is_sm: bool },
}

pub(super) struct Slot {
    /// `NAME:outN`.
    pub(super) fd: OwnedFd,
    pub(super) client: Option<Client>,
    pub(super) queue: VecDeque<[u8; PACKET_LEN]>,
    pub(super) blocked: bool,
}

/// The server.
pub(crate) struct Ibsim {
    pub(super) name: String,
    pub(super) control: OwnedFd,
    pub(super) slots: Vec<Slot>,
    pub(super) events: Vec<IbsimEvent>,
    pub(super) look_at: Option<Instant>,
    /// Messages that nobody listens to: of users who are not let in, or none of the protocol's.
    pub(super) strangers: Rarely,
}

impl std::fmt::Debug for Ibsim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ibsim").field("name", &self.name).finish_non_exhaustive()
    }
}

pub(super) fn address(name: &str, what: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("{name}:{what}\0").as_bytes())?)
}

fn socket(name: &str, what: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    peer::ask_for_peers(&fd)?;
    bind(&fd, &address(name, what)?).map_err(|error| match error {
        Errno::ADDRINUSE => io::Error::new(
            io::ErrorKind::AddrInUse,
            format!(
                "an ibsim server named {name} runs already (the abstract socket {name}:{what} is in use)"
            ),
        ),
        other => other.into(),
    })?;
    Ok(fd)
}

impl Ibsim {
    /// Opens the sockets of `name` (clients say `IBSIM_SOCKNAME=name`; `sim` if they do not).
    ///
    /// # Errors
    /// Another server has the name.
    pub(crate) fn open(name: &str) -> io::Result<Ibsim> {
        let control = socket(name, "ctl")?;
        let slots = (0..MAX_CLIENTS).map(|number| {
            let fd = socket(name, &format!("out{number}"))?;
            Ok(Slot { fd, client: None, queue: VecDeque::new(), blocked: false })
        });
        let slots = slots.collect::<io::Result<_>>()?;
        Ok(Ibsim {
            name: name.to_owned(),
            control,
            slots,
            events: Vec::new(),
            look_at: None,
            strangers: Rarely::default(),
        })
    }

    /// Descriptors to watch, and whether for writing too.
    pub(crate) fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let slots = self.slots.iter().map(|slot| (slot.fd.as_fd(), slot.blocked));
        std::iter::once((self.control.as_fd(), false)).chain(slots)
    }

    /// What has happened since.
    pub(crate) fn events(&mut self) -> Vec<IbsimEvent> {
        std::mem::take(&mut self.events)
    }

    /// When to take a turn though nothing arrives.
    pub(crate) fn timeout(&self) -> Option<Instant> {
        let waiting = self.clients().filter_map(Client::timeout).min();
        waiting.into_iter().chain(self.look_at).min()
    }

    fn clients(&self) -> impl Iterator<Item = &Client> {
        self.slots.iter().filter_map(|slot| slot.client.as_ref())
    }

    /// Takes what clients say; whether there was anything.
    pub(crate) fn turn(
        &mut self,
        ready: &Ready,
        built: &mut Built,
        backlog: &mut Backlog,
        now: Instant,
    ) -> bool {
        let mut progress = ready.has(self.control.as_fd()) && self.hear_control(built, now);
        for index in 0..self.slots.len() {
            if ready.has(self.slots[index].fd.as_fd()) {
                progress |= self.hear(index, built, backlog, now);
            }
            let Some(client) = &mut self.slots[index].client else { continue };
            for packet in client.expired(now) {
                self.queue(index, &packet);
            }
        }
        if self.look_at.is_some_and(|at| at <= now) {
            let any = self.clients().next().is_some();
            self.look_at = any.then(|| now + LOOK_EVERY);
            let gone = |client: &Client| {
                // One that cannot be seen is found gone when it is sent to.
                let pid = rustix::process::Pid::from_raw(client.pid as i32);
                pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH))
            };
            for index in 0..self.slots.len() {
                if self.slots[index].client.as_ref().is_some_and(gone) {
                    self.remove(index, built, now);
                }
            }
        }
        progress
    }

    /// Sends what waits for clients; whether anything went.
    pub(crate) fn flush_all(&mut self, ready: &Ready, built: &mut Built, now: Instant) -> bool {
        let mut progress = false;
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if !slot.queue.is_empty() && (!slot.blocked || ready.has(slot.fd.as_fd())) {
                progress |= self.flush(index, built, now);
            }
        }
        progress
    }

    /// The subnet manager among the clients at this port.
    pub(super) fn sm_at(&self, port: PortId) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot| slot.client.as_ref().is_some_and(|one| one.port == port && one.is_sm))
    }

    /// Takes MADs of a client.
    fn hear(&mut self, index: usize, built: &mut Built, backlog: &mut Backlog, now: Instant) -> bool {
        let mut progress = false;
        let mut bytes = [0; PACKET_LEN + 1];
        for _ in 0..BURST {
            let Ok(Datagram { length, peer, from }) = peer::receive(self.slots[index].fd.as_fd(), &mut bytes)
            else {
                break;
            };
            progress = true;
            if !peer.is_some_and(Peer::is_let_in) {
                self.stranger(now, &format!("out{index}"), from.as_ref(), peer, OTHER_USER);
                continue;
            }
            match (Packet::parse(&bytes[..length]), &mut self.slots[index].client) {
                (Some(packet), Some(client)) => {
                    trace("from", index, &packet);
                    pass_on(client, packet, built, backlog, now);
                }
                // What a client that has left had still sent.
                (Some(_), None) => {}
                (None, _) => self.stranger(now, &format!("out{index}"), from.as_ref(), peer, NO_MESSAGE),
            }
        }
        progress
    }

    /// Counts a message to the socket `NAME:to` that nobody listens to.
    #[cold]
    pub(super) fn stranger(
        &mut self,
        now: Instant,
        to: &str,
        from: Option<&SocketAddrUnix>,
        peer: Option<Peer>,
        why: &str,
    ) {
        let Some(count) = self.strangers.note(now, 1) else { return };
        let name = from.and_then(SocketAddrUnix::abstract_name);
        let name = name.map_or_else(
            || "a socket without an abstract name".to_owned(),
            |name| format!("{}", name.trim_ascii_end().escape_ascii()),
        );
        let who = peer.map_or_else(
            || "nobody the kernel names".to_owned(),
            |peer| format!("process {} of user {}", peer.pid, peer.uid),
        );
        let total = self.strangers.total;
        tracing::warn!(
            count,
            total,
            "ibsim: a message from {name} ({who}) to {}:{to} is dropped: {why}",
            self.name
        );
    }

    fn queue(&mut self, index: usize, packet: &Packet) {
        trace("to", index, packet);
        let queue = &mut self.slots[index].queue;
        if queue.len() >= MAX_QUEUE {
            queue.pop_front();
        }
        queue.push_back(packet.bytes());
    }

    /// Sends what waits for a client.
    fn flush(&mut self, index: usize, built: &mut Built, now: Instant) -> bool {
        let slot = &mut self.slots[index];
        let mut progress = false;
        while let Some(packet) = slot.queue.front() {
            match send(&slot.fd, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => {
                    slot.queue.pop_front();
                    progress = true;
                }
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => {
                    slot.blocked = true;
                    return progress;
                }
                Err(_) => {
                    self.remove(index, built, now);
                    return true;
                }
            }
        }
        slot.blocked = false;
        progress
    }

    /// Whether an answer is for a client here.
    pub(crate) fn is_for_client(&self, port: PortId, mad: &Mad) -> bool {
        let number = MadHeader::parse(mad).ok().and_then(|header| client_of(header.transaction_id));
        let slot = number.and_then(|number| self.slots.get(usize::from(number)));
        slot.and_then(|slot| slot.client.as_ref()).is_some_and(|client| client.port == port)
    }

    /// A MAD of QP0 that the port does not answer itself. False if no client here wants it.
    pub(crate) fn smp(&mut self, port: PortId, slid: Lid, mad: &Mad) -> bool {
        let route = Packet { dlid: Lid(0), slid, dqp: 0, sqp: 0, status: 0, mad: *mad };
        self.deliver(port, route)
    }

    /// A MAD of QP1. False if no client here wants it.
    pub(crate) fn gmp(&mut self, port: PortId, route: &MadRoute, mad: &Mad) -> bool {
        let (dlid, slid) = (route.dlid, route.slid);
        let packet =
            Packet { dlid, slid, dqp: route.dest_qp.get(), sqp: route.src_qp.get(), status: 0, mad: *mad };
        self.deliver(port, packet)
    }

    fn deliver(&mut self, port: PortId, mut packet: Packet) -> bool {
        let Ok(mut header) = MadHeader::parse(&packet.mad) else { return false };
        if is_answer(&header) {
            let number = client_of(header.transaction_id).map(usize::from);
            let Some(index) = number.filter(|index| *index < self.slots.len()) else { return false };
            let client = self.slots[index].client.as_mut().filter(|one| one.port == port);
            let Some(client) = client else { return false };
            let Some(transaction_id) = client.answered(&header) else { return false };
            header.transaction_id = transaction_id;
            header.emit(&mut packet.mad);
            self.queue(index, &packet);
            return true;
        }
        let Some(index) = self.server_of(port, header.mgmt_class) else { return false };
        self.queue(index, &packet);
        true
    }

    /// Who answers requests of a class at a port. A client that has not registered a class ends when it gets one of it, so
    /// vendors' classes go to those only that never ask, as servers of ibping do.
    fn server_of(&self, port: PortId, mgmt_class: u8) -> Option<usize> {
        match mgmt_class {
            class::SUBN_LID_ROUTED | class::SUBN_DIRECTED_ROUTE | class::SUBN_ADM => self.sm_at(port),
            0x09..=0x0f | class::VENDOR_RANGE2_START..=class::VENDOR_RANGE2_END => {
                let serves = |one: &Client| one.port == port && !one.asks && !one.is_sm;
                self.slots.iter().position(|slot| slot.client.as_ref().is_some_and(serves))
            }
            _ => None,
        }
    }
}

/// Puts a client's MAD into the subnet.
fn pass_on(client: &mut Client, mut packet: Packet, built: &mut Built, backlog: &mut Backlog, now: Instant) {
    let Ok(mut header) = MadHeader::parse(&packet.mad) else { return };
    if is_request(&header) {
        let kept = Packet { mad: packet.mad, ..packet };
        client.asked(now, &mut header, &kept);
        header.emit(&mut packet.mad);
    }
    match header.mgmt_class {
        class::SUBN_DIRECTED_ROUTE | class::SUBN_LID_ROUTED => {
            built.subnet.send_smp(now, client.port, packet.dlid, &packet.mad);
        }
        _ => {
            let to = To { qp: Qpn::new(packet.dqp), ..To::lid(packet.dlid) };
            backlog.send(&mut built.subnet, now, client.port, to, &packet.mad);
        }
    }
}

/// EVERYWIRE_LOG=everywire_net::fabric_host=trace shows every MAD of every client.
fn trace(way: &str, client: usize, packet: &Packet) {
    if let Ok(header) = MadHeader::parse(&packet.mad) {
        tracing::trace!(
            "ibsim {way} client {client}: class {:#04x} method {:#04x} attribute {:#06x} status {} transaction {:#018x} \
             LID {} to {}, QP {} to {}",
            header.mgmt_class,
            header.method,
            header.attribute_id,
            packet.status,
            header.transaction_id,
            packet.slid.0,
            packet.dlid.0,
            packet.sqp,
            packet.dqp
        );
    }
}
