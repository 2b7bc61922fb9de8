//! Who listens on which service, and how many requests wait for each.
//!
//! A listener for one address wins over one for all addresses. Read first: IBTA volume 1 §12.7.3 (service ids).

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::config::{MAX_BACKLOG, MAX_LISTENERS};
use super::events::CmCallError;
use super::types::{ListenParams, ListenerId};

#[derive(Debug)]
struct Listener {
    key: (u64, Option<IpAddr>),
    backlog: usize,
    pending: usize,
}

/// All listeners.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_id: BTreeMap<ListenerId, Listener>,
    by_key: BTreeMap<(u64, Option<IpAddr>), ListenerId>,
    last_id: u32,
}

impl Listeners {
    pub fn add(&mut self, params: &ListenParams) -> Result<ListenerId, CmCallError> {
        let key = (params.service_id, params.local);
        if self.by_key.contains_key(&key) {
            return Err(CmCallError::ServiceInUse { service_id: params.service_id });
        }
        if self.by_id.len() >= MAX_LISTENERS {
            return Err(CmCallError::Full { what: "listeners", limit: MAX_LISTENERS });
        }
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            if !self.by_id.contains_key(&ListenerId(self.last_id)) {
                break;
            }
        }
        let id = ListenerId(self.last_id);
        let backlog = params.backlog.clamp(1, MAX_BACKLOG);
        self.by_id.insert(id, Listener { key, backlog, pending: 0 });
        self.by_key.insert(key, id);
        Ok(id)
    }

    pub fn remove(&mut self, id: ListenerId) {
        if let Some(listener) = self.by_id.remove(&id) {
            self.by_key.remove(&listener.key);
        }
    }

    /// Who listens on `service_id` at our address `local`.
    pub fn find(&self, service_id: u64, local: IpAddr) -> Option<ListenerId> {
        self.by_key.get(&(service_id, Some(local))).or_else(|| self.by_key.get(&(service_id, None))).copied()
    }

    /// Takes a place in the backlog; `false` when it is full.
    pub fn take_place(&mut self, id: ListenerId) -> bool {
        match self.by_id.get_mut(&id) {
            Some(listener) if listener.pending < listener.backlog => {
                listener.pending += 1;
                true
            }
            _ => false,
        }
    }

    /// Gives the place back; the listener may be gone.
    pub fn free_place(&mut self, id: ListenerId) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.pending -= 1;
        }
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }
}
