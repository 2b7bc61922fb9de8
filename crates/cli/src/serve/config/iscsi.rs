//! The part of the configuration that iSCSI has: portals, targets, logical units.
//!
//! Names and numbers are held against RFC 7143 and SAM-5 by the crates that use them. A logical unit's identity is derived from
//! its target's name and number, so that it outlives restarts.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use everywire_iscsi::PORT;
use everywire_iscsi::name::IscsiName;
use everywire_scsi::lun::MAX_SERIAL;
use everywire_scsi::target::MAX_LUN;
use serde::Deserialize;

use super::Flags;
use super::access::{self, Access, AccessFile, Chap, SecretFile};
use super::volume::Source;

/// Longest alias: what one key of a login request holds (RFC 7143 §6.1).
const MAX_ALIAS: usize = 255;

/// Longest silence that may be allowed.
const MAX_PING: Duration = Duration::from_secs(86400);

/// `[iscsi]`, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IscsiFile {
    #[serde(default)]
    portals: Vec<String>,
    ping: Option<u64>,
    initial_r2t: Option<bool>,
    immediate_data: Option<bool>,
    #[serde(default)]
    discovery_chap: Vec<SecretFile>,
    discovery_chap_target: Option<SecretFile>,
    #[serde(default)]
    target: Vec<TargetFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetFile {
    name: String,
    alias: Option<String>,
    #[serde(default)]
    chap: Vec<SecretFile>,
    chap_target: Option<SecretFile>,
    #[serde(default)]
    access: Vec<AccessFile>,
    #[serde(default)]
    lun: Vec<LunFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LunFile {
    lun: Option<u16>,
    backend: String,
    serial: Option<String>,
    #[serde(default)]
    removable: bool,
    reservations: Option<PathBuf>,
}

/// A logical unit to serve.
#[derive(Debug, Clone, PartialEq)]
pub struct Lun {
    /// Its number.
    pub number: u16,
    /// Its blocks.
    pub backend: Source,
    /// The same, as written.
    pub backend_text: String,
    /// Unit serial number; derived if `None`.
    pub serial: Option<String>,
    /// Its medium can be ejected.
    pub removable: bool,
    /// Where reservations are kept that must outlive a restart (APTPL).
    pub reservations: Option<PathBuf>,
}

/// A target to serve.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Its name.
    pub name: IscsiName,
    /// Its name for people.
    pub alias: Option<String>,
    /// Secrets that initiators must know.
    pub chap: Chap,
    /// Who may use it, and what they see: the first rule that fits decides. Everybody, and all, if there is none.
    pub access: Vec<Access>,
    /// Its logical units.
    pub luns: Vec<Lun>,
}

/// Everything that is served over iSCSI.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Iscsi {
    /// Where TCP connections are taken.
    pub portals: Vec<SocketAddr>,
    /// After how much silence an initiator is asked for a sign of life, and how long it has for it, if set.
    pub ping: Option<Duration>,
    /// InitialR2T: whether data waits to be asked for; `None` is No over TCP and Yes over iSER, which fetches it by RDMA READ.
    pub initial_r2t: Option<bool>,
    /// ImmediateData: whether commands bring data; they may if `None`.
    pub immediate_data: Option<bool>,
    /// Secrets that are needed for discovery.
    pub discovery_chap: Chap,
    /// What they lead to.
    pub targets: Vec<Target>,
}

/// From the file, with what flags add.
pub(super) fn resolve(file: IscsiFile, flags: &Flags<'_>) -> Result<Iscsi, String> {
    let IscsiFile { portals, ping, initial_r2t, immediate_data, .. } = file;
    let portals = if flags.tcp.is_empty() { &portals } else { flags.tcp };
    let portals = portals.iter().map(|text| portal(text)).collect::<Result<Vec<_>, _>>()?;
    let mut targets = file.target.into_iter().map(target).collect::<Result<Vec<_>, _>>()?;
    for text in flags.iscsi {
        add_export(&mut targets, text)?;
    }
    let discovery_chap = Chap { initiators: file.discovery_chap, target: file.discovery_chap_target };
    let ping = ping.map(Duration::from_secs);
    Ok(Iscsi { portals, ping, initial_r2t, immediate_data, discovery_chap, targets })
}

/// `ADDRESS[:PORT]`.
fn portal(text: &str) -> Result<SocketAddr, String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    text.parse().map_err(|_| {
        format!("portal `{text}`: ADDRESS[:PORT] is needed, as in 192.0.2.7 or [2001:db8::7]:3260")
    })
}

fn target(file: TargetFile) -> Result<Target, String> {
    let name = parse_name(&file.name)?;
    let luns = luns(name.as_str(), file.lun)?;
    let access = file.access.into_iter().map(|rule| rule.iscsi(name.as_str())).collect::<Result<_, _>>()?;
    let chap = Chap { initiators: file.chap, target: file.chap_target };
    Ok(Target { name, alias: file.alias, chap, access, luns })
}

/// The logical units of the target `whose`.
pub(super) fn luns(whose: &str, files: Vec<LunFile>) -> Result<Vec<Lun>, String> {
    let mut luns = Vec::new();
    for one in files {
        let number = one.lun.map_or_else(|| free(whose, &luns), Ok)?;
        let backend = Source::parse(&one.backend).map_err(|e| format!("target {whose}: {e}"))?;
        if backend.own().is_none() && (one.serial.is_some() || one.removable || one.reservations.is_some()) {
            let what = "serial, removable and reservations are the volume's, and stand there";
            return Err(format!("target {whose} LUN {number}: {}: {what}", one.backend));
        }
        luns.push(Lun {
            number,
            backend,
            backend_text: one.backend,
            serial: one.serial,
            removable: one.removable,
            reservations: one.reservations,
        });
    }
    Ok(luns)
}

/// The lowest free number.
fn free(whose: &str, luns: &[Lun]) -> Result<u16, String> {
    let taken: HashSet<u16> = luns.iter().map(|lun| lun.number).collect();
    (0..=MAX_LUN)
        .find(|number| !taken.contains(number))
        .ok_or_else(|| format!("target {whose}: more than {MAX_LUN} logical units"))
}

/// A logical unit more, of a flag.
pub(super) fn add_lun(whose: &str, luns: &mut Vec<Lun>, backend_text: &str) -> Result<(), String> {
    let backend = Source::parse(backend_text)?;
    let number = free(whose, luns)?;
    luns.push(Lun {
        number,
        backend,
        backend_text: backend_text.to_owned(),
        serial: None,
        removable: false,
        reservations: None,
    });
    Ok(())
}

/// `IQN=BACKEND`: a logical unit more of the target of that name.
fn add_export(targets: &mut Vec<Target>, text: &str) -> Result<(), String> {
    let (name, backend_text) = text.split_once('=').ok_or_else(|| {
        format!("--iscsi {text}: IQN=BACKEND is needed, as in iqn.2026-11.example:disk=ram:256MiB")
    })?;
    let name = parse_name(name).map_err(|e| format!("--iscsi {text}: {e}"))?;
    let at = match targets.iter().position(|target| target.name == name) {
        Some(at) => at,
        None => {
            targets.push(Target {
                name,
                alias: None,
                chap: Chap::default(),
                access: Vec::new(),
                luns: Vec::new(),
            });
            targets.len() - 1
        }
    };
    let target = &mut targets[at];
    add_lun(target.name.as_str(), &mut target.luns, backend_text).map_err(|e| format!("--iscsi {text}: {e}"))
}

fn parse_name(text: &str) -> Result<IscsiName, String> {
    text.parse().map_err(|e| format!("`{text}`: {e}"))
}

impl Iscsi {
    /// What no part can see alone.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.ping.is_some_and(|ping| ping.is_zero() || ping > MAX_PING) {
            return Err(format!("iscsi.ping: 1 to {} seconds", MAX_PING.as_secs()));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = self.portals.iter().find(|portal| !seen.insert(**portal)) {
            return Err(format!("portal {twice} is listed twice"));
        }
        if let Some(zero) = self.portals.iter().find(|portal| portal.port() == 0) {
            return Err(format!("portal {zero}: 0 is no port that initiators could be told"));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = self.targets.iter().find(|target| !seen.insert(target.name.as_str())) {
            return Err(format!("target {} is described twice", twice.name));
        }
        self.discovery_chap.read().map_err(|e| format!("iscsi.discovery_chap: {e}"))?;
        self.targets.iter().try_for_each(Target::check)
    }
}

impl Target {
    fn check(&self) -> Result<(), String> {
        if self.alias.as_ref().is_some_and(|alias| alias.len() > MAX_ALIAS) {
            return Err(format!("target {}: alias: more than {MAX_ALIAS} bytes (RFC 7143 §6.1)", self.name));
        }
        let name = self.name.as_str();
        self.chap.read().map_err(|e| format!("target {name}: {e}"))?;
        let mut rules = self.access.iter();
        rules.try_for_each(|rule| access::check_luns(name, rule.luns.as_ref(), &self.luns))?;
        check_luns(name, &self.luns)
    }
}

/// What no logical unit can see alone.
pub(super) fn check_luns(whose: &str, luns: &[Lun]) -> Result<(), String> {
    let wrong = |what: String| Err(format!("target {whose}: {what}"));
    if luns.is_empty() {
        return wrong("it has no logical unit".to_owned());
    }
    let mut seen = HashSet::new();
    for lun in luns {
        let number = lun.number;
        if number > MAX_LUN {
            return wrong(format!("LUN {number} is over {MAX_LUN} (SAM-5 §4.7.7.3)"));
        }
        if !seen.insert(number) {
            return wrong(format!("LUN {number} is described twice"));
        }
        if let Some(serial) = &lun.serial
            && !(1..=MAX_SERIAL).contains(&serial.len())
        {
            return wrong(format!("LUN {number}: serial: 1 to {MAX_SERIAL} characters are needed"));
        }
    }
    Ok(())
}
