//! Datagrams of device management: IOUnitInfo, IOControllerProfile, ServiceEntries. IBTA vol. 1 §16.3.3.
//!
//! Attribute data begin at byte 64. A controller list has 4 bits a slot, the first in the high half of a byte.

use everywire_verbs::MAD_LEN;

use super::Agent;

/// The class.
pub(super) const CLASS: u8 = 0x06;
const BASE_VERSION: u8 = 1;
const CLASS_VERSION: u8 = 1;
const GET: u8 = 0x01;
const GET_RESPONSE: u8 = 0x81;
const DATA: usize = 64;

/// Status codes of IBTA §13.4.7 and §16.3.1.2.
const BAD_VERSION: u16 = 0x0004;
const BAD_METHOD: u16 = 0x0008;
const BAD_ATTRIBUTE: u16 = 0x000c;
const BAD_VALUE: u16 = 0x001c;
const NO_CONTROLLER: u16 = 0x0100;

/// Attributes.
pub mod attribute {
    /// ClassPortInfo.
    pub const CLASS_PORT_INFO: u16 = 0x0001;
    /// IOUnitInfo.
    pub const IO_UNIT_INFO: u16 = 0x0010;
    /// IOControllerProfile; the modifier is the slot.
    pub const CONTROLLER_PROFILE: u16 = 0x0011;
    /// ServiceEntries; the modifier is slot, last entry, first entry.
    pub const SERVICE_ENTRIES: u16 = 0x0012;
}

/// Slots that a controller list has room for.
pub const MAX_CONTROLLERS: u8 = 255;
const PRESENT: u8 = 1;
const ABSENT: u8 = 0xf;

/// What makes a controller one of SRP (SRP r16a annex B).
const IO_CLASS: u16 = 0x0100;
const IO_SUBCLASS: u16 = 0x609e;
const PROTOCOL: u16 = 0x0108;
const PROTOCOL_VERSION: u16 = 1;
/// Sends to it and from it; it READs and WRITEs.
const OPERATIONS: u8 = 0b1111;
const NAME_PREFIX: &str = "SRP.T10:";
const SERVICE_LEN: usize = 48;
const SERVICE_NAME: usize = 40;
const ID_STRING: usize = 64;

/// An answer that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("device management answers with status {0:#06x} ({text})", text = words(*.0))]
pub struct DmError(pub u16);

fn words(status: u16) -> &'static str {
    match status {
        BAD_VERSION => "unsupported version of the class",
        BAD_METHOD => "unsupported method",
        BAD_ATTRIBUTE => "unsupported attribute",
        BAD_VALUE => "invalid attribute or modifier",
        NO_CONTROLLER => "no controller in this slot",
        _ => "a status that the standard does not know",
    }
}

fn get<const N: usize>(mad: &[u8; MAD_LEN], at: usize) -> [u8; N] {
    std::array::from_fn(|i| mad[at + i])
}

fn put(mad: &mut [u8; MAD_LEN], at: usize, bytes: &[u8]) {
    mad[at..at + bytes.len()].copy_from_slice(bytes);
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A question.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    pub(super) transaction: u64,
    pub(super) attribute: u16,
    pub(super) modifier: u32,
}

impl Question {
    pub(super) fn emit(self) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        put(&mut mad, 0, &[BASE_VERSION, CLASS, CLASS_VERSION, GET]);
        put(&mut mad, 8, &self.transaction.to_be_bytes());
        put(&mut mad, 16, &self.attribute.to_be_bytes());
        put(&mut mad, 20, &self.modifier.to_be_bytes());
        mad
    }

    pub(super) fn is_answered_by(self, mad: &[u8; MAD_LEN]) -> bool {
        mad[3] == GET_RESPONSE
            && u64::from_be_bytes(get(mad, 8)) == self.transaction
            && u16::from_be_bytes(get(mad, 16)) == self.attribute
    }
}

/// Whether an answer is a good one.
pub(super) fn parse_answer(mad: &[u8; MAD_LEN]) -> Result<(), DmError> {
    match u16::from_be_bytes(get(mad, 4)) {
        0 => Ok(()),
        status => Err(DmError(status)),
    }
}

/// What an agent answers.
pub(super) fn answer_of(agent: &Agent, asked: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
    // An answer is never answered.
    if asked[1] != CLASS || asked[3] & 0x80 != 0 {
        return None;
    }
    let mut mad = *asked;
    mad[3] |= 0x80;
    mad[DATA..].fill(0);
    let status = match (asked[0], asked[2], asked[3]) {
        (BASE_VERSION, CLASS_VERSION, GET) => fill(agent, &mut mad),
        (BASE_VERSION, CLASS_VERSION, _) => BAD_METHOD,
        _ => BAD_VERSION,
    };
    put(&mut mad, 4, &status.to_be_bytes());
    Some(mad)
}

fn fill(agent: &Agent, mad: &mut [u8; MAD_LEN]) -> u16 {
    let (attribute, modifier) = (u16::from_be_bytes(get(mad, 16)), u32::from_be_bytes(get(mad, 20)));
    match (attribute, modifier) {
        (attribute::CLASS_PORT_INFO, _) => {
            put(mad, DATA, &[BASE_VERSION, CLASS_VERSION]);
            // RespTimeValue: 4.096 µs · 2^18, about a second.
            mad[DATA + 7] = 18;
        }
        (attribute::IO_UNIT_INFO, _) => {
            IoUnitInfo { change_id: agent.change_id, slots: vec![true] }.emit(mad)
        }
        (attribute::CONTROLLER_PROFILE, 1) => agent.profile.emit(mad),
        (attribute::CONTROLLER_PROFILE, 0) => return BAD_VALUE,
        (attribute::CONTROLLER_PROFILE, _) => return NO_CONTROLLER,
        (attribute::SERVICE_ENTRIES, modifier) => {
            let [_, slot, last, first] = modifier.to_be_bytes().map(usize::from);
            if slot != 1 {
                return NO_CONTROLLER;
            }
            let count = (last + 1).saturating_sub(first);
            let Some(entries) = agent.services.get(first..=last).filter(|_| (1..=4).contains(&count)) else {
                return BAD_VALUE;
            };
            entries.iter().enumerate().for_each(|(at, entry)| entry.emit(mad, at));
        }
        _ => return BAD_ATTRIBUTE,
    }
    0
}

/// IOUnitInfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoUnitInfo {
    /// Counts changes.
    pub change_id: u16,
    /// Whether there is a controller, slot by slot, from slot 1.
    pub slots: Vec<bool>,
}

impl IoUnitInfo {
    /// Of an answer.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Self {
        let nibble = |slot: usize| {
            let byte = mad[DATA + 4 + slot / 2];
            if slot.is_multiple_of(2) { byte >> 4 } else { byte & 0xf }
        };
        let count = usize::from(mad[DATA + 2]);
        Self {
            change_id: u16::from_be_bytes(get(mad, DATA)),
            slots: (0..count).map(|slot| nibble(slot) == PRESENT).collect(),
        }
    }

    /// Slots that have a controller, from 1.
    pub fn present(&self) -> impl Iterator<Item = u8> {
        self.slots.iter().zip(1..=MAX_CONTROLLERS).filter(|(present, _)| **present).map(|(_, slot)| slot)
    }

    fn emit(&self, mad: &mut [u8; MAD_LEN]) {
        put(mad, DATA, &self.change_id.to_be_bytes());
        mad[DATA + 2] = self.slots.len().min(MAX_CONTROLLERS.into()) as u8;
        for slot in 0..256 {
            let is = match self.slots.get(slot) {
                Some(true) => PRESENT,
                Some(false) => 0,
                None => ABSENT,
            };
            mad[DATA + 4 + slot / 2] |= if slot.is_multiple_of(2) { is << 4 } else { is };
        }
    }
}

/// IOControllerProfile, as far as SRP needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerProfile {
    /// GUID of the controller.
    pub guid: u64,
    /// I/O class, subclass, protocol and its version.
    pub class: (u16, u16, u16, u16),
    /// Requests that it takes at a time.
    pub send_queue: u16,
    /// READs that it has outstanding.
    pub read_depth: u8,
    /// Longest message, and longest transfer.
    pub sizes: (u32, u32),
    /// Operations that it uses.
    pub operations: u8,
    /// Service entries.
    pub services: u8,
    /// Its name for people.
    pub name: String,
}

impl ControllerProfile {
    /// Of a controller of SRP.
    pub fn srp(guid: u64, name: &str, services: u8) -> Self {
        Self {
            guid,
            class: (IO_CLASS, IO_SUBCLASS, PROTOCOL, PROTOCOL_VERSION),
            send_queue: 128,
            read_depth: 16,
            sizes: (crate::target::login::MAX_IT_IU_LEN, 1 << 20),
            operations: OPERATIONS,
            services,
            name: name.to_owned(),
        }
    }

    /// Whether its services are SRP targets.
    pub fn is_srp(&self) -> bool {
        let (_, subclass, protocol, _) = self.class;
        (subclass, protocol) == (IO_SUBCLASS, PROTOCOL)
    }

    /// Of an answer.
    pub fn parse(mad: &[u8; MAD_LEN]) -> Self {
        let half = |at| u16::from_be_bytes(get(mad, DATA + at));
        let word = |at| u32::from_be_bytes(get(mad, DATA + at));
        Self {
            guid: u64::from_be_bytes(get(mad, DATA)),
            class: (half(28), half(30), half(32), half(34)),
            send_queue: half(40),
            read_depth: mad[DATA + 43],
            sizes: (word(44), word(48)),
            operations: mad[DATA + 52],
            services: mad[DATA + 54],
            name: text(&get::<ID_STRING>(mad, DATA + 64)),
        }
    }

    fn emit(&self, mad: &mut [u8; MAD_LEN]) {
        let (class, subclass, protocol, version) = self.class;
        put(mad, DATA, &self.guid.to_be_bytes());
        // The vendor is the GUID's company.
        put(mad, DATA + 8, &((self.guid >> 40) as u32).to_be_bytes());
        for (at, value) in [(28, class), (30, subclass), (32, protocol), (34, version), (40, self.send_queue)]
        {
            put(mad, DATA + at, &value.to_be_bytes());
        }
        mad[DATA + 43] = self.read_depth;
        put(mad, DATA + 44, &self.sizes.0.to_be_bytes());
        put(mad, DATA + 48, &self.sizes.1.to_be_bytes());
        mad[DATA + 52] = self.operations;
        mad[DATA + 54] = self.services;
        let name = &self.name.as_bytes()[..self.name.len().min(ID_STRING - 1)];
        put(mad, DATA + 64, name);
    }
}

/// One of ServiceEntries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEntry {
    /// Its name.
    pub name: String,
    /// Where connection requests go.
    pub service_id: u64,
}

impl ServiceEntry {
    /// An SRP target port's.
    pub fn target(ext: u64, service_id: u64) -> Self {
        Self { name: format!("{NAME_PREFIX}{ext:016x}"), service_id }
    }

    /// The identifier extension in an SRP target's name.
    pub fn extension(&self) -> Option<u64> {
        crate::id::parse_half(self.name.strip_prefix(NAME_PREFIX)?)
    }

    /// Entry `at` (0 to 3) of an answer.
    pub fn parse(mad: &[u8; MAD_LEN], at: usize) -> Self {
        let start = DATA + at * SERVICE_LEN;
        let name = text(&get::<SERVICE_NAME>(mad, start));
        Self { name, service_id: u64::from_be_bytes(get(mad, start + SERVICE_NAME)) }
    }

    fn emit(&self, mad: &mut [u8; MAD_LEN], at: usize) {
        let start = DATA + at * SERVICE_LEN;
        put(mad, start, &self.name.as_bytes()[..self.name.len().min(SERVICE_NAME)]);
        put(mad, start + SERVICE_NAME, &self.service_id.to_be_bytes());
    }
}
