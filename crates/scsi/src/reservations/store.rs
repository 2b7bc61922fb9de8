//! What APTPL keeps: registrations and the reservation, through power loss. SPC-4 §5.13.5.
//!
//! The record is text, one line a fact, closed by a line that counts them, so that a torn file is known as one. A file is
//! replaced by rename after it and its folder reached the disk: a crash leaves the old record or the new one.
//! PRGENERATION is not kept; power on sets it to 0 (§5.13.6).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::{Held, MAX_REGISTRATIONS, NexusName, Registration, ReservationType, Reservations};
use crate::lock;
use crate::transport_id::TransportId;

const HEAD: &str = "everywire reservations 1";

/// Where one logical unit's record is kept.
pub trait ReservationStore: Send + Sync {
    /// The record, if there is one.
    ///
    /// # Errors
    /// It is there and cannot be read.
    fn load(&self) -> io::Result<Option<String>>;
    /// Replaces the record, or removes it. When this returns, the new state survives power loss.
    ///
    /// # Errors
    /// It could not be made durable; the old record may stay.
    fn save(&self, record: Option<&str>) -> io::Result<()>;
}

/// A record in a file.
pub struct FileStore {
    path: PathBuf,
}

impl FileStore {
    /// Keeps the record at `path`, whose folder exists.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }
}

impl ReservationStore for FileStore {
    fn load(&self) -> io::Result<Option<String>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn save(&self, record: Option<&str>) -> io::Result<()> {
        match record {
            Some(record) => {
                let mut name = self.path.clone().into_os_string();
                name.push(".new");
                let new = PathBuf::from(name);
                let mut file = File::create(&new)?;
                file.write_all(record.as_bytes())?;
                file.sync_all()?;
                fs::rename(&new, &self.path)?;
            }
            None => match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
        }
        File::open(self.folder())?.sync_all()
    }
}

/// A record in memory, which lives as long as the store: for simulations, where the store outlives the device.
#[derive(Default)]
pub struct MemoryStore(Mutex<Option<String>>);

impl ReservationStore for MemoryStore {
    fn load(&self) -> io::Result<Option<String>> {
        Ok(lock(&self.0).clone())
    }

    fn save(&self, record: Option<&str>) -> io::Result<()> {
        *lock(&self.0) = record.map(str::to_owned);
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()).collect()
}

fn name_text(name: &NexusName) -> String {
    format!("{} {}", name.port, hex(name.initiator.as_bytes()))
}

fn parse_name(port: &str, initiator: &str) -> Option<NexusName> {
    let bytes = unhex(initiator)?;
    let (initiator, len) = TransportId::parse(&bytes)?;
    (len == bytes.len()).then_some(())?;
    Some(NexusName { initiator, port: port.parse().ok()? })
}

impl Reservations {
    /// The record to keep: none unless APTPL asked for it.
    pub(crate) fn record(&self) -> Option<String> {
        if !self.aptpl || self.registrations.is_empty() {
            return None;
        }
        let mut lines = vec![HEAD.to_owned()];
        for registration in &self.registrations {
            lines.push(format!("key {:016x} {}", registration.key, name_text(&registration.nexus)));
        }
        if let Some(held) = &self.held {
            lines.push(format!("reserved {} {}", held.kind.code(), name_text(&held.holder)));
        }
        lines.push(format!("end {}\n", lines.len()));
        Some(lines.join("\n"))
    }

    /// Reads a record; `None` if it is not one, or not whole.
    pub(crate) fn from_record(record: &str) -> Option<Self> {
        let mut state = Self { aptpl: true, ..Self::default() };
        let mut lines = record.lines();
        if lines.next()? != HEAD {
            return None;
        }
        let mut ended = false;
        // The record's head is line 0; each line knows how many came before it.
        for (count, line) in (1usize..).zip(lines) {
            if ended {
                return None;
            }
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["key", key, port, initiator] if state.registrations.len() < MAX_REGISTRATIONS => {
                    let nexus = parse_name(port, initiator)?;
                    let key = u64::from_str_radix(key, 16).ok()?;
                    state.registrations.push(Registration { nexus, key });
                }
                ["reserved", kind, port, initiator] => {
                    let kind = ReservationType::from_code(kind.parse().ok()?)?;
                    state.held = Some(Held { kind, holder: parse_name(port, initiator)? });
                }
                ["end", lines] => ended = lines.parse() == Ok(count),
                _ => return None,
            }
        }
        let held = state.held.as_ref();
        let holder_known =
            held.is_none_or(|held| state.registration(&held.holder).is_some() || held.kind.all_registrants());
        (ended && holder_known).then_some(state)
    }
}
