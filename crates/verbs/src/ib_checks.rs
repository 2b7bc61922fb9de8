//! What an InfiniBand device refuses, and tells its port of: paths that lead nowhere, packets with the wrong key.
//!
//! Read IBTA vol. 1 §8.2.1 (paths between subnets), §10.2.5 (Q_Keys) and §10.9.3 (P_Keys) first. Queue pairs drop and count; the
//! port counts in its PortInfo and sends traps, which is its agent's affair.

use everywire_transport::ib::{Counter, Path};

use crate::command::Command;
use crate::state::State;

/// Bytes of a packet that tell all about a wrong key: LRH, GRH, BTH, DETH.
const HEAD: usize = 8 + 40 + 12 + 8;

/// Commands that may wait while such packets are still told of; those beyond are only counted here.
const MAX_REPORTS: usize = 256;

impl State {
    /// Whether a path means to reach another subnet by LIDs alone, which say nothing beyond a router (IBTA §8.2.1).
    pub(crate) fn lacks_grh(&self, path: &Path) -> bool {
        let elsewhere = path.dst.is_ipv6() && !path.dst.is_unspecified() && !self.is_subnet_gid(path.dst);
        self.ib.is_some() && elsewhere && path.local_route().is_some_and(|route| !route.grh)
    }

    /// Whether a path leaves from a LID that an active port has not (IBTA §4.1.3): its packets would be dropped by the port.
    pub(crate) fn has_foreign_slid(&self, path: &Path) -> bool {
        let route = path.local_route();
        let ib = self.ib.as_ref().filter(|ib| ib.port.active);
        route.zip(ib).is_some_and(|(route, ib)| !ib.port.has_lid(route.slid))
    }

    /// Packets that queue pairs have dropped so far for their P_Key, and for their Q_Key.
    pub(crate) fn wrong_keys(&self) -> [u64; 2] {
        [Counter::DropBadPkey, Counter::DropBadQkey].map(|counter| self.core.counters.get(counter))
    }

    /// Tells the port of a packet, LRH first, if it was dropped for a key since `before`.
    pub(crate) fn tell_wrong_keys(&mut self, before: [u64; 2], packet: &[u8]) {
        let now = self.wrong_keys();
        if now != before && self.commands.len() < MAX_REPORTS {
            let head = packet[..packet.len().min(HEAD)].to_vec();
            self.command(Command::ReportWrongKey { is_qkey: now[1] != before[1], head });
        }
    }
}
