//! How a program attaches to a port: it says which one it wants to be, and waits for the fabric's word.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::channel::Channel;
use super::message::{Message, VERSION, Welcome};
use super::port::FabricPort;
use crate::driver::timespec;
use crate::fabric_host::place;

/// How long a fabric may take to answer a hello.
const PATIENCE: Duration = Duration::from_secs(5);

impl FabricPort {
    /// Attaches to `HOST/PORT` of a fabric, which may be just starting.
    ///
    /// # Errors
    /// No such fabric; who has the port; `InvalidInput` where there is no such port.
    pub(crate) fn attach(fabric: &str, port: &str) -> io::Result<(FabricPort, Welcome)> {
        let fd = place::reach(fabric, || connect(fabric))?;
        let mut greeting = Greeting::new(fd, fabric, port)?;
        loop {
            let now = Instant::now();
            if let Some(welcomed) = greeting.poll(now)? {
                return Ok(welcomed);
            }
            let left = greeting.until.saturating_duration_since(now);
            let fds = greeting.fd().into_iter();
            let mut polled: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            poll(&mut polled, Some(&timespec(left)))?;
        }
    }
}

/// A socket to the door of a fabric.
fn connect(fabric: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(place::attach_socket(fabric))?)?;
    Ok(fd)
}

/// A program that has said which port it wants to be, and waits for the answer.
#[derive(Debug)]
pub(crate) struct Greeting {
    /// Until it is the port's.
    channel: Option<Channel>,
    fabric: String,
    until: Instant,
}

impl Greeting {
    /// Says hello at the door of a fabric, without waiting for anything.
    ///
    /// # Errors
    /// No fabric of that name has its door open.
    pub(crate) fn begin(fabric: &str, port: &str) -> io::Result<Greeting> {
        Greeting::new(connect(fabric)?, fabric, port)
    }

    fn new(fd: OwnedFd, fabric: &str, port: &str) -> io::Result<Greeting> {
        let mut channel = Channel::new(fd);
        channel.send(&Message::Hello { version: VERSION, port }.bytes())?;
        Ok(Greeting { channel: Some(channel), fabric: fabric.to_owned(), until: Instant::now() + PATIENCE })
    }

    /// When the fabric has taken too long.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// What tells of the answer.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(Channel::as_fd)
    }

    /// The port, once the fabric has answered.
    ///
    /// # Errors
    /// It refuses, is of another release, ends, or takes too long.
    pub(crate) fn poll(&mut self, now: Instant) -> io::Result<Option<(FabricPort, Welcome)>> {
        let fabric = &self.fabric;
        let Some(channel) = &mut self.channel else { return Ok(None) };
        let count = channel.receive().map_err(|e| place::not_running(fabric, &e))?;
        if count == 0 && now < self.until {
            return Ok(None);
        }
        if count == 0 {
            let text = format!("fabric {fabric} has not answered within {PATIENCE:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        let refused =
            |text: &str| io::Error::new(io::ErrorKind::ConnectionRefused, format!("fabric {fabric}: {text}"));
        let welcome = match Message::parse(channel.message(0)) {
            Some(Message::Welcome(welcome)) if welcome.version == VERSION => *welcome,
            Some(Message::Refused(text)) => return Err(refused(text)),
            Some(Message::NoSuchPort(text)) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("fabric {fabric}: {text}")));
            }
            _ => {
                return Err(refused(
                    "it speaks another version of the attach protocol; both must be of one release",
                ));
            }
        };
        let Some(channel) = self.channel.take() else { return Ok(None) };
        let mut port = FabricPort::new(channel);
        // More may have come with the welcome.
        for index in 1..count {
            port.take(index, &mut |_| {});
        }
        Ok(Some((port, welcome)))
    }
}
