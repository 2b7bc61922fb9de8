//! Asking and telling a running fabric: a line to its control socket, an answer until the end.
//!
//! Requests are `show`, `link down CABLE` and `link up CABLE`, where a cable is `NODE/PORT` of one end or `NODE/PORT - NODE/PORT`
//! of both; an answer begins with a line `ok`, or `error` and the reason. The socket is in a folder of the user's own, so nobody
//! else can ask; see `place.rs`.

mod server;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::time::Duration;

use super::place;
use super::snapshot::Snapshot;
pub(super) use server::Server;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The answer to whoever wants a cable as it is.
pub(super) const AS_IT_WAS: &str = "as it was";
/// Most bytes of an answer.
const MAX_ANSWER: u64 = 256 << 20;

/// What a fabric is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// What do you look like?
    Show,
    /// Pull, or put back, a cable.
    Link {
        /// Put it back.
        up: bool,
        /// Which.
        cable: Cable,
    },
}

/// A cable, by the port at one of its ends or by both, as pictures of a fabric name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cable {
    /// `NODE/PORT`.
    pub port: String,
    /// That of the other end, if it is said.
    pub peer: Option<String>,
}

impl FromStr for Cable {
    type Err = String;

    fn from_str(text: &str) -> Result<Cable, String> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        match words[..] {
            [port] => Ok(Cable { port: port.to_owned(), peer: None }),
            [port, "-" | "–", peer] => Ok(Cable { port: port.to_owned(), peer: Some(peer.to_owned()) }),
            _ => Err(format!(
                "{text:?} is no cable: NODE/PORT of either end, or both as `fabric show` names them, as in \"h1/1\" or \
                 \"h1/1 - s1/1\""
            )),
        }
    }
}

impl fmt::Display for Cable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.port)?;
        self.peer.as_ref().map_or(Ok(()), |peer| write!(f, " - {peer}"))
    }
}

impl Request {
    /// Reads a line.
    ///
    /// # Errors
    /// What requests there are.
    pub fn parse(line: &str) -> Result<Request, String> {
        let link = |up, cable: &str| Ok(Request::Link { up, cable: cable.parse()? });
        let line = line.trim();
        match (line, line.strip_prefix("link up "), line.strip_prefix("link down ")) {
            ("show", ..) => Ok(Request::Show),
            (_, Some(cable), _) => link(true, cable),
            (_, _, Some(cable)) => link(false, cable),
            _ => Err(format!("{line:?} is no request: show, link up CABLE, link down CABLE")),
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

/// Pulls or puts back a cable; false if that is what it was already.
///
/// # Errors
/// It does not run; `InvalidInput` where there is no such port or cable.
pub fn set_link(fabric: &str, cable: &Cable, up: bool) -> io::Result<bool> {
    let answer = ask(fabric, &format!("link {} {cable}", if up { "up" } else { "down" }))?;
    Ok(answer != AS_IT_WAS)
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
            Err(io::Error::new(io::ErrorKind::InvalidInput, error["error ".len()..].to_owned()))
        }
        _ => Err(io::Error::other(format!("fabric {fabric} gave no answer to {request:?}"))),
    }
}
