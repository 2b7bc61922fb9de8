//! The engine: one turn receives a batch, feeds it to the device, drains the device and sends what it has.
//!
//! Read first: the driving contract in `everywire_verbs::Drive`. Whoever holds the engine's lock is the device's one driver:
//! a background thread, a task, or a program that polls. The device's own lock is held for one batch at a time, never during
//! a system call that sends.
//!
//! It does not sleep; see `thread.rs` and `task.rs`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use everywire_verbs::{Command, Datagram, Device, Drive, Frame, Transmit};
use rustix::event::{Timespec, epoll};

use super::paths::{NarrowPaths, path_event, resolve_for, tell_port_state};
use super::wire::Wire;
use crate::link::Link;
use crate::rarely::Rarely;
use crate::udp::{PathEvent, PortCounters, Received};

/// Most transmits drained from the device before they are sent.
const MAX_DRAIN: usize = 32;
/// Most bytes drained from the device before they are sent: less, and a stream of bulk data spends its time on single ACKs
/// (docs/performance.md); more, and others wait.
const MAX_DRAIN_BYTES: usize = 448 * 1024;
/// How soon to try again when the kernel is out of buffers, or a neighbour is being asked for.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// Empty turns, of a few hundred nanoseconds, between two looks at the clock.
const UNCLOCKED_TURNS: u32 = 8;

/// What a turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Something was received, sent or timed out.
    pub(crate) progress: bool,
    /// There may be more at once.
    pub(crate) more: bool,
    /// Datagrams that it received.
    pub(crate) received: usize,
}

/// A device and its sockets.
#[derive(Debug)]
pub(crate) struct DatagramEngine {
    /// `None` once the host is closed.
    pub(crate) device: Option<Device>,
    pub(super) wire: Wire,
    /// `None` where the kernel does not tell; the port counts as active then.
    link: Option<Link>,
    pub(crate) epoll: Arc<OwnedFd>,
    /// Transmits whose buffers are reused; `out[sent..filled]` wait to be sent.
    out: Vec<Transmit>,
    sent: usize,
    filled: usize,
    paths: Vec<PathEvent>,
    /// In the order they were given.
    commands: VecDeque<Command>,
    /// When the device or the port wants a turn.
    deadline: Option<Instant>,
    /// Sends did not go out: the time to try again.
    retry_at: Option<Instant>,
    /// Whether the last turn left the device with more to send.
    more_to_send: bool,
    /// Whether the last turn has left something unread: of a batch that was nobody's the device does not tell.
    unread: bool,
    /// The source port whose socket is watched for room in its send buffer.
    blocked_on: Option<u16>,
    /// Whether the port takes trains.
    trains: bool,
    /// Empty turns since the clock was looked at.
    unclocked: u32,
    /// Datagrams received in this turn.
    received: usize,
    /// When a narrow path was last warned of.
    narrow: NarrowPaths,
    /// Turns of polling programs in a row that found nothing.
    pub(crate) empty_turns: u64,
}

impl DatagramEngine {
    /// The epoll descriptor watches all sockets, level-triggered.
    pub(crate) fn new(device: Device, wire: Wire, link: Option<Link>) -> io::Result<DatagramEngine> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut result = Ok(());
        wire.for_each_fd(|fd| {
            if let Err(error) = watch(epoll.as_fd(), fd, SOCKET) {
                result = Err(error);
            }
        });
        result?;
        if let Some(link) = &link {
            watch(epoll.as_fd(), link.fd(), LINK)?;
            tell_port_state(&device, link);
        }
        let (trains, local) = (wire.takes_trains(), wire.local);
        Ok(DatagramEngine {
            device: Some(device),
            wire,
            link,
            epoll: Arc::new(epoll),
            out: Vec::new(),
            sent: 0,
            filled: 0,
            paths: Vec::new(),
            commands: VecDeque::new(),
            deadline: None,
            retry_at: None,
            more_to_send: false,
            unread: false,
            blocked_on: None,
            trains,
            unclocked: 0,
            received: 0,
            narrow: NarrowPaths { local, warned: Rarely::default() },
            empty_turns: 0,
        })
    }

    /// Readable when a socket has something.
    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// When the next turn is due though nothing arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match (self.deadline, self.retry_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(crate) fn counters(&self) -> PortCounters {
        self.wire.counters()
    }

    /// One turn: what the program has queued goes out first, then a batch comes in, then what that made goes out.
    ///
    /// `comes_again`: the caller is a program that polls, and nobody sleeps, or a task among others. Then what a batch makes
    /// may go out with the next turn, together with what the program is about to answer.
    pub(crate) fn turn(&mut self, queued: bool, comes_again: bool) -> Turn {
        let Some(device) = self.device.take() else { return Turn::default() };
        let mut progress = false;
        self.received = 0;
        if queued || self.more_to_send || self.sent < self.filled {
            progress |= self.exchange(&device, false, false);
        }
        progress |= self.exchange(&device, true, comes_again);
        self.device = Some(device);
        let more = self.unread || self.more_to_send && self.sent == self.filled;
        Turn { progress, more: progress || more || !self.paths.is_empty(), received: self.received }
    }

    /// Feeds the device (with a received batch if `receive`) and sends what it gives; whether anything happened.
    ///
    /// The time is taken once, after the batch is there. It never runs backwards, since the engine's lock is held.
    fn exchange(&mut self, device: &Device, receive: bool, feed_only: bool) -> bool {
        let mut lost = 0;
        let mut fed: Option<(Drive<'_>, Instant)> = None;
        let count = &mut self.received;
        if receive {
            let more = self.wire.receive(&mut lost, &mut self.paths, |received| {
                let (drive, now) = fed.get_or_insert_with(|| (device.drive(), Instant::now()));
                *count += feed(drive, *now, received);
            });
            // A task sleeps on edges: what is left now it would not be woken for.
            self.unread = more;
            let malformed = self.wire.take_malformed();
            if malformed > 0 {
                let (drive, _) = fed.get_or_insert_with(|| (device.drive(), Instant::now()));
                drive.malformed(malformed);
            }
            if fed.is_none() && self.nothing_to_do() {
                return false;
            }
        }
        let received = fed.is_some();
        let now = fed.as_ref().map_or_else(Instant::now, |(_, now)| *now);
        let due = self.deadline().is_some_and(|deadline| deadline <= now);
        if due && self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.wire.housekeeping(now, &mut self.paths);
        }
        let idle = receive && !received && !due && self.paths.is_empty() && lost == 0;
        if idle && !self.more_to_send && self.sent == self.filled {
            return false;
        }
        let (mut drive, now) = fed.unwrap_or_else(|| (device.drive(), Instant::now()));
        if lost > 0 {
            drive.dropped(lost);
        }
        for event in self.paths.drain(..) {
            path_event(&mut drive, now, &event, &mut self.narrow);
        }
        if due {
            drive.handle_timeout(now);
        }
        if feed_only && received {
            self.more_to_send = true;
            return true;
        }
        let mut sent = false;
        if self.fill_lone(&mut drive, now) {
            drop(drive);
            sent = self.flush(now);
            drive = device.drive();
        }
        self.drain(&mut drive, now);
        drop(drive);
        sent |= self.flush(now);
        self.obey(device);
        received || due || sent
    }

    /// Fills the first transmit; true if it is a single packet. That leaves at once: whatever else there is, its
    /// acknowledgement mostly, is made while it travels.
    fn fill_lone(&mut self, drive: &mut Drive<'_>, now: Instant) -> bool {
        if self.sent < self.filled {
            return false;
        }
        (self.sent, self.filled) = (0, 0);
        self.fill_next(drive, now) && self.out[0].segment.is_none()
    }

    /// Fills one more transmit, if the device has one.
    #[inline]
    fn fill_next(&mut self, drive: &mut Drive<'_>, now: Instant) -> bool {
        if self.filled == self.out.len() {
            self.out.push(if self.trains { Transmit::default() } else { Transmit::new(1) });
        }
        let filled = drive.poll_transmit(now, &mut self.out[self.filled]);
        self.filled += usize::from(filled);
        filled
    }

    /// Whether a turn that received nothing can end at once. The clock is looked at in every eighth of them only: asking
    /// it takes as long as the rest.
    fn nothing_to_do(&mut self) -> bool {
        if self.more_to_send || self.sent < self.filled || !self.paths.is_empty() {
            return false;
        }
        self.unclocked = (self.unclocked + 1) % UNCLOCKED_TURNS;
        self.unclocked != 0 || self.deadline().is_none()
    }

    /// Fills transmits until there are no more, or enough for one send.
    fn drain(&mut self, drive: &mut Drive<'_>, now: Instant) {
        // What a send has left over goes first; what the device has besides is not known yet.
        self.more_to_send = self.sent > 0 && self.sent < self.filled;
        if !self.more_to_send {
            if self.sent == self.filled {
                (self.sent, self.filled) = (0, 0);
            }
            let mut bytes: usize = self.out[..self.filled].iter().map(|out| out.buf.len()).sum();
            loop {
                if self.filled >= MAX_DRAIN || bytes >= MAX_DRAIN_BYTES {
                    self.more_to_send = true;
                    break;
                }
                if !self.fill_next(drive, now) {
                    break;
                }
                bytes += self.out[self.filled - 1].buf.len();
            }
        }
        while let Some(command) = drive.poll_command() {
            self.commands.push_back(command);
        }
        self.deadline = drive.poll_timeout();
    }

    /// Sends what waits; whether anything left.
    fn flush(&mut self, now: Instant) -> bool {
        if self.sent == self.filled {
            return false;
        }
        let done = self.wire.send(now, &self.out[self.sent..self.filled], &mut self.paths);
        self.sent += done;
        let blocked = (self.sent < self.filled).then(|| self.out[self.sent].src_port);
        if blocked.is_some() || self.wire.is_waiting() {
            self.retry_at = Some(now + RETRY_AFTER);
        }
        if blocked != self.blocked_on {
            self.watch_for_room(blocked);
        }
        done > 0
    }

    /// Has epoll tell when the socket of a source port has room again, and no other socket.
    #[cold]
    fn watch_for_room(&mut self, blocked: Option<u16>) {
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT;
        for (port, events) in [(self.blocked_on, epoll::EventFlags::IN), (blocked, both)] {
            if let Some(fd) = port.and_then(|port| self.wire.sender(port)) {
                let _ = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(SOCKET), events);
            }
        }
        self.blocked_on = blocked;
    }

    /// Carries commands out; answers may make more.
    fn obey(&mut self, device: &Device) {
        while let Some(command) = self.commands.pop_front() {
            match command {
                Command::ResolveRoute { token, dst, scope_id, src } => {
                    let src = src.unwrap_or(self.wire.local);
                    let scope_now = self.link.as_ref().map_or(scope_id, |link| link.scope(scope_id));
                    let mut answer = resolve_for(device, dst, src, scope_now);
                    if let Ok(route) = &mut answer
                        && route.scope_id == scope_now
                    {
                        route.scope_id = scope_id;
                    }
                    let mut drive = device.drive();
                    let now = Instant::now();
                    drive.resolved(now, token, answer);
                    self.drain(&mut drive, now);
                    drop(drive);
                    self.flush(now);
                }
                Command::JoinGroup { group, gid_type, .. } => match self.wire.join(group, gid_type) {
                    Ok(()) => self.watch_all(),
                    Err(error) => {
                        tracing::warn!(%group, %error, "cannot join the multicast group");
                        device.drive().join_failed(Instant::now(), group);
                    }
                },
                Command::LeaveGroup { group, gid_type, .. } => self.wire.leave(group, gid_type),
                // Streams are another engine's; a device of datagrams asks for none.
                _ => {}
            }
        }
    }

    /// Watches sockets that are new; one that is watched already is left as it is.
    fn watch_all(&self) {
        self.wire.for_each_fd(|fd| {
            let _ = watch(self.epoll.as_fd(), fd, SOCKET);
        });
    }

    /// Nothing else to do: the moment for what can wait. True if that made work: no sleeping then.
    pub(crate) fn going_idle(&mut self) -> bool {
        self.wire.flush_capture();
        self.unclocked = UNCLOCKED_TURNS - 1; // the next turn may follow a long sleep
        // A socket that only sends shows nothing but the errors that came back.
        let mut events = [NO_EVENT; 8];
        let now = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
        let count = epoll::wait(&self.epoll, &mut events[..], now).unwrap_or(0);
        if events[..count].iter().any(|event| { event.flags }.contains(epoll::EventFlags::ERR)) {
            self.wire.housekeeping(Instant::now(), &mut self.paths);
        }
        if events[..count].iter().any(|event| { event.data }.u64() == LINK)
            && let (Some(link), Some(device)) = (&mut self.link, &self.device)
            && link.has_changed()
        {
            self.wire.follow(link.find().as_ref());
            tell_port_state(device, link);
            self.watch_all();
        }
        !self.paths.is_empty()
    }
}

/// What epoll tells of: sockets, and the interface's news.
const SOCKET: u64 = 0;
const LINK: u64 = 1;

/// An event to be overwritten.
const NO_EVENT: epoll::Event =
    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };

/// Hands over the datagrams of a piece; their number.
#[inline]
fn feed(drive: &mut Drive<'_>, now: Instant, received: &Received<'_>) -> usize {
    if received.roce_v1 {
        drive.handle_frame(now, Frame::RoceV1(received.bytes));
        return 1;
    }
    let dst = received.dst;
    let mut count = 0;
    for (index, bytes) in received.segments().enumerate() {
        let ip_id = received.ip_id.map(|first| first.wrapping_add(index as u16));
        let datagram =
            Datagram { src: received.src, dst, tos: received.tos, ttl: received.ttl, ip_id, bytes };
        drive.handle_datagram(now, datagram);
        count = index + 1;
    }
    count
}

/// Level-triggered: whoever wakes first takes what is there, and what is left wakes the next.
fn watch(epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>, what: u64) -> io::Result<()> {
    match epoll::add(epoll, fd, epoll::EventData::new_u64(what), epoll::EventFlags::IN) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
