//! The engine of an InfiniBand device: packets through the port of a fabric, LRH to VCRC.
//!
//! The same turns as `engine.rs` has, on a wire that never drops: what the port does not take waits here, and nothing more is
//! asked of the device meanwhile. What the fabric says of the port goes to the device, and its questions to the fabric.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use everywire_verbs::{
    Command, Device, Drive, Frame, IbPort, Neighbour, PortState, RouteError, RouteToken, Transmit,
};
use rustix::event::{PollFd, PollFlags, epoll};

use super::engine::Turn;
use super::reattach::{Absence, Look, Lost, Seat};
use super::timespec;
use crate::capture::Capture;
use crate::fabric_port::message::PortValues;
use crate::fabric_port::{FabricPort, Said};
use everywire_fabric::pcapng::Direction;
use everywire_wire::smp::codes::port_state;

/// Batches of packets received in one turn.
const MAX_BATCHES: usize = 4;
/// Most transmits drained from the device before they are sent.
const MAX_DRAIN: usize = 32;
/// Most bytes of them.
const MAX_DRAIN_BYTES: usize = 256 * 1024;
/// Questions to the fabric that are open at a time.
const MAX_QUESTIONS: usize = 1024;

/// A device and its port.
#[derive(Debug)]
pub(crate) struct FabricEngine {
    /// `None` once the host is closed.
    device: Option<Device>,
    port: FabricPort,
    capture: Option<Capture>,
    pub(crate) epoll: Arc<OwnedFd>,
    /// Transmits whose buffers are reused; `out[sent..filled]` wait to be sent.
    out: Vec<Transmit>,
    sent: usize,
    filled: usize,
    /// Packets of `out[sent]` that have gone.
    gone: usize,
    commands: Vec<Command>,
    /// Questions to the fabric by number, as the device knows them.
    questions: Vec<(u64, RouteToken)>,
    last_question: u64,
    deadline: Option<Instant>,
    more_to_send: bool,
    /// Whether epoll tells of room in the socket.
    watches_room: bool,
    /// Which port it is.
    seat: Seat,
    /// PortInfo:PortState, as it was told last.
    state: u8,
    /// The fabric is gone, and the device knows it.
    lost: Option<Lost>,
    /// The same for whoever waits for that.
    absence: Arc<Absence>,
    /// Turns of polling programs in a row that found nothing.
    pub(crate) empty_turns: u64,
}

impl FabricEngine {
    /// The epoll descriptor watches the socket. `values` are the port's as it was attached.
    pub(crate) fn new(
        device: Device,
        port: FabricPort,
        seat: Seat,
        values: &PortValues,
        capture: Option<Capture>,
    ) -> io::Result<FabricEngine> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, port.fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        device.drive().ib_port(Instant::now(), told(values));
        Ok(FabricEngine {
            device: Some(device),
            port,
            capture,
            epoll: Arc::new(epoll),
            out: Vec::new(),
            sent: 0,
            filled: 0,
            gone: 0,
            commands: Vec::new(),
            questions: Vec::new(),
            last_question: 0,
            deadline: None,
            more_to_send: false,
            watches_room: false,
            seat,
            state: values.state,
            lost: None,
            absence: Arc::default(),
            empty_turns: 0,
        })
    }

    /// Waits until a subnet manager has brought the port up. A program that tells others of itself sooner cannot be found:
    /// the administrator knows of ports by sweeps, which traps start no more often than the manager likes.
    pub(crate) fn await_active(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        loop {
            self.turn(false);
            let Some(device) = &self.device else { return };
            if device.port().state == PortState::Active || self.lost.is_some() {
                return;
            }
            let now = Instant::now();
            if now >= until {
                let why = match self.state {
                    port_state::DOWN => "the port has no link: its cable is pulled, or the other end is off",
                    _ => "no subnet manager has brought the port up",
                };
                // Of a target of its own: a client's user waits for this too, and has to know.
                tracing::warn!(target: "everywire_net::bring_up", device = device.name(), "{why} (waited {patience:?})");
                return;
            }
            let mut watched = [PollFd::new(&self.epoll, PollFlags::IN)];
            // Interrupted or not, the next turn looks.
            let _ = rustix::event::poll(&mut watched, Some(&timespec(until - now)));
        }
    }

    /// Readable when the socket has something.
    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// When the next turn is due though nothing arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.lost.as_ref().map(Lost::deadline)).min()
    }

    /// Whether the port is lost, for whoever waits for that.
    pub(crate) fn absence(&self) -> Arc<Absence> {
        self.absence.clone()
    }

    /// One turn: what is there comes in, and what the device has goes out.
    pub(crate) fn turn(&mut self, queued: bool) -> Turn {
        let Some(device) = self.device.take() else { return Turn::default() };
        let (received, unread) = self.receive(&device);
        let said = self.hear(&device) | self.look_for_another(&device);
        let now = Instant::now();
        let due = self.deadline.is_some_and(|deadline| deadline <= now);
        let mut sent = false;
        if queued || received > 0 || said || due || self.more_to_send || self.sent < self.filled {
            let mut drive = device.drive();
            if due {
                drive.handle_timeout(now);
            }
            self.drain(&mut drive, now);
            drop(drive);
            sent = self.flush();
            self.obey();
        } else if self.port.is_full() {
            sent = self.flush();
        }
        self.device = Some(device);
        let more = unread || self.more_to_send && self.sent == self.filled;
        let progress = received > 0 || said || due || sent;
        Turn { progress, more: progress || more, received }
    }

    /// Feeds the device; how many packets, and whether there may be more: batches of grants alone are no packets.
    fn receive(&mut self, device: &Device) -> (usize, bool) {
        let (mut count, mut unread) = (0, false);
        for _ in 0..MAX_BATCHES {
            let mut fed: Option<(Drive<'_>, Instant)> = None;
            let capture = &mut self.capture;
            unread = self.port.receive(|packet| {
                let (drive, now) = fed.get_or_insert_with(|| (device.drive(), Instant::now()));
                drive.handle_frame(*now, Frame::InfiniBand(packet));
                if let Some(capture) = capture {
                    capture.infiniband(Direction::Inbound, packet);
                }
                count += 1;
            });
            if !unread {
                break;
            }
        }
        (count, unread)
    }

    /// Tells the device what the fabric has said; whether it has said anything.
    fn hear(&mut self, device: &Device) -> bool {
        let said = self.port.said();
        let any = !said.is_empty();
        for said in said {
            let (mut drive, now) = (device.drive(), Instant::now());
            match said {
                Said::Port(values) => {
                    self.state = values.state;
                    drive.ib_port(now, told(&values));
                }
                Said::Resolved { token, gid, attached, port } => {
                    if let Some(place) = self.questions.iter().position(|(number, _)| *number == token) {
                        let (_, token) = self.questions.swap_remove(place);
                        let port = format!("port {port} of fabric {}", self.seat.fabric);
                        let answer = match gid {
                            None => Err(RouteError::NoRoute),
                            Some(_) if !attached => Err(RouteError::NoProgram(port)),
                            Some(gid) => Ok(Neighbour { gid, port: Some(port) }),
                        };
                        drive.neighbour(now, token, answer);
                    }
                }
            }
        }
        let Some(why) = self.port.gone().filter(|_| self.lost.is_none()).map(str::to_owned) else {
            return any;
        };
        tracing::warn!(device = device.name(), "the port is gone: {why}");
        let now = Instant::now();
        self.lost = Some(Lost::new(now));
        self.questions.clear();
        (self.filled, self.sent, self.gone) = (0, 0, 0);
        let _ = epoll::delete(&self.epoll, self.port.fd()); // it would be readable for ever
        self.absence.set(Some(why));
        device.drive().port_lost(now);
        true
    }

    /// Looks for the fabric again, once it is gone; whether it is back.
    fn look_for_another(&mut self, device: &Device) -> bool {
        let Some(lost) = &mut self.lost else { return false };
        let now = Instant::now();
        match lost.look(now, &self.seat) {
            Look::Nothing => return false,
            Look::Began => {
                if let Some(fd) = lost.fd() {
                    let _ = epoll::add(&self.epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
                }
                return false;
            }
            Look::Back(back) => {
                let (port, welcome) = *back;
                (self.port, self.watches_room, self.lost) = (port, false, None);
                tracing::info!(device = device.name(), "the fabric is back, and the port attached again");
                self.absence.set(None);
                self.state = welcome.port.state;
                device.drive().ib_port(now, told(&welcome.port));
            }
        }
        true
    }

    /// Fills transmits until there are no more, or enough for one send.
    fn drain(&mut self, drive: &mut Drive<'_>, now: Instant) {
        if self.sent == self.filled {
            (self.sent, self.filled, self.gone) = (0, 0, 0);
        }
        self.more_to_send = false;
        let mut bytes: usize = self.out[..self.filled].iter().map(|out| out.buf.len()).sum();
        loop {
            if self.filled >= MAX_DRAIN || bytes >= MAX_DRAIN_BYTES {
                self.more_to_send = true;
                break;
            }
            if self.filled == self.out.len() {
                self.out.push(Transmit::default());
            }
            if !drive.poll_transmit(now, &mut self.out[self.filled]) {
                break;
            }
            bytes += self.out[self.filled].buf.len();
            self.filled += 1;
        }
        while let Some(command) = drive.poll_command() {
            self.commands.push(command);
        }
        self.deadline = drive.poll_timeout();
    }

    /// Sends what waits; whether anything left.
    fn flush(&mut self) -> bool {
        self.port.flush();
        let mut sent = self.port.send_queued();
        while self.sent < self.filled {
            let item = &self.out[self.sent];
            let went = self.port.send(item.segments().skip(self.gone));
            sent |= went > 0;
            if let Some(capture) = &mut self.capture {
                for packet in item.segments().skip(self.gone).take(went) {
                    capture.infiniband(Direction::Outbound, packet);
                }
            }
            self.gone += went;
            if item.segments().nth(self.gone).is_some() {
                break;
            }
            (self.sent, self.gone) = (self.sent + 1, 0);
        }
        self.watch_for_room();
        sent
    }

    /// Has epoll tell of room in the socket while something waits for that. What waits for credit is told by the fabric.
    fn watch_for_room(&mut self) {
        let wanted = self.port.is_full();
        if wanted != self.watches_room && self.lost.is_none() {
            self.watches_room = wanted;
            let both = epoll::EventFlags::IN | epoll::EventFlags::OUT;
            let flags = if wanted { both } else { epoll::EventFlags::IN };
            let _ = epoll::modify(&self.epoll, self.port.fd(), epoll::EventData::new_u64(0), flags);
        }
    }

    /// Carries commands out.
    fn obey(&mut self) {
        for command in std::mem::take(&mut self.commands) {
            // Groups are joined at subnet administration, which the device asks itself.
            if let Command::ReportWrongKey { is_qkey, head } = &command {
                self.port.report_wrong_key(*is_qkey, head);
            }
            let Command::ResolveNeighbour { token, ip } = command else { continue };
            if self.questions.len() >= MAX_QUESTIONS {
                self.questions.remove(0); // its asker gives up in time
            }
            self.last_question += 1;
            self.questions.push((self.last_question, token));
            self.port.resolve(self.last_question, ip.into());
        }
    }

    /// Nothing else to do: the moment for what can wait. True if that made work: no sleeping then.
    pub(crate) fn going_idle(&mut self) -> bool {
        if let Some(capture) = &mut self.capture {
            capture.flush();
        }
        false
    }
}

/// A port's values as its device is told them.
fn told(values: &PortValues) -> IbPort {
    IbPort {
        active: values.state == port_state::ACTIVE,
        unplugged: values.state == port_state::DOWN,
        lid: values.lid,
        lmc: values.lmc,
        sm_lid: values.sm_lid,
        sm_sl: values.sm_sl,
        gid_prefix: values.gid_prefix,
        pkeys: values.pkeys.clone(),
        mtu: values.mtu,
        client_reregister: values.reregister,
    }
}
