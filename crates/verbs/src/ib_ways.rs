//! Ways to other InfiniBand ports: paths of the subnet administrator, and which of several a program gets.
//!
//! Read IBTA vol. 1 §4.1.3 (LMC and path bits), §11.2.2.1 (address handles) and §15.2.5.16 (path records) first. A port has 2^LMC
//! LIDs, and the tables may lead each of them by other switches. Path bits name one of our own; the administrator's list of
//! paths says which of the peer's goes with it. Path bits 0 are what everybody has who asks for nothing.

use std::net::IpAddr;
use std::time::Instant;

use everywire_transport::ib::{LocalRoute, PathLink};
use everywire_transport::mad::sa_client::{Answer, Ask, SaError};
use everywire_wire::sa::{PathRecord, status};
use everywire_wire::{Gid, Lid, Mtu};

use crate::command::Command;
use crate::ib::AskedFor;
use crate::route::{Neighbour, RouteError, RouteToken, Way};
use crate::state::State;

/// The most paths that a query can ask for: NumbPath has seven bits (IBTA §15.2.5.16).
const MAX_NUMB_PATH: u8 = 127;

impl State {
    /// The path bits that somebody gets who asks for these, `None` for the device's own.
    pub(crate) fn path_bits(&self, asked: Option<u8>) -> Result<u8, RouteError> {
        let bits = asked.unwrap_or(self.config.path_bits);
        let Some(ib) = &self.ib else {
            return if bits == 0 { Ok(0) } else { Err(RouteError::NoPathBits) };
        };
        let lmc = ib.port.lmc;
        // A port that is not up has no LMC yet; that it is not up is the better answer.
        let fits = !ib.port.active || u16::from(bits) <= ib.port.path_bits_mask();
        if fits { Ok(bits) } else { Err(RouteError::PathBits { asked: bits, lmc }) }
    }

    /// The path bits that go with an open request.
    pub(crate) fn path_bits_of(&self, token: RouteToken) -> u8 {
        self.routes.open.get(&token.0).map_or(0, |asked| asked.path_bits)
    }

    /// Begins to look for the way to `dst`, a GID or a name.
    pub(crate) fn ib_find_way(&mut self, token: RouteToken, dst: IpAddr) {
        if self.config.ip_names.contains(&dst) {
            self.ib_ask_path(token, self.ib_gid());
        } else if self.is_subnet_gid(dst) {
            self.ib_ask_path(token, Gid::from(dst));
        } else {
            self.command(Command::ResolveNeighbour { token, ip: dst });
        }
    }

    /// The driver's answer to [`Command::ResolveNeighbour`].
    pub(crate) fn ib_neighbour(
        &mut self,
        now: Instant,
        token: RouteToken,
        answer: Result<Neighbour, RouteError>,
    ) {
        let dst = self.routes.open.get(&token.0).map(|asked| asked.dst).filter(IpAddr::is_ipv6);
        match (answer, dst) {
            (Ok(Neighbour { gid, port }), _) => {
                if let Some(asked) = self.routes.open.get_mut(&token.0) {
                    asked.port = port;
                }
                self.ib_ask_path(token, gid);
            }
            // Nobody's name: then it is a GID, of another subnet.
            (Err(RouteError::NoRoute), Some(gid)) => self.ib_ask_path(token, Gid::from(gid)),
            (Err(error), _) => self.way_found(now, token, Err(error)),
        }
    }

    fn ib_ask_path(&mut self, token: RouteToken, dgid: Gid) {
        let (sgid, now) = (self.ib_gid(), self.now);
        let (pkey, bits) = (self.pkey_at(0).unwrap_or_default(), self.path_bits_of(token));
        if let Some(ib) = &mut self.ib {
            let most = (1u8 << ib.port.lmc.min(7)).min(MAX_NUMB_PATH);
            let ask = match bits {
                0 => Ask::Path { sgid, dgid, pkey },
                _ => Ask::Paths { sgid, dgid, pkey, most },
            };
            ib.ask(now, AskedFor::Way(token, dgid), ask);
            self.work = true;
        }
    }

    /// The administrator's answer to a question for a way.
    pub(crate) fn ib_way_answered(
        &mut self,
        now: Instant,
        token: RouteToken,
        dgid: Gid,
        answer: Result<Answer, SaError>,
    ) {
        let bits = self.path_bits_of(token);
        let no_path = |error| match error {
            SaError::Status(status @ (status::NO_RECORDS | status::REQ_INVALID_GID)) => {
                let port = self.routes.open.get(&token.0).and_then(|asked| asked.port.clone());
                RouteError::NoPath { to: dgid, port, status }
            }
            other => route_error(other),
        };
        let way = answer.map_err(no_path).and_then(|answer| match answer {
            Answer::Path(path) => self.ib_way(dgid, &path),
            Answer::Paths(paths) => {
                let own = self.ib.as_ref().map_or(Lid(0), |ib| Lid(ib.port.lid.0 | u16::from(bits)));
                let path = paths.iter().find(|path| path.slid == own).ok_or(RouteError::NoSuchPath(bits))?;
                self.ib_way(dgid, path)
            }
            Answer::Member(_) => Err(RouteError::NoRoute),
        });
        self.way_found(now, token, way);
    }

    fn ib_way(&self, dgid: Gid, path: &PathRecord) -> Result<Way, RouteError> {
        let mtu = Mtu::from_code(path.mtu).ok_or(RouteError::NoRoute)?;
        let link = PathLink::Lrh(LocalRoute {
            slid: path.slid,
            dlid: path.dlid,
            sl: path.sl,
            // IBTA §15.2.5.16: within the subnet the hop limit is 0 or 1, and packets need no GRH.
            grh: path.hop_limit > 1,
            static_rate: path.rate,
        });
        let (src, dst) = (self.ib_gid().to_ip(), dgid.to_ip());
        Ok(Way { src, dst, scope_id: 0, mtu, link, life_time: Some(path.life_time) })
    }
}

pub(crate) fn route_error(error: SaError) -> RouteError {
    match error {
        SaError::Status(status) => RouteError::Administrator(status),
        SaError::TooMany => RouteError::TooMany,
        SaError::NoAnswer | SaError::Malformed => RouteError::NoAdministrator,
    }
}
