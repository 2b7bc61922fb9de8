//! The discovery log: what a host may use, through the listener it asked by. NVMe-oF 1.1 §5.
//! What is not here: referrals to other discovery services.

use super::config::ADMIN_QUEUE_ENTRIES;
use super::config::ControllerModel;
use super::queue::Phase;
use super::{ControllerKey, Target};
use crate::DISCOVERY_NQN;
use crate::pdu::discovery::*;
use crate::pdu::fabrics::{CNTLID_DYNAMIC, CNTLID_STATIC_ANY};

impl Target {
    /// The whole log page for the host of a discovery controller.
    pub(super) fn discovery_log(&self, key: ControllerKey) -> Vec<u8> {
        let entries = self.discovery_entries(key);
        let header = DiscoveryHeader { genctr: self.generation, numrec: entries.len() as u64, recfmt: 0 };
        let mut page = header.emit().to_vec();
        entries.iter().for_each(|entry| page.extend_from_slice(&entry.emit()));
        page
    }

    fn discovery_entries(&self, key: ControllerKey) -> Vec<DiscoveryEntry> {
        let Some(controller) = self.controllers.get(&key) else { return Vec::new() };
        let Some(queue) = self.queues.get(&controller.admin_queue) else { return Vec::new() };
        debug_assert!(matches!(queue.phase, Phase::Connected { .. }));
        let Some(listener) = self.listeners.get(&queue.port_id) else { return Vec::new() };
        let ip = if listener.address.ip().is_unspecified() {
            queue.info.local.ip()
        } else {
            listener.address.ip()
        };
        let template = DiscoveryEntry {
            trtype: TRTYPE_RDMA,
            adrfam: if ip.is_ipv4() { ADRFAM_IPV4 } else { ADRFAM_IPV6 },
            treq: TREQ_NOT_REQUIRED,
            portid: listener.port_id,
            asqsz: ADMIN_QUEUE_ENTRIES,
            trsvcid: field(&listener.address.port().to_string()),
            traddr: field(&ip.to_string()),
            rdma_qptype: QPTYPE_CONNECTED,
            rdma_prtype: listener.provider,
            rdma_cms: CMS_RDMA_CM,
            ..Default::default()
        };
        let this = DiscoveryEntry {
            subtype: SUBTYPE_CURRENT_DISCOVERY,
            cntlid: CNTLID_DYNAMIC,
            subnqn: field(DISCOVERY_NQN),
            ..template.clone()
        };
        let visible = self.subsystems.values();
        let visible = visible
            .filter(|subsystem| subsystem.allows(&controller.host) && subsystem.listens_on(listener.port_id));
        let mut visible: Vec<_> = visible.collect();
        visible.sort_unstable_by(|a, b| a.nqn.cmp(&b.nqn));
        let entries = visible.into_iter().map(|subsystem| DiscoveryEntry {
            subtype: SUBTYPE_NVM,
            cntlid: match subsystem.controllers {
                ControllerModel::Dynamic => CNTLID_DYNAMIC,
                ControllerModel::Static(_) => CNTLID_STATIC_ANY,
            },
            subnqn: subsystem.nqn.to_field(),
            ..template.clone()
        });
        std::iter::once(this).chain(entries).collect()
    }
}
