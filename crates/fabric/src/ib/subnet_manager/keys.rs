//! Traps 257 to 259 in words: who has dropped whose packet for which key. Somebody probes, or two sides were not told the same.
//!
//! Read IBTA §10.9.3, §10.2.5 and §14.2.5.1 (TrapKey, TrapSwitchKey) first. A node repeats such traps as often as it likes:
//! each kind is told of once in [`KEY_WARNINGS`] for a node. Answering and passing on is the affair of `traps`.

use std::collections::btree_map::Entry;
use std::time::Instant;

use everywire_wire::notice::{Notice, TrapKey, TrapSwitchKey, trap};
use everywire_wire::{Lid, Qpn};

use super::Sm;
use super::config::KEY_WARNINGS;
use super::inventory::Node;

impl Sm {
    /// A port tells of a key that did not fit.
    pub(super) fn wrong_key(&mut self, now: Instant, notice: &Notice) {
        let Some(text) = self.words_of_key(notice) else { return };
        // At most one entry a LID and kind, and those of the past go.
        self.key_warnings.retain(|_, until| *until > now);
        let kind = (notice.issuer_lid, notice.trap_number);
        if let Entry::Vacant(entry) = self.key_warnings.entry(kind) {
            entry.insert(now + KEY_WARNINGS);
            self.warn(text);
        }
    }

    fn words_of_key(&self, notice: &Notice) -> Option<String> {
        let number = notice.trap_number;
        let (what, from, to, sl, qps) = if number == trap::SWITCH_BAD_P_KEY {
            let d = TrapSwitchKey::parse(&notice.details).ok()?;
            (format!("P_Key {:#06x} at port {}", d.pkey.0, d.port), d.lid1, d.lid2, d.sl, [d.qp1, d.qp2])
        } else {
            let d = TrapKey::parse(&notice.details).ok()?;
            let what = match number {
                trap::BAD_P_KEY => format!("P_Key {:#06x}", d.key & 0xffff),
                _ => format!("Q_Key {:#010x}", d.key),
            };
            (what, d.lid1, d.lid2, d.sl, [d.qp1, d.qp2])
        };
        let qp = |qpn: Qpn| format!("{:#x}", qpn.get());
        Some(format!(
            "{} has dropped a packet for its {what}: from {}, queue pair {}, to {}, queue pair {}, SL {sl} (trap {number})",
            self.end(notice.issuer_lid),
            self.end(from),
            qp(qps[0]),
            self.end(to),
            qp(qps[1]),
        ))
    }

    /// A LID by the name of its node, where the last sweep has found one.
    fn end(&self, lid: Lid) -> String {
        let owner = self.map.owner(lid);
        let name = owner.and_then(|owner| self.known.nodes.get(&owner.node)).map(Node::name);
        name.map_or_else(|| format!("LID {}", lid.0), |name| format!("{name} (LID {})", lid.0))
    }
}
