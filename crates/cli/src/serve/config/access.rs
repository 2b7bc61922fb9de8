//! Who may use a target, and what each sees of it: access rules, maps of logical unit numbers, CHAP secrets.
//!
//! Secrets stand in files of their own, so that a configuration may be shown. They are read when the configuration is checked and
//! again when it is served, and never kept in it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use everywire_iscsi::login::chap::{ChapPolicy, Credentials};
use everywire_iscsi::name::IscsiName;
use everywire_iscsi::target::Subnet;
use everywire_scsi::target::MAX_LUN;
use everywire_srp::PortId;
use serde::Deserialize;

use super::iscsi::Lun;

/// Logical unit numbers of the target by those that an initiator sees.
pub type LunNumbers = BTreeMap<u16, u16>;

/// `[[iscsi.target.access]]` and `[[srp.target.access]]`, as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccessFile {
    #[serde(default)]
    initiators: Vec<String>,
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    deny: bool,
    luns: Option<BTreeMap<String, u16>>,
}

/// A name with the file of its secret, as written.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretFile {
    name: String,
    secret_file: PathBuf,
}

/// A rule of an iSCSI target.
#[derive(Debug, Clone, PartialEq)]
pub struct Access {
    /// Names it fits; any if empty.
    pub initiators: Vec<IscsiName>,
    /// Addresses it fits; any if empty.
    pub addresses: Vec<Subnet>,
    /// Whom it fits may not log in.
    pub deny: bool,
    /// What they see; all as the target numbers it if `None`.
    pub luns: Option<LunNumbers>,
}

/// What initiators of an SRP target see.
#[derive(Debug, Clone, PartialEq)]
pub struct SrpAccess {
    /// Initiator ports.
    pub initiators: Vec<PortId>,
    /// What they see; all as the target numbers it if `None`.
    pub luns: Option<LunNumbers>,
}

/// Secrets of CHAP: those of initiators, and the target's own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chap {
    /// Who may log in; everybody if there is none.
    pub initiators: Vec<SecretFile>,
    /// How the target says who it is.
    pub target: Option<SecretFile>,
}

impl AccessFile {
    fn luns(&mut self, whose: &str) -> Result<Option<LunNumbers>, String> {
        let Some(texts) = self.luns.take() else { return Ok(None) };
        let number = |text: &str| text.parse().ok().filter(|number| *number <= MAX_LUN);
        let each = texts.iter().map(|(seen, there)| {
            let seen = number(seen)
                .ok_or_else(|| format!("target {whose}: access: LUN `{seen}`: 0 to {MAX_LUN} is needed"))?;
            Ok((seen, *there))
        });
        each.collect::<Result<_, String>>().map(Some)
    }

    /// As a rule of the iSCSI target `whose`.
    pub(super) fn iscsi(mut self, whose: &str) -> Result<Access, String> {
        let wrong = |e: String| format!("target {whose}: access: {e}");
        let luns = self.luns(whose)?;
        let names =
            self.initiators.iter().map(|text| text.parse().map_err(|e| wrong(format!("`{text}`: {e}"))));
        let initiators = names.collect::<Result<_, _>>()?;
        let nets = self.addresses.iter().map(|text| text.parse().map_err(wrong));
        Ok(Access { initiators, addresses: nets.collect::<Result<_, _>>()?, deny: self.deny, luns })
    }

    /// As a rule of the SRP target `whose`.
    pub(super) fn srp(mut self, whose: &str) -> Result<SrpAccess, String> {
        let wrong = |e: String| Err(format!("target {whose}: access: {e}"));
        if self.deny || !self.addresses.is_empty() {
            return wrong(
                "SRP's initiators are known by their port identifiers, and those not named are denied".into(),
            );
        }
        if self.initiators.is_empty() {
            return wrong("no initiator is named".into());
        }
        let luns = self.luns(whose)?;
        let ports = self.initiators.iter().map(|text| {
            text.parse().map_err(|e: everywire_srp::id::PortIdError| format!("target {whose}: initiator {e}"))
        });
        Ok(SrpAccess { initiators: ports.collect::<Result<_, _>>()?, luns })
    }
}

/// What initiators see must be there.
pub(super) fn check_luns(whose: &str, seen: Option<&LunNumbers>, luns: &[Lun]) -> Result<(), String> {
    let Some(seen) = seen else { return Ok(()) };
    if seen.is_empty() {
        return Err(format!("target {whose}: access: `luns` without any; leave it out to show all"));
    }
    match seen.values().find(|number| !luns.iter().any(|lun| lun.number == **number)) {
        Some(number) => Err(format!("target {whose}: access: there is no LUN {number} to show")),
        None => Ok(()),
    }
}

impl SecretFile {
    fn read(&self) -> Result<Credentials, String> {
        let file = self.secret_file.display();
        let secret = std::fs::read_to_string(&self.secret_file)
            .map_err(|e| format!("CHAP name {}: cannot read {file}: {e}", self.name))?;
        let secret = secret.trim_end_matches(['\r', '\n']);
        Credentials::new(&self.name, secret.as_bytes())
            .map_err(|e| format!("CHAP name {}: {file}: {e}", self.name))
    }
}

impl Chap {
    /// With the secrets of the files.
    pub fn read(&self) -> Result<ChapPolicy, String> {
        if self.initiators.is_empty() && self.target.is_some() {
            // RFC 7143 §12.1.3: the initiator asks who the target is within its own authentication.
            return Err("chap_target: the target is asked who it is by initiators that say so themselves; give `chap` too".into());
        }
        let initiators = self.initiators.iter().map(SecretFile::read).collect::<Result<Vec<_>, _>>()?;
        let target = self.target.as_ref().map(SecretFile::read).transpose()?;
        let policy = ChapPolicy { initiators, target };
        policy.check().map_err(|e| e.to_string())?;
        Ok(policy)
    }
}
