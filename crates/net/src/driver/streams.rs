//! The engine of iWARP devices: one turn sends what the device has, reads a batch of TCP sockets, feeds it, and sends again.
//!
//! Read first: the contract of streams in `everywire_verbs::stream`, and `engine.rs` for what holds of all engines: one
//! driver at a time, the device's lock never held during a system call. Commands are carried out once the device has nothing
//! to send, so that what a connection had to say is ahead of its end.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use everywire_verbs::{Command, ConnEvent, ConnId, Device, Drive, StreamBurst, StreamListenerId};

use super::engine::Turn;
use super::paths::{resolve, tell_port_state};
use crate::link::Link;
use crate::rarely::Rarely;
use crate::tcp::{Arrival, Listening, StreamCapture, TcpPort};

/// Bursts sent in one turn before sockets are read.
const MAX_BURSTS: usize = 64;
/// Commands and what they make, in one turn, before sockets are read.
const MAX_ROUNDS: usize = 8;

/// A device and its TCP sockets.
#[derive(Debug)]
pub(crate) struct StreamEngine {
    /// `None` once the host is closed.
    pub(crate) device: Option<Device>,
    port: TcpPort,
    link: Option<Link>,
    local: IpAddr,
    capture: Option<StreamCapture>,
    burst: StreamBurst,
    commands: VecDeque<Command>,
    deadline: Option<Instant>,
    /// Whether the last turn left the device with more to send.
    more: bool,
    /// Connections to listeners that do not speak MPA.
    strangers: Rarely,
    /// Turns of polling programs in a row that found nothing.
    pub(crate) empty_turns: u64,
}

impl StreamEngine {
    pub(crate) fn new(
        device: Device,
        local: IpAddr,
        listening: Arc<Listening>,
        link: Option<Link>,
        capture: Option<StreamCapture>,
    ) -> io::Result<StreamEngine> {
        let port = TcpPort::new(listening)?;
        if let Some(link) = &link {
            port.watch_link(link.fd())?;
            tell_port_state(&device, link);
        }
        Ok(StreamEngine {
            device: Some(device),
            port,
            link,
            local,
            capture,
            burst: StreamBurst::default(),
            commands: VecDeque::new(),
            deadline: None,
            more: false,
            strangers: Rarely::default(),
            empty_turns: 0,
        })
    }

    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.port.epoll()
    }

    /// When the next turn is due though nothing arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.port.deadline()).min()
    }

    /// One turn: what the program has queued goes out first, then a batch comes in, then what that made goes out.
    pub(crate) fn turn(&mut self, queued: bool) -> Turn {
        let Some(device) = self.device.take() else { return Turn::default() };
        let mut progress = (queued || self.more) && self.pump(&device);
        let mut feed = Feed { device: &device, capture: self.capture.as_mut(), pieces: 0 };
        let came = self.port.receive(&mut feed);
        let received = feed.pieces;
        let due = self.deadline().is_some_and(|at| at <= Instant::now());
        if due {
            let mut drive = device.drive();
            let now = Instant::now();
            drive.handle_timeout(now);
            drop(drive);
            self.port.housekeeping(now);
        }
        if std::mem::take(&mut self.port.link_changed)
            && let Some(link) = &mut self.link
            && link.has_changed()
        {
            link.find();
            tell_port_state(&device, link);
        }
        if came || due {
            progress = true;
            self.pump(&device);
        }
        self.device = Some(device);
        Turn { progress, more: progress || self.more, received }
    }

    /// Sends what the device has, and carries out its commands; whether there was anything.
    fn pump(&mut self, device: &Device) -> bool {
        let mut did = false;
        for _ in 0..MAX_ROUNDS {
            did |= self.send(device);
            if self.more || self.commands.is_empty() {
                break;
            }
            did = true;
            while let Some(command) = self.commands.pop_front() {
                self.obey(device, command);
            }
            // Answers may have made more.
            self.more = true;
        }
        did
    }

    /// Sends bursts until there are none, or enough for one turn; then takes the commands.
    fn send(&mut self, device: &Device) -> bool {
        let mut drive = device.drive();
        let mut now = Instant::now();
        for sent in 0..MAX_BURSTS {
            if !drive.poll_stream(now, &mut self.burst) {
                self.more = false;
                while let Some(command) = drive.poll_command() {
                    self.commands.push_back(command);
                }
                self.deadline = drive.poll_timeout();
                return sent > 0;
            }
            drop(drive);
            let conn = self.burst.conn();
            if let Some(capture) = &mut self.capture {
                capture.sent(conn, &self.burst);
            }
            let event = match self.port.write(conn, &mut self.burst) {
                Ok(written) => ConnEvent::Written(written),
                Err(error) => ConnEvent::Reset(error),
            };
            if let Some(capture) = &mut self.capture {
                capture.event(conn, &event);
            }
            drive = device.drive();
            now = Instant::now();
            if event != ConnEvent::Written(0) {
                drive.stream_event(now, conn, event);
            }
        }
        self.more = true;
        self.deadline = drive.poll_timeout();
        true
    }

    fn obey(&mut self, device: &Device, command: Command) {
        match command {
            Command::ResolveRoute { token, dst, scope_id, src } => {
                let answer = resolve(dst, src.unwrap_or(self.local), scope_id);
                let mut drive = device.drive();
                drive.resolved(Instant::now(), token, answer);
            }
            Command::StreamListen { listener, addr, .. } => {
                if let Err(error) = self.port.listening().begin(addr, listener) {
                    tracing::warn!(%addr, %error, "the device does not listen");
                }
                self.port.look_at_all();
            }
            Command::StreamUnlisten { listener } => self.port.listening().end(listener),
            Command::StreamConnect { conn, src, dst, traffic_class } => {
                if let Some(capture) = &mut self.capture {
                    capture.dialled(conn, dst);
                }
                if let Err(error) = self.port.dial(conn, src, dst, traffic_class) {
                    if let Some(capture) = &mut self.capture {
                        capture.event(conn, &ConnEvent::Failed(error));
                    }
                    let mut drive = device.drive();
                    drive.stream_event(Instant::now(), conn, ConnEvent::Failed(error));
                }
                self.port.look_at_all();
            }
            Command::StreamClose { conn } => {
                self.port.close(conn);
                if let Some(capture) = &mut self.capture {
                    capture.closed(conn);
                }
            }
            Command::StreamReset { conn } => {
                self.port.reset(conn);
                if let Some(capture) = &mut self.capture {
                    capture.reset(conn);
                }
            }
            Command::StreamStranger { local, peer, why } => {
                if let Some(count) = self.strangers.note(Instant::now(), 1) {
                    tracing::warn!(%local, %peer, count, "a connection that is not iWARP's: {why}");
                }
            }
            // Groups are refused at the call, and there is nobody to join one for.
            _ => {}
        }
    }

    /// Nothing else to do: the moment for what can wait. True if that made work.
    pub(crate) fn going_idle(&mut self) -> bool {
        if let Some(capture) = &mut self.capture {
            capture.flush();
        }
        self.port.look_at_all();
        false
    }

    /// Ends it: connections that are still open are closed by the kernel.
    pub(crate) fn shut_down(&mut self) {
        self.device = None;
        self.port.shut_down();
    }
}

/// Hands to the device what the sockets have, each time under a guard of its own: it is not held while sockets are read.
struct Feed<'a> {
    device: &'a Device,
    capture: Option<&'a mut StreamCapture>,
    pieces: usize,
}

impl Feed<'_> {
    fn drive(&mut self) -> (Drive<'_>, Instant) {
        self.pieces += 1;
        let drive = self.device.drive();
        (drive, Instant::now())
    }
}

impl Arrival for Feed<'_> {
    fn accepted(
        &mut self,
        listener: StreamListenerId,
        local: SocketAddr,
        peer: SocketAddr,
        mss: usize,
    ) -> Option<ConnId> {
        let (mut drive, now) = self.drive();
        let conn = drive.accepted(now, listener, local, peer, mss);
        drop(drive);
        if let (Some(capture), Some(conn)) = (&mut self.capture, conn) {
            capture.opened(conn, local, peer, mss, false);
        }
        conn
    }

    fn bytes(&mut self, conn: ConnId, bytes: &[u8]) {
        if let Some(capture) = &mut self.capture {
            capture.received(conn, bytes);
        }
        let (mut drive, now) = self.drive();
        drive.handle_stream(now, conn, bytes);
    }

    fn event(&mut self, conn: ConnId, event: ConnEvent) {
        if let Some(capture) = &mut self.capture {
            capture.event(conn, &event);
        }
        let (mut drive, now) = self.drive();
        drive.stream_event(now, conn, event);
    }
}
