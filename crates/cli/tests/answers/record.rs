//! A TCP proxy that writes down the SCSI commands of iSCSI sessions and what they were answered. RFC 7143 §11.
//!
//! It reads PDUs by their lengths only, with no digest agreed on, and parses on its own: nothing here is the product's.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const HEADER: usize = 48;

/// Lengths that differ, as the target counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residual {
    None,
    Under(u32),
    Over(u32),
}

/// What a command was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u8,
    pub sense: Vec<u8>,
    pub residual: Residual,
    pub data: Vec<u8>,
}

/// A command, and its answer if one came.
#[derive(Debug, Clone)]
pub struct Command {
    pub lun: u64,
    pub cdb: [u8; 16],
    /// What the initiator gave to be read or to be filled; the expected data transfer length.
    pub out: Option<Vec<u8>>,
    pub want: u32,
    pub answer: Option<Answer>,
}

/// What a session did.
#[derive(Debug, Clone)]
pub enum Act {
    Login { name: String },
    Command(Command),
    Manage { function: u8, lun: u64 },
    End,
}

/// An act of a session.
#[derive(Debug, Clone)]
pub struct Step {
    pub session: usize,
    pub act: Act,
}

/// Everything so far.
#[derive(Default)]
struct Log {
    steps: Vec<Step>,
    sessions: usize,
    /// Where in `steps` the command with this tag stands.
    open: HashMap<(usize, [u8; 4]), usize>,
    /// Data that came for it.
    data: HashMap<(usize, [u8; 4]), Vec<u8>>,
}

/// A proxy in front of a portal.
pub struct Recorder(Arc<Mutex<Log>>);

impl Recorder {
    /// Listens at `at` for sessions with `portal`; both ADDRESS:PORT.
    pub fn start(at: &str, portal: &str) -> Recorder {
        let listener = TcpListener::bind(at).expect("a free port");
        let log: Arc<Mutex<Log>> = Arc::default();
        let (recorder, portal) = (Recorder(log.clone()), portal.to_owned());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&portal)) else { continue };
                let session = {
                    let mut log = log.lock().expect("whole");
                    log.sessions += 1;
                    log.sessions
                };
                for (from, to, asks) in [(&client, &server, true), (&server, &client, false)] {
                    let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                    let log = log.clone();
                    std::thread::spawn(move || pump(from, to, session, asks, &log));
                }
            }
        });
        recorder
    }

    /// What was seen.
    pub fn steps(&self) -> Vec<Step> {
        self.0.lock().expect("whole").steps.clone()
    }
}

/// Hands PDUs on, each written down before.
fn pump(mut from: TcpStream, mut to: TcpStream, session: usize, asks: bool, log: &Mutex<Log>) {
    while let Ok(pdu) = pdu(&mut from) {
        log.lock().expect("whole").note(session, asks, &pdu);
        if to.write_all(&pdu.0).is_err() {
            break;
        }
    }
    if asks {
        log.lock().expect("whole").steps.push(Step { session, act: Act::End });
    }
    // Either may have closed already.
    let _ = to.shutdown(Shutdown::Both);
}

/// A PDU as it came, and where its data lie.
struct Pdu(Vec<u8>, std::ops::Range<usize>);

fn pdu(from: &mut TcpStream) -> std::io::Result<Pdu> {
    let mut bytes = vec![0; HEADER];
    from.read_exact(&mut bytes)?;
    let begin = HEADER + 4 * usize::from(bytes[4]);
    let len = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]) as usize;
    bytes.resize(begin + len.next_multiple_of(4), 0);
    from.read_exact(&mut bytes[HEADER..])?;
    Ok(Pdu(bytes, begin..begin + len))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// RFC 7143 §11.4.5.1: residual overflow and underflow.
fn residual(header: &[u8]) -> Residual {
    match header[1] & 6 {
        2 => Residual::Under(be32(header, 44)),
        4 => Residual::Over(be32(header, 44)),
        _ => Residual::None,
    }
}

impl Log {
    fn note(&mut self, session: usize, asks: bool, pdu: &Pdu) {
        let (header, data) = (&pdu.0[..HEADER], &pdu.0[pdu.1.clone()]);
        let tag = (session, header[16..20].try_into().expect("four bytes"));
        let lun = u64::from_be_bytes(header[8..16].try_into().expect("eight bytes"));
        match (asks, header[0] & 0x3f) {
            // Login request.
            (true, 0x03) => {
                let text = String::from_utf8_lossy(data).into_owned();
                let name = text.split('\0').find_map(|pair| pair.strip_prefix("InitiatorName="));
                if let Some(name) = name {
                    self.steps.push(Step { session, act: Act::Login { name: name.to_owned() } });
                }
            }
            // SCSI command.
            (true, 0x01) => {
                let cdb = header[32..48].try_into().expect("sixteen bytes");
                let want = be32(header, 20);
                let out = (header[1] & 0x20 != 0).then(|| {
                    let mut out = data.to_vec();
                    out.resize(want as usize, 0);
                    out
                });
                let command = Command { lun, cdb, out, want, answer: None };
                self.open.insert(tag, self.steps.len());
                self.data.insert(tag, Vec::new());
                self.steps.push(Step { session, act: Act::Command(command) });
            }
            // Task management.
            (true, 0x02) => {
                self.steps.push(Step { session, act: Act::Manage { function: header[1] & 0x7f, lun } });
            }
            // SCSI Data-Out.
            (true, 0x05) => {
                let at = be32(header, 40) as usize;
                if let Some(Command { out: Some(out), .. }) = self.command(tag) {
                    out[at..at + data.len()].copy_from_slice(data);
                }
            }
            // SCSI Data-In, with the status if S is set.
            (false, 0x25) => {
                let at = be32(header, 40) as usize;
                let came = self.data.entry(tag).or_default();
                came.resize(came.len().max(at + data.len()), 0);
                came[at..at + data.len()].copy_from_slice(data);
                if header[1] & 1 != 0 {
                    self.answered(tag, header, &[]);
                }
            }
            // SCSI Response: SenseLength and sense data.
            (false, 0x21) => self.answered(tag, header, data.get(2..).unwrap_or_default()),
            _ => {}
        }
    }

    fn command(&mut self, tag: (usize, [u8; 4])) -> Option<&mut Command> {
        match &mut self.steps[*self.open.get(&tag)?].act {
            Act::Command(command) => Some(command),
            _ => None,
        }
    }

    fn answered(&mut self, tag: (usize, [u8; 4]), header: &[u8], sense: &[u8]) {
        let data = self.data.remove(&tag).unwrap_or_default();
        let sense = sense.to_vec();
        let answer = Answer { status: header[3], sense, residual: residual(header), data };
        if let Some(command) = self.command(tag) {
            command.answer = Some(answer);
        }
        self.open.remove(&tag);
    }
}
