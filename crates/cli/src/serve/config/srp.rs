//! The part of the configuration that SRP has: port, controller GUID, targets, logical units.
//!
//! A target port's identifier is its identifier extension and the controller's GUID. What is not set is derived, the extension
//! from the target's name and the GUID from the machine's identity, so that both outlive restarts.

use std::collections::HashSet;

use everywire_srp::id::parse_half;
use everywire_srp::{PORT, PortId};
use serde::Deserialize;
use uuid::Uuid;

use super::access::{self, AccessFile, SrpAccess};
use super::iscsi::{Lun, LunFile, add_lun, check_luns, luns};
use crate::srp::machine;

/// Namespace of the identifier extensions derived from names (a random UUID, fixed for ever).
const EXTENSIONS: Uuid = Uuid::from_u128(0x9d3c_5a1e_70b2_4cf4_8a66_51de_0b9a_4e37);
/// Longest name of a target: it is for people.
const MAX_NAME: usize = 64;

/// `[srp]`, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SrpFile {
    port: Option<u16>,
    ioc_guid: Option<String>,
    #[serde(default)]
    target: Vec<TargetFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetFile {
    name: String,
    id_ext: Option<String>,
    initiators: Option<Vec<String>>,
    #[serde(default)]
    access: Vec<AccessFile>,
    #[serde(default)]
    lun: Vec<LunFile>,
}

/// What the command line adds.
#[derive(Debug, Default)]
pub struct SrpFlags<'a> {
    /// `NAME=BACKEND`.
    pub exports: &'a [String],
    /// Port of RDMA/CM.
    pub port: Option<u16>,
    /// The controller's GUID.
    pub ioc_guid: Option<&'a str>,
    /// Identifier extension of the targets.
    pub id_ext: Option<&'a str>,
}

/// A target to serve.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Its port.
    pub id: PortId,
    /// Initiator ports that may log in; all if `None`.
    pub initiators: Option<Vec<PortId>>,
    /// What some of them see; the others see all.
    pub access: Vec<SrpAccess>,
    /// Its logical units.
    pub luns: Vec<Lun>,
}

/// Everything that is served over SRP.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Srp {
    /// Port of RDMA/CM.
    pub port: u16,
    /// What is served.
    pub targets: Vec<Target>,
}

/// From the file, with what flags add.
pub(super) fn resolve(file: SrpFile, flags: &SrpFlags<'_>) -> Result<Srp, String> {
    let guid = match flags.ioc_guid.or(file.ioc_guid.as_deref()) {
        Some(text) => half("ioc_guid", text)?,
        None => machine(),
    };
    let mut targets = Vec::new();
    for one in file.target {
        let ext = match &one.id_ext {
            Some(text) => half("id_ext", text)?,
            None => extension(&one.name),
        };
        let access: Vec<SrpAccess> =
            one.access.into_iter().map(|rule| rule.srp(&one.name)).collect::<Result<_, _>>()?;
        let initiators = match one.initiators {
            Some(_) if !access.is_empty() => {
                return Err(format!("target {}: `initiators` and `access` say the same; give one", one.name));
            }
            Some(texts) => {
                Some(texts.iter().map(|text| initiator(&one.name, text)).collect::<Result<_, _>>()?)
            }
            None if access.is_empty() => None,
            None => Some(access.iter().flat_map(|rule| rule.initiators.clone()).collect()),
        };
        let luns = luns(&one.name, one.lun)?;
        targets.push(Target { name: one.name, id: PortId::new(ext, guid), initiators, access, luns });
    }
    for text in flags.exports {
        add_export(&mut targets, text, guid, flags.id_ext)?;
    }
    Ok(Srp { port: flags.port.or(file.port).unwrap_or(PORT), targets })
}

fn initiator(target: &str, text: &str) -> Result<PortId, String> {
    text.parse().map_err(|e| format!("target {target}: initiator {e}"))
}

fn half(what: &str, text: &str) -> Result<u64, String> {
    parse_half(text).ok_or_else(|| format!("srp.{what} `{text}`: 1 to 16 hexadecimal digits are needed"))
}

/// The identifier extension of a target that says none.
fn extension(name: &str) -> u64 {
    Uuid::new_v5(&EXTENSIONS, name.as_bytes()).as_u64_pair().0
}

/// `NAME=BACKEND`: a logical unit more of the target of that name.
fn add_export(targets: &mut Vec<Target>, text: &str, guid: u64, ext: Option<&str>) -> Result<(), String> {
    let (name, backend) = text
        .split_once('=')
        .ok_or_else(|| format!("--srp {text}: NAME=BACKEND is needed, as in disk=ram:256MiB"))?;
    let at = match targets.iter().position(|target| target.name == name) {
        Some(at) => at,
        None => {
            let ext = ext.map_or_else(|| Ok(extension(name)), |text| half("id_ext", text))?;
            let id = PortId::new(ext, guid);
            targets.push(Target {
                name: name.to_owned(),
                id,
                initiators: None,
                access: Vec::new(),
                luns: Vec::new(),
            });
            targets.len() - 1
        }
    };
    add_lun(name, &mut targets[at].luns, backend).map_err(|e| format!("--srp {text}: {e}"))
}

impl Srp {
    /// What no part can see alone.
    pub(super) fn check(&self) -> Result<(), String> {
        for (at, target) in self.targets.iter().enumerate() {
            let name = &target.name;
            if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
                return Err(format!("target {name:?}: a name has 1 to {MAX_NAME} bytes"));
            }
            if let Some(other) =
                self.targets[..at].iter().find(|other| other.name == *name || other.id == target.id)
            {
                let id = target.id;
                return Err(format!(
                    "targets {name} and {} share a name or the port identifier {id}",
                    other.name
                ));
            }
            check_luns(name, &target.luns)?;
            let mut seen = HashSet::new();
            for rule in &target.access {
                access::check_luns(name, rule.luns.as_ref(), &target.luns)?;
                if let Some(twice) = rule.initiators.iter().find(|initiator| !seen.insert(**initiator)) {
                    return Err(format!("target {name}: access: initiator {twice} is named twice"));
                }
            }
        }
        Ok(())
    }
}
