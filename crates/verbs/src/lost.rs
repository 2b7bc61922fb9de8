//! An InfiniBand port that is gone, or a subnet whose administrator is silent: who is told, and what ends.
//!
//! Read IBTA vol. 1 §11.6.3 for the events. A port that is only down is another matter: there the retries of each queue pair
//! decide, since a cable may be put back.

use std::time::Instant;

use everywire_transport::ib::{QpAttr, QpState, QpType};

use crate::ib::{AskedFor, IbPort};
use crate::route::{RouteError, RouteToken};
use crate::state::State;

impl State {
    /// Who has not answered in time: the driver, or on InfiniBand the administrator, if it has been asked.
    pub(crate) fn ib_silence(&self, token: RouteToken) -> RouteError {
        let mut asked = self.ib.iter().flat_map(|ib| ib.asked.values());
        let of_it = |what: &AskedFor| matches!(what, AskedFor::Way(asker, _) if *asker == token);
        if asked.any(of_it) { RouteError::NoAdministrator } else { RouteError::NoAnswer }
    }

    /// There is no port any more, and no peer. Whoever asked for a way is told so; groups are joined again with the next port.
    pub(crate) fn port_lost(&mut self, now: Instant) {
        self.ib_port(IbPort::default());
        self.cm_port_lost();
        let connected = self.qps.slots_where(|config| config.ty != QpType::Ud);
        for slot in connected {
            let Some(entry) = self.qps.at(slot) else { continue };
            let talks = matches!(entry.qp.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
            let qpn = entry.qp.config().qpn;
            if talks {
                let _ = self.modify(qpn, &QpAttr::to(QpState::Err)); // every state leads there
            }
        }
        let waiting: Vec<RouteToken> = self.routes.open.keys().copied().map(RouteToken).collect();
        for token in waiting {
            self.way_found(now, token, Err(RouteError::PortLost));
        }
    }
}
