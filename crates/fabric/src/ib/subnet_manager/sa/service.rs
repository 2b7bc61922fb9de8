//! Service records: which port offers what, for how long.
//!
//! Read IBTA §15.2.5.14 first. A record is named by service ID, GID and P_Key; who made it with a key must show the key to
//! change it. Leases are in seconds and end by themselves.

use std::time::{Duration, Instant};

use everywire_wire::Gid;
use everywire_wire::sa::{SaMad, ServiceRecord, status};

use super::super::config::MAX_SERVICES;
use super::{Answer, Records};

#[derive(Debug)]
struct Service {
    record: ServiceRecord,
    ends: Option<Instant>,
}

/// All service records.
#[derive(Debug, Default)]
pub(super) struct Services {
    all: Vec<Service>,
    /// When a lease may end; too early at worst.
    next_end: Option<Instant>,
}

/// What names a record.
const NAME: u64 = ServiceRecord::SERVICE_ID | ServiceRecord::SERVICE_GID | ServiceRecord::SERVICE_PKEY;

impl Services {
    fn position(&self, record: &ServiceRecord) -> Option<usize> {
        let name = |r: &ServiceRecord| (r.service_id, r.service_gid, r.service_pkey);
        self.all.iter().position(|service| name(&service.record) == name(record))
    }

    /// SubnAdmSet(ServiceRecord).
    pub fn set(&mut self, now: Instant, request: &SaMad) -> Answer {
        if request.component_mask & NAME != NAME {
            return Err(status::REQ_INSUFFICIENT_COMPONENTS);
        }
        let mut record = ServiceRecord::parse(&request.data).map_err(|_| status::REQ_INVALID)?;
        if request.component_mask & ServiceRecord::SERVICE_LEASE == 0 || record.service_lease == 0 {
            record.service_lease = ServiceRecord::LEASE_FOREVER;
        }
        let lease = Duration::from_secs(record.service_lease.into());
        let ends = (record.service_lease != ServiceRecord::LEASE_FOREVER).then(|| now + lease);
        self.next_end = self.next_end.into_iter().chain(ends).min();
        match self.position(&record) {
            Some(at) => {
                let old = &mut self.all[at];
                if old.record.service_key != [0; 16] && old.record.service_key != record.service_key {
                    return Err(status::REQ_DENIED);
                }
                *old = Service { record, ends };
            }
            None if self.all.len() >= MAX_SERVICES => return Err(status::NO_RESOURCES),
            None => self.all.push(Service { record, ends }),
        }
        Ok(Records::one(&record))
    }

    /// SubnAdmDelete(ServiceRecord).
    pub fn delete(&mut self, request: &SaMad) -> Answer {
        if request.component_mask & NAME != NAME {
            return Err(status::REQ_INSUFFICIENT_COMPONENTS);
        }
        let record = ServiceRecord::parse(&request.data).map_err(|_| status::REQ_INVALID)?;
        let at = self.position(&record).ok_or(status::NO_RECORDS)?;
        let key = self.all[at].record.service_key;
        if key != [0; 16] && key != record.service_key {
            return Err(status::REQ_DENIED);
        }
        Ok(Records::one(&self.all.swap_remove(at).record))
    }

    /// SubnAdmGet and GetTable: keys are not shown.
    pub fn query(&self, request: &SaMad) -> Answer {
        let shown = self.all.iter().map(|s| ServiceRecord { service_key: [0; 16], ..s.record });
        Records::matching(request, shown)
    }

    /// Records of ports that are gone.
    pub fn remove_ports(&mut self, gone: &[Gid]) {
        self.all.retain(|service| !gone.contains(&service.record.service_gid));
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next_end
    }

    /// Leases that are over.
    pub fn expire(&mut self, now: Instant) {
        if self.next_end.is_some_and(|at| at <= now) {
            self.all.retain(|service| service.ends.is_none_or(|ends| ends > now));
            self.next_end = self.all.iter().filter_map(|service| service.ends).min();
        }
    }
}
