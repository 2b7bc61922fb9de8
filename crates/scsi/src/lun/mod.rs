//! A logical unit: a backend, its identity and limits, and the state that every nexus shares. SPC-4 §5, SBC-3 §4.
//!
//! The unit lives in one [`Arc`], so that iSCSI and SRP see one task set, one set of reservations, one medium. What every
//! command looks at (reserved, write protected, ejected…) is one word of flags; the rest is behind a lock that only rare
//! commands take. Locks are held for moments and never across an await; their order is `state`, then `paths`.

mod background;
mod check;
mod compare;
pub(crate) mod copy;
mod judge;
mod medium;
mod outsider;
mod persist;
mod provisioning;
mod report;
mod run;
mod rw;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use everywire_block::{Backend, Geometry};
use uuid::Uuid;

use crate::lock;
use crate::mode::{ModeContext, ModeFlags};
use crate::reservations::{NexusName, ReservationStore, Reservations};
use crate::sense::Asc;
use crate::target::path::Path;
use crate::task_set::TaskSet;
pub(crate) use judge::Plan;
pub(crate) use run::{Done, Run};

/// Namespace of the name-based UUIDs here (itself a random UUID, fixed for ever).
const UUID_SPACE: Uuid = Uuid::from_u128(0x2d0c_51f7_8a3e_4b96_9e21_c04d_77ab_13f8);

/// Most bytes that READ, WRITE and their like move in one command (MAXIMUM TRANSFER LENGTH).
pub const MAX_TRANSFER: u32 = 32 << 20;
/// Most bytes that WRITE SAME covers in one command (MAXIMUM WRITE SAME LENGTH).
pub const MAX_WRITE_SAME: u64 = 512 << 20;
/// Most descriptors of an UNMAP.
pub const MAX_UNMAP_DESCRIPTORS: u32 = 256;
/// Most blocks of a WRITE ATOMIC.
const MAX_ATOMIC_BLOCKS: u32 = 256;
/// Longest serial number: its T10 vendor designator then fits a copy descriptor's 20 bytes.
pub const MAX_SERIAL: usize = 12;

/// How a logical unit is made.
#[derive(Clone)]
pub struct LunConfig {
    /// The volume's name: its identity is derived from it, so that it outlives restarts and moves.
    pub name: String,
    /// Its blocks.
    pub backend: Arc<dyn Backend>,
    /// T10 vendor identification, 8 characters.
    pub vendor: String,
    /// Product identification, 16 characters.
    pub product: String,
    /// Product revision, 4 characters.
    pub revision: String,
    /// Unit serial number, at most [`MAX_SERIAL`] characters; derived from the name if not given.
    pub serial: Option<String>,
    /// NAA designator; derived from the name (NAA 3h) if not given.
    pub naa: Option<u64>,
    /// The medium can be ejected.
    pub removable: bool,
    /// Writes are refused, whatever the backend would do.
    pub read_only: bool,
    /// Offer UNMAP, where the backend can discard.
    pub thin: bool,
    /// Offer WRITE ATOMIC: only where the backend cannot tear a write in a power failure (RAM).
    pub atomic_writes: bool,
    /// Where APTPL keeps reservations; without one APTPL is refused.
    pub store: Option<Arc<dyn ReservationStore>>,
}

impl LunConfig {
    /// A thin-provisioned disk with derived identity.
    pub fn new(name: impl Into<String>, backend: Arc<dyn Backend>) -> Self {
        Self {
            name: name.into(),
            backend,
            vendor: "EVERYWIR".to_owned(),
            product: "VIRTUAL-DISK".to_owned(),
            revision: "0001".to_owned(),
            serial: None,
            naa: None,
            removable: false,
            read_only: false,
            thin: true,
            atomic_writes: false,
            store: None,
        }
    }
}

/// Why a logical unit could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LunError {
    /// The serial number does not fit.
    #[error(
        "volume {name}: serial number `{serial}` is empty, not graphic ASCII, or over {MAX_SERIAL} characters"
    )]
    Serial {
        /// The volume.
        name: String,
        /// What was asked for.
        serial: String,
    },
    /// The stored reservations cannot be used. Serving without them would let fenced initiators write.
    #[error("volume {name}: stored reservations cannot be read: {reason}")]
    Reservations {
        /// The volume.
        name: String,
        /// Why.
        reason: String,
    },
}

/// Names of a logical unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Unit serial number (VPD 80h).
    pub serial: String,
    /// NAA designator (VPD 83h).
    pub naa: u64,
}

impl Identity {
    fn new(config: &LunConfig) -> Result<Self, LunError> {
        let (high, low) = Uuid::new_v5(&UUID_SPACE, config.name.as_bytes()).as_u64_pair();
        let serial = config.serial.clone().unwrap_or_else(|| format!("{:012x}", low >> 16));
        if serial.is_empty()
            || serial.len() > MAX_SERIAL
            || !serial.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        {
            return Err(LunError::Serial { name: config.name.clone(), serial });
        }
        Ok(Self { serial, naa: config.naa.unwrap_or(0x3 << 60 | high >> 4) })
    }
}

/// Limits in blocks, as the block limits page reports them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) compare_and_write: u8,
    pub(crate) granularity: u16,
    pub(crate) transfer: u32,
    pub(crate) optimal_transfer: u32,
    pub(crate) unmap_descriptors: u32,
    pub(crate) write_same: u64,
    pub(crate) atomic: u32,
}

impl Limits {
    fn new(config: &LunConfig, geometry: &Geometry) -> Self {
        let block = geometry.block_size;
        Self {
            compare_and_write: u8::MAX,
            granularity: (geometry.optimal_io / block).clamp(1, u32::from(u16::MAX)) as u16,
            transfer: MAX_TRANSFER / block,
            optimal_transfer: (1 << 20) / block,
            unmap_descriptors: if config.thin && geometry.discard { MAX_UNMAP_DESCRIPTORS } else { 0 },
            write_same: MAX_WRITE_SAME / u64::from(block),
            atomic: if config.atomic_writes { MAX_ATOMIC_BLOCKS } else { 0 },
        }
    }
}

/// What every command looks at.
pub(crate) mod flag {
    /// There is a reservation.
    pub(crate) const RESERVED: u32 = 1;
    /// Writes are refused: the medium cannot be written.
    pub(crate) const READ_ONLY: u32 = 1 << 1;
    /// Writes are refused: SWP.
    pub(crate) const SWP: u32 = 1 << 2;
    /// The medium is ejected.
    pub(crate) const EJECTED: u32 = 1 << 3;
    /// SANITIZE runs.
    pub(crate) const SANITIZING: u32 = 1 << 4;
    /// Completed writes may stay in a volatile cache.
    pub(crate) const WRITE_BACK: u32 = 1 << 5;
    /// Sense data in descriptor format.
    pub(crate) const D_SENSE: u32 = 1 << 6;
    /// TASK ABORTED status.
    pub(crate) const TAS: u32 = 1 << 7;
    /// SANITIZE failed, and the medium may be anything.
    pub(crate) const SANITIZE_FAILED: u32 = 1 << 8;
}

/// What rare commands change.
pub(crate) struct State {
    pub(crate) reservations: Reservations,
    /// Nexuses that prevent removal of the medium.
    pub(crate) prevented_by: BTreeSet<u64>,
    /// Results of third-party copies, by nexus and list identifier.
    pub(crate) copies: BTreeMap<(u64, u8), copy::CopyResult>,
    /// How much of the medium SANITIZE has done, in 65536ths.
    pub(crate) sanitized: u16,
    /// The last SANITIZE allowed to leave its failure behind.
    pub(crate) sanitize_ause: bool,
}

/// A logical unit.
pub struct LogicalUnit {
    pub(crate) config: LunConfig,
    /// The backend's geometry, which never changes.
    pub(crate) geometry: Geometry,
    pub(crate) identity: Identity,
    pub(crate) limits: Limits,
    pub(crate) tasks: Mutex<TaskSet>,
    pub(crate) state: Mutex<State>,
    flags: AtomicU32,
    paths: Mutex<Vec<Weak<Path>>>,
    /// What goes on without anybody who waits for it.
    background: background::Background,
}

impl LogicalUnit {
    /// Makes a logical unit, and brings back the reservations that APTPL kept.
    ///
    /// # Errors
    /// A serial number that does not fit, or stored reservations that cannot be read.
    pub fn new(config: LunConfig) -> Result<Arc<Self>, LunError> {
        let geometry = config.backend.geometry();
        let identity = Identity::new(&config)?;
        let unreadable = |reason: String| LunError::Reservations { name: config.name.clone(), reason };
        let record = config.store.as_ref().map_or(Ok(None), |store| store.load());
        let record = record.map_err(|error| unreadable(error.to_string()))?;
        let reservations = match record {
            None => Reservations::default(),
            Some(record) => Reservations::from_record(&record)
                .ok_or_else(|| unreadable("the record is damaged".to_owned()))?,
        };
        let limits = Limits::new(&config, &geometry);
        let state = State {
            reservations,
            prevented_by: BTreeSet::new(),
            copies: BTreeMap::new(),
            sanitized: 0,
            sanitize_ause: false,
        };
        let unit = Self {
            identity,
            geometry,
            limits,
            tasks: Mutex::default(),
            flags: AtomicU32::new(0),
            paths: Mutex::default(),
            background: Default::default(),
            config,
            state: Mutex::new(state),
        };
        unit.set(flag::READ_ONLY, unit.config.read_only || geometry.read_only);
        unit.set(flag::RESERVED, lock(&unit.state).reservations.is_reserved());
        unit.set_mode(unit.mode_defaults());
        Ok(Arc::new(unit))
    }

    /// The volume's name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Its names on the wire.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its blocks.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What its blocks are in.
    pub fn backend(&self) -> Arc<dyn Backend> {
        self.config.backend.clone()
    }

    /// Commands in the task set.
    pub fn tasks(&self) -> usize {
        lock(&self.tasks).len()
    }

    pub(crate) fn is_thin(&self) -> bool {
        self.limits.unmap_descriptors != 0
    }

    pub(crate) fn is(&self, flags: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flags != 0
    }

    pub(crate) fn set(&self, flags: u32, on: bool) {
        if on {
            self.flags.fetch_or(flags, Ordering::AcqRel);
        } else {
            self.flags.fetch_and(!flags, Ordering::AcqRel);
        }
    }

    /// Mode parameters at power on.
    pub(crate) fn mode_defaults(&self) -> ModeFlags {
        ModeFlags { wce: self.geometry.volatile_cache, d_sense: false, swp: false, tas: false }
    }

    /// What the mode pages are made of.
    pub(crate) fn mode(&self) -> ModeContext {
        let flags = ModeFlags {
            wce: self.is(flag::WRITE_BACK),
            d_sense: self.is(flag::D_SENSE),
            swp: self.is(flag::SWP),
            tas: self.is(flag::TAS),
        };
        ModeContext {
            flags,
            defaults: self.mode_defaults(),
            write_protected: self.is(flag::READ_ONLY),
            has_cache: self.geometry.volatile_cache,
            blocks: self.geometry.blocks,
            block_size: self.geometry.block_size,
        }
    }

    pub(crate) fn set_mode(&self, mode: ModeFlags) {
        self.set(flag::WRITE_BACK, mode.wce);
        self.set(flag::D_SENSE, mode.d_sense);
        self.set(flag::SWP, mode.swp);
        self.set(flag::TAS, mode.tas);
    }

    /// A nexus sees the unit.
    pub(crate) fn attach(&self, path: &Arc<Path>) {
        let mut paths = lock(&self.paths);
        paths.retain(|path| path.strong_count() != 0);
        paths.push(Arc::downgrade(path));
    }

    /// A unit attention for every nexus that `who` picks.
    pub(crate) fn attention(&self, asc: Asc, who: impl Fn(&Path) -> bool) {
        let paths = lock(&self.paths);
        for path in paths.iter().filter_map(Weak::upgrade).filter(|path| who(path)) {
            path.attentions.establish(asc);
        }
    }

    /// Live nexuses with this name.
    pub(crate) fn nexuses_named(&self, name: &NexusName) -> Vec<u64> {
        let paths = lock(&self.paths);
        let live = paths.iter().filter_map(Weak::upgrade);
        live.filter(|path| path.name == *name).map(|path| path.nexus).collect()
    }

    /// What ends with a nexus: its SPC-2 reservation, its preventing of removal, its copies' results.
    pub(crate) fn forget_nexus(&self, nexus: u64, name: &NexusName) {
        let mut state = lock(&self.state);
        state.prevented_by.remove(&nexus);
        state.copies.retain(|&(owner, _), _| owner != nexus);
        state.reservations.end_spc2(name);
        self.set(flag::RESERVED, state.reservations.is_reserved());
    }

    /// Logical unit reset but for the tasks: SAM-5 §6.3.3.
    pub(crate) fn reset(&self) {
        let mut state = lock(&self.state);
        state.prevented_by.clear();
        state.copies.clear();
        state.reservations.reset();
        self.set(flag::RESERVED, state.reservations.is_reserved());
        drop(state);
        self.set_mode(self.mode_defaults());
        self.attention(Asc::BUS_DEVICE_RESET, |_| true);
    }
}

impl std::fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "volume {} ({})", self.config.name, self.config.backend.describe())
    }
}
