//! Discovery from the host's side. NVMe-oF 1.1 §5: the log is read in pieces, and again if it changed meanwhile.

use std::net::SocketAddr;
use std::rc::Rc;

use everywire_verbs::Device;
use everywire_verbs::rt::{Notify, Rt};

use super::association::{ADMIN_BUFFER, Association};
use super::error::{NvmeError, NvmeErrorKind};
use super::{Environment, HostIdentity, InitiatorOptions};
use crate::Nqn;
use crate::pdu::discovery::{DiscoveryEntry, DiscoveryHeader, parse_log};
use crate::pdu::log;

/// Times the log is read before a controller whose log keeps changing is given up.
const ATTEMPTS: usize = 10;
/// Entries at most; more than that is no log but an attack on our memory.
const MAX_ENTRIES: u64 = 65_536;
const STEP: &str = "reading the discovery log";

/// Asks the discovery service at `address` what `identity` may use.
pub async fn discover(
    rt: &Rt,
    device: &Device,
    address: SocketAddr,
    identity: &HostIdentity,
) -> Result<Vec<DiscoveryEntry>, NvmeError> {
    let options = InitiatorOptions { keep_alive: None, ..InitiatorOptions::default() };
    let env = Rc::new(Environment::new(rt, device, address, identity)?);
    let association = Association::connect(&env, &options, &Nqn::discovery(), 0, &Notify::new()).await?;
    let entries = read_log(&association).await;
    let closed = association.close().await;
    let entries = entries?;
    closed?;
    Ok(entries)
}

async fn read_log(association: &Association) -> Result<Vec<DiscoveryEntry>, NvmeError> {
    let mut changed = None;
    for _ in 0..ATTEMPTS {
        match read_once(association).await {
            Ok(Some(entries)) => return Ok(entries),
            Ok(None) => changed = None,
            // A log that became shorter has no such piece any more: the next header says so.
            Err(error) if error.status().is_some() => changed = Some(error),
            Err(error) => return Err(error),
        }
    }
    // It was refused to the last, or it never stood still.
    Err(changed.unwrap_or_else(|| {
        let what = format!("the log changed during each of {ATTEMPTS} reads");
        association.admin.who.error(STEP, NvmeErrorKind::Protocol(what))
    }))
}

/// Header, entries, header again; `None` if the generation counter moved meanwhile.
async fn read_once(association: &Association) -> Result<Option<Vec<DiscoveryEntry>>, NvmeError> {
    let who = &association.admin.who;
    let header_of = |bytes: &[u8]| DiscoveryHeader::parse(bytes).map_err(|error| who.error(STEP, error));
    let mut page = association.log_page(STEP, log::DISCOVERY, 0, DiscoveryHeader::LEN).await?;
    let header = header_of(&page)?;
    if header.numrec > MAX_ENTRIES {
        let what = format!("the log claims {} entries; at most {MAX_ENTRIES} are read", header.numrec);
        return Err(who.error(STEP, NvmeErrorKind::Protocol(what)));
    }
    let total = DiscoveryHeader::LEN + header.numrec as usize * DiscoveryEntry::LEN;
    while page.len() < total {
        let piece = (total - page.len()).min(ADMIN_BUFFER);
        page.extend(association.log_page(STEP, log::DISCOVERY, page.len() as u64, piece).await?);
    }
    let after = association.log_page(STEP, log::DISCOVERY, 0, DiscoveryHeader::LEN).await?;
    if header_of(&after)?.genctr != header.genctr {
        return Ok(None);
    }
    Ok(Some(parse_log(&page).map_err(|error| who.error(STEP, error))?.1))
}
