//! Asking and telling a running fabric: a line to its control socket, an answer until the end.
//!
//! Requests are `show`, `link down NODE/PORT` and `link up NODE/PORT`; an answer begins with a line `ok`, or `error` and the
//! reason. The socket is in a folder of the user's own, so nobody else can ask; see `place.rs`.

mod server;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::place;
use super::snapshot::Snapshot;
pub(super) use server::Server;

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
    let mut stream = place::reach(fabric, || UnixStream::connect(place::control_socket(fabric)))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{request}\n").as_bytes()).map_err(failed)?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer).map_err(failed)?;
    match answer.split_once('\n') {
        Some(("ok", rest)) => Ok(rest.to_owned()),
        Some((error, _)) if error.starts_with("error ") => {
            Err(io::Error::other(error["error ".len()..].to_owned()))
        }
        _ => Err(io::Error::other(format!("fabric {fabric} gave no answer to {request:?}"))),
    }
}
