//! What a live association needs besides I/O: Keep Alive, asynchronous events, and a look at its namespaces.
//!
//! All of it ends with the association. NVMe Base 2.0 §§3.9, 5.2, 5.17.
//! What this does not do: reconnect; it only gives an association up.

use std::collections::BTreeMap;
use std::rc::Rc;

use everywire_verbs::rt::{Either, select};

use super::association::{Association, identify_cns};
use super::controller::Inner;
use super::error::NvmeError;
use super::namespace::NamespaceInfo;
use super::queue::Data;
use crate::pdu::identify::{self, IDENTIFY_LEN, IdentifyNamespace};
use crate::pdu::{AdminOpcode, Field, Sqe, features, log};

/// Namespaces at most that are looked at.
const MAX_NAMESPACES: usize = 1024;

impl Inner {
    /// Sends Keep Alive at half the timeout, and notices commands without an answer.
    pub(super) async fn keep_alive(self: Rc<Self>, association: Rc<Association>) {
        let rt = &self.env.rt;
        let timeout = self.options.keep_alive;
        let tick = timeout.unwrap_or(self.options.io_timeout) / 2;
        while association.is_live() && !self.stopping.get() {
            if let Either::Second(()) = select(rt.sleep(tick), self.changed.notified()).await {
                continue;
            }
            // All of them, so that each counts on. The last tick may have been almost over when the command was sent.
            let oldest = association.io.iter().map(|queue| queue.tick()).max().unwrap_or(0);
            if tick * oldest.saturating_sub(1) > self.options.io_timeout {
                let why = format!("a command has no answer within {:?}", self.options.io_timeout);
                association.abandon(&why);
                return;
            }
            if let Some(timeout) = timeout {
                let alive = association.admin.submit(Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0), Data::None);
                match rt.timeout(timeout, alive).await {
                    Ok(Ok(cqe)) if cqe.status().is_success() => {}
                    Ok(Ok(cqe)) => association.abandon(&format!("Keep Alive: {}", cqe.status())),
                    Ok(Err(_)) => return,
                    Err(_) => association.abandon(&format!("Keep Alive: no answer within {timeout:?}")),
                }
            }
        }
    }

    /// Holds an asynchronous event request, and looks at the namespaces again when they change.
    pub(super) async fn listen(self: Rc<Self>, association: Rc<Association>) {
        let wanted = association.id.oaes & features::AEC_NAMESPACE_ATTRIBUTE;
        let set = Sqe::new(AdminOpcode::SET_FEATURES.0, 0);
        let config = Sqe { cdw10: features::ASYNC_EVENT_CONFIG.into(), cdw11: wanted, ..set };
        // After the shutdown was asked for, nvmet logs an error for every command but those of Fabrics. It may be asked for
        // before this runs at all.
        if wanted == 0 || self.stopping.get() {
            return;
        }
        if association.command("Set Features (events)", config, Data::None).await.is_err() {
            return;
        }
        while !self.stopping.get() {
            let event = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
            let Ok(cqe) = association.admin.submit(event, Data::None).await else { return };
            if !cqe.status().is_success() {
                tracing::debug!("asynchronous event request: {}", cqe.status());
                return;
            }
            // Reading the log page that the event names lets the next event through.
            let lid = (cqe.dword0() >> 16) as u8;
            let len = if lid == log::CHANGED_NAMESPACES { IDENTIFY_LEN } else { 512 };
            if association.log_page("reading an event's log page", lid, 0, len).await.is_err() {
                return;
            }
            if let Err(error) = self.scan(&association).await {
                tracing::warn!("{error}");
            }
        }
    }

    /// Reads the active namespaces.
    pub(super) async fn scan(&self, association: &Association) -> Result<(), NvmeError> {
        let identify =
            |cns, nsid| Sqe { cdw10: identify_cns(cns), ..Sqe::new(AdminOpcode::IDENTIFY.0, nsid) };
        let mut found = BTreeMap::new();
        let list = identify(identify::CNS_ACTIVE_NAMESPACES, 0);
        let list = association.admin_read("Identify (namespace list)", list, IDENTIFY_LEN).await?;
        let ids = list.chunks_exact(4).map(u32::get).take_while(|&nsid| nsid != 0);
        for nsid in ids.take(MAX_NAMESPACES) {
            const STEP: &str = "Identify Namespace";
            let bytes =
                association.admin_read(STEP, identify(identify::CNS_NAMESPACE, nsid), IDENTIFY_LEN).await?;
            let id = IdentifyNamespace::parse(&bytes).map_err(|error| self.who.error(STEP, error))?;
            let descriptors = identify(identify::CNS_NAMESPACE_DESCRIPTORS, nsid);
            let descriptors = association.admin_read(STEP, descriptors, IDENTIFY_LEN).await?;
            match NamespaceInfo::new(nsid, &id, &descriptors, &association.id) {
                Some(info) => drop(found.insert(nsid, info)),
                None => {
                    tracing::warn!("{}: namespace {nsid} has a format that is not supported", self.who.remote)
                }
            }
        }
        *self.namespaces.borrow_mut() = found;
        Ok(())
    }
}
