//! Asking and telling a running fabric: a line to its control socket, an answer until the end.
//!
//! Requests are `show`, `link down NODE/PORT` and `link up NODE/PORT`; an answer begins with a line `ok`, or `error` and the
//! reason. The socket is in a folder of the user's own, so nobody else can ask; see `place.rs`.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use super::place;
use super::snapshot::Snapshot;

/// Longest request.
const MAX_REQUEST: usize = 256;
/// Most connections at a time.
const MAX_CONNECTIONS: usize = 16;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of an answer.
const MAX_ANSWER: u64 = 256 << 20;

/// What a fabric is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// What do you look like?
    Show,
    /// Pull, or put back, the cable at this port.
    Link {
        /// Put it back.
        up: bool,
        /// `NODE/PORT`.
        port: String,
    },
}

impl Request {
    /// Reads a line.
    ///
    /// # Errors
    /// What requests there are.
    pub fn parse(line: &str) -> Result<Request, String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["show"] => Ok(Request::Show),
            ["link", "up", port] => Ok(Request::Link { up: true, port: port.to_owned() }),
            ["link", "down", port] => Ok(Request::Link { up: false, port: port.to_owned() }),
            _ => Err(format!("{line:?} is no request: show, link up NODE/PORT, link down NODE/PORT")),
        }
    }
}

/// Asks a fabric for its picture.
///
/// # Errors
/// It does not run, or does not answer.
pub fn show(fabric: &str) -> io::Result<Snapshot> {
    let answer = ask(fabric, "show")?;
    serde_json::from_str(&answer).map_err(|error| io::Error::other(format!("fabric {fabric}: {error}")))
}

/// Pulls or puts back the cable at `port`.
///
/// # Errors
/// It does not run, or there is no such port or cable.
pub fn set_link(fabric: &str, port: &str, up: bool) -> io::Result<()> {
    ask(fabric, &format!("link {} {port}", if up { "up" } else { "down" })).map(drop)
}

fn ask(fabric: &str, request: &str) -> io::Result<String> {
    super::plan::check_name("fabric", fabric)
        .map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))?;
    let failed = |error: io::Error| place::not_running(fabric, &error);
    let mut stream = UnixStream::connect(place::control_socket(fabric)).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{request}\n").as_bytes()).map_err(failed)?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer).map_err(failed)?;
    match answer.split_once('\n') {
        Some(("ok", rest)) => Ok(rest.to_owned()),
        Some((error, _)) if error.starts_with("error ") => Err(io::Error::other(error["error ".len()..].to_owned())),
        _ => Err(io::Error::other(format!("fabric {fabric} gave no answer to {request:?}"))),
    }
}

/// The fabric's side.
#[derive(Debug)]
pub(crate) struct Server {
    listener: UnixListener,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    request: Vec<u8>,
    /// What is still to be written, once there is an answer.
    answer: Option<Vec<u8>>,
}

impl Server {
    /// Listens.
    pub(crate) fn open(fabric: &str) -> io::Result<Server> {
        let listener = UnixListener::bind(place::control_socket(fabric))?;
        listener.set_nonblocking(true)?;
        Ok(Server { listener, connections: Vec::new() })
    }

    /// Descriptors to be watched for reading; those of answers that do not fit their sockets for writing.
    pub(crate) fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let connections = self.connections.iter().map(|one| (one.stream.as_fd(), one.answer.is_some()));
        std::iter::once((self.listener.as_fd(), false)).chain(connections)
    }

    /// Takes what is there, answers what is asked; whether anything happened.
    pub(crate) fn turn(&mut self, mut answer: impl FnMut(Request) -> Result<String, String>) -> bool {
        let mut progress = false;
        while self.connections.len() < MAX_CONNECTIONS {
            let Ok((stream, _)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_ok() {
                self.connections.push(Connection { stream, request: Vec::new(), answer: None });
            }
            progress = true;
        }
        self.connections.retain_mut(|connection| {
            let (keep, moved) = connection.turn(&mut answer);
            progress |= moved;
            keep
        });
        progress
    }
}

impl Connection {
    /// Whether to keep it, and whether anything happened.
    fn turn(&mut self, answer: &mut impl FnMut(Request) -> Result<String, String>) -> (bool, bool) {
        let mut moved = false;
        if self.answer.is_none() {
            let mut bytes = [0; MAX_REQUEST];
            match self.stream.read(&mut bytes) {
                Ok(0) if !self.request.contains(&b'\n') => return (false, true),
                Ok(count) => {
                    self.request.extend(&bytes[..count]);
                    moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return (false, true),
            }
            if self.request.len() > MAX_REQUEST {
                return (false, true);
            }
            let Some(end) = self.request.iter().position(|byte| *byte == b'\n') else { return (true, moved) };
            let line = String::from_utf8_lossy(&self.request[..end]).into_owned();
            self.answer = Some(match Request::parse(&line).and_then(answer) {
                Ok(text) => format!("ok\n{text}").into_bytes(),
                Err(text) => format!("error {}\n", text.replace('\n', " ")).into_bytes(),
            });
        }
        while let Some(rest) = self.answer.as_mut().filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(count) => {
                    rest.drain(..count);
                    moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return (true, moved),
                Err(_) => return (false, true),
            }
        }
        (false, true)
    }
}
