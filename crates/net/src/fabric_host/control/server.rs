//! The fabric's side of its control socket: takes lines, gives answers, never blocks.
//!
//! Whoever connects and says nothing takes one of a few places, and no time.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use super::Request;
use crate::fabric_host::place;

/// Longest request.
const MAX_REQUEST: usize = 256;
/// Most connections at a time.
const MAX_CONNECTIONS: usize = 16;

/// The fabric's side.
#[derive(Debug)]
pub(in super::super) struct Server {
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
    pub(in super::super) fn open(fabric: &str) -> io::Result<Server> {
        let listener = UnixListener::bind(place::control_socket(fabric))?;
        listener.set_nonblocking(true)?;
        Ok(Server { listener, connections: Vec::new() })
    }

    /// Descriptors to be watched for reading; those of answers that do not fit their sockets for writing.
    pub(in super::super) fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let connections = self.connections.iter().map(|one| (one.stream.as_fd(), one.answer.is_some()));
        std::iter::once((self.listener.as_fd(), false)).chain(connections)
    }

    /// Takes what is there, answers what is asked; whether anything happened.
    pub(in super::super) fn turn(
        &mut self,
        mut answer: impl FnMut(Request) -> Result<String, String>,
    ) -> bool {
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
