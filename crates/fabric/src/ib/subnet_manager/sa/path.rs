//! Path records: from every port that a query names to every other, along the tables that are in place.
//!
//! Read IBTA §15.2.5.16 first. MTU and rate are the smallest on the way. Where a query wants less than there is, it gets
//! that; where it wants more, there is no path. The service level is that of
//! the partition, and all paths are reversible.

use everywire_wire::sa::{PathRecord, SaMad, selector, status};
use everywire_wire::smp::codes::{node_type, rate};
use everywire_wire::{Gid, Guid, Lid, PKey};

use super::super::config::{MAX_ANSWER_RECORDS, MAX_PATH_PAIRS};
use super::super::inventory::{Owner, Port};
use super::super::routing::NO_PATH;
use super::{Answer, Records, Sm};
use everywire_wire::mad::method::GET;

/// Hop limit of paths into other subnets, as Linux and IPv6 have it.
const HOPS_BETWEEN_SUBNETS: u8 = 64;

/// What the links of a way allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    mtu: u8,
    rate: u8,
}

impl Way {
    const BEST: Way = Way { mtu: 5, rate: 22 };

    fn through(&mut self, port: &Port) {
        let here = rate_of(port);
        self.mtu = self.mtu.min(port.info.neighbor_mtu.max(1));
        if rate::megabits(here) < rate::megabits(self.rate) {
            self.rate = here;
        }
    }
}

/// Rate code of a port's link.
pub(super) fn rate_of(port: &Port) -> u8 {
    let info = &port.info;
    rate::of(info.link_width_active, info.link_speed_active, info.link_speed_ext_active)
}

impl Sm {
    /// Answers a query for paths.
    pub(super) fn paths(&self, request: &SaMad) -> Answer {
        let (mask, want) = (request.component_mask, PathRecord::parse(&request.data));
        let want = want.map_err(|_| status::REQ_INVALID)?;
        let names_an_end =
            mask & (PathRecord::SGID | PathRecord::SLID | PathRecord::DGID | PathRecord::DLID) != 0;
        if !names_an_end && request.header.method == GET {
            return Err(status::REQ_INSUFFICIENT_COMPONENTS);
        }
        let most = match (request.header.method == GET, mask & PathRecord::NUMB_PATH != 0) {
            (true, _) => 1,
            (_, true) => usize::from(want.numb_path),
            _ => usize::MAX,
        };
        let sources = self.ends(mask, (PathRecord::SGID, want.sgid), (PathRecord::SLID, want.slid))?;
        if mask & PathRecord::DGID != 0 && want.dgid.is_multicast() {
            return self.group_path(&want, mask, &sources);
        }
        if mask & PathRecord::DGID != 0 && self.is_elsewhere(want.dgid) {
            return self.paths_out(&want, mask, &sources, most);
        }
        let targets = self.ends(mask, (PathRecord::DGID, want.dgid), (PathRecord::DLID, want.dlid))?;
        // All pairs of a small subnet are a tool's question; of a large one nobody needs them, and all would wait for them.
        if !names_an_end && sources.len().saturating_mul(targets.len()) > MAX_PATH_PAIRS {
            return Err(status::REQ_INSUFFICIENT_COMPONENTS);
        }
        let mut records = Records::of::<PathRecord>();
        for source in &sources {
            for target in &targets {
                for path in self.paths_between(*source, *target, &want, mask).take(most) {
                    if records.count >= MAX_ANSWER_RECORDS {
                        return Err(status::NO_RESOURCES);
                    }
                    records.push(&path);
                    if request.header.method == GET {
                        return Ok(records);
                    }
                }
            }
        }
        Ok(records)
    }

    /// Whether a GID is of another subnet.
    fn is_elsewhere(&self, gid: Gid) -> bool {
        gid.subnet_prefix() != self.config.gid_prefix && !gid.is_link_local() && !gid.is_multicast()
    }

    /// The router's port that leads to a subnet.
    fn way_out(&self, prefix: u64) -> Option<Owner> {
        let routes = &self.config.prefix_routes;
        let listed = routes.iter().filter(|(of, _)| *of == prefix);
        if let Some((_, owner)) = listed.filter_map(|(_, guid)| self.map.endports.get(guid)).next() {
            return Some(*owner);
        }
        let mut ports = self.known.end_ports().filter(|_| routes.is_empty());
        let router = |node: &Guid| self.known.nodes[node].info.node_type == node_type::ROUTER;
        ports.find(|(node, ..)| router(node)).map(|(node, port, _)| Owner { node, port })
    }

    /// Paths to a port of another subnet: to the router, by its base LID, and with hops to go (IBTA §15.2.5.16). MTU and rate
    /// are those of the way to the router; what lies behind it the other subnet's administrator knows.
    fn paths_out(&self, want: &PathRecord, mask: u64, sources: &[Owner], most: usize) -> Answer {
        let router = self.way_out(want.dgid.subnet_prefix()).ok_or(status::REQ_INVALID_GID)?;
        let mut records = Records::of::<PathRecord>();
        for source in sources {
            let paths = self.paths_between(*source, router, want, mask);
            let base = self.lids_of(router).first().copied().unwrap_or_default();
            for path in paths.filter(|path| path.dlid == base).take(most.min(1)) {
                if records.count >= MAX_ANSWER_RECORDS {
                    return Err(status::NO_RESOURCES);
                }
                records.push(&PathRecord { dgid: want.dgid, hop_limit: HOPS_BETWEEN_SUBNETS, ..path });
            }
        }
        Ok(records)
    }

    /// The end ports that one side of a query names; all where it names none.
    fn ends(&self, mask: u64, gid: (u64, Gid), lid: (u64, Lid)) -> Result<Vec<Owner>, u16> {
        if mask & gid.0 != 0 && !gid.1.is_multicast() {
            return Ok(vec![self.port_of_gid(gid.1).ok_or(status::REQ_INVALID_GID)?]);
        }
        if mask & lid.0 != 0 {
            return Ok(self.map.owner(lid.1).into_iter().collect());
        }
        let all = self.known.end_ports();
        Ok(all.map(|(node, port, _)| Owner { node, port }).collect())
    }

    /// The n-th LID of one with the n-th of the other; what the query fixes stays fixed.
    fn paths_between<'a>(
        &'a self,
        source: Owner,
        target: Owner,
        want: &'a PathRecord,
        mask: u64,
    ) -> impl Iterator<Item = PathRecord> + 'a {
        let slids = if mask & PathRecord::SLID != 0 { vec![want.slid] } else { self.lids_of(source) };
        let dlids = if mask & PathRecord::DLID != 0 { vec![want.dlid] } else { self.lids_of(target) };
        let pkey = self.shared_pkey(source, target, (mask & PathRecord::PKEY != 0).then_some(want.pkey));
        // No partition in common: nothing to walk.
        let none = pkey.is_none() || slids.is_empty() || dlids.is_empty();
        let pairs = if none { 0 } else { slids.len().max(dlids.len()) };
        (0..pairs).filter_map(move |i| {
            let (slid, dlid) = (slids[i % slids.len()], dlids[i % dlids.len()]);
            let way = fit(self.walk(source, dlid)?, want, mask)?;
            let path =
                self.path_record(slid, dlid, way, pkey?, fit_life_time(self.life_time(), want, mask)?)?;
            let other_sl = mask & PathRecord::SL != 0 && want.sl != path.sl;
            (!other_sl).then_some(path)
        })
    }

    fn path_record(&self, slid: Lid, dlid: Lid, way: Way, pkey: PKey, life_time: u8) -> Option<PathRecord> {
        let gid = |lid: Lid| {
            let owner = self.map.owner(lid)?;
            Some(self.gid(self.known.port(owner.node, owner.port)?.guid))
        };
        Some(PathRecord {
            dgid: gid(dlid)?,
            sgid: gid(slid)?,
            dlid,
            slid,
            reversible: true,
            pkey,
            sl: self.sl_of(pkey),
            mtu_selector: selector::EXACTLY,
            mtu: way.mtu,
            rate_selector: selector::EXACTLY,
            rate: way.rate,
            life_time_selector: selector::EXACTLY,
            life_time,
            ..PathRecord::default()
        })
    }

    /// The path to a multicast group, from one port.
    fn group_path(&self, want: &PathRecord, mask: u64, sources: &[Owner]) -> Answer {
        let group = self.sa.groups.by_mgid(want.dgid).ok_or(status::REQ_INVALID_GID)?;
        let mut records = Records::of::<PathRecord>();
        let Some(source) = sources.first().filter(|_| sources.len() == 1) else {
            return Err(status::REQ_INSUFFICIENT_COMPONENTS);
        };
        let slid = self.lids_of(*source).first().copied().unwrap_or_default();
        let port = self.known.port(source.node, source.port).ok_or(status::REQ_INVALID_GID)?;
        let way = Way { mtu: group.mtu, rate: group.rate };
        if fit(way, want, mask).is_some() {
            records.push(&PathRecord {
                dgid: want.dgid,
                sgid: self.gid(port.guid),
                dlid: group.mlid,
                slid,
                flow_label: group.flow_label,
                hop_limit: group.hop_limit,
                traffic_class: group.traffic_class,
                reversible: true,
                pkey: group.pkey,
                sl: group.sl,
                mtu_selector: selector::EXACTLY,
                mtu: group.mtu,
                rate_selector: selector::EXACTLY,
                rate: group.rate,
                life_time_selector: selector::EXACTLY,
                life_time: group.life_time,
                ..PathRecord::default()
            });
        }
        Ok(records)
    }

    /// Follows the tables from a port to a LID.
    fn walk(&self, source: Owner, dlid: Lid) -> Option<Way> {
        let target = self.map.owner(dlid)?;
        let mut way = Way::BEST;
        let (mut node, mut out) = (source.node, source.port);
        for _ in 0..=self.map.graph.switches.len() + 1 {
            if node == target.node {
                // At the node itself: an adapter's port, or a switch, or a port that talks to itself.
                if (node, out) == (source.node, source.port) {
                    self.known.port(node, out).filter(|_| out > 0).into_iter().for_each(|p| way.through(p));
                }
                return Some(way);
            }
            if let Some(&switch) = self.map.switch_index.get(&node) {
                out = self.tables.port(switch, dlid);
                if out == NO_PATH || out == 0 {
                    return None;
                }
            } else if node != source.node {
                return None;
            }
            let port = self.known.port(node, out).filter(|port| port.is_linked())?;
            way.through(port);
            node = port.peer?.0;
        }
        None
    }

    /// LIDs of an end port.
    pub(super) fn lids_of(&self, owner: Owner) -> Vec<Lid> {
        let port = self.known.port(owner.node, owner.port);
        let base = port.and_then(|port| self.lids.get(&port.guid)).copied();
        let lmc = if owner.port == 0 { 0 } else { self.config.lmc };
        base.map_or(Vec::new(), |base| (0..1 << lmc).map(|offset| Lid(base.0 + offset)).collect())
    }

    /// A partition that both ports are in and may talk in, the one wanted if any (IBTA §10.9.3).
    fn shared_pkey(&self, a: Owner, b: Owner, want: Option<PKey>) -> Option<PKey> {
        let guid = |owner: Owner| Some(self.known.port(owner.node, owner.port)?.guid);
        let (a, b) = (guid(a)?, guid(b)?);
        let partitions = self.config.partitions.iter();
        let mut keys = partitions.filter_map(|p| Some((p.key_of(a)?, p.key_of(b)?)));
        let fits = |key: PKey| want.is_none_or(|want| want.base() == key.base());
        keys.find(|(x, y)| fits(*x) && (x.matches(*y) || a == b)).map(|(x, _)| x)
    }

    /// Service level of paths in a partition.
    fn sl_of(&self, pkey: PKey) -> u8 {
        let mut partitions = self.config.partitions.iter();
        partitions.find(|p| PKey(p.pkey).base() == pkey.base()).map_or(0, |p| p.sl & 15)
    }

    /// Longest time that a packet is on its way, as a code.
    fn life_time(&self) -> u8 {
        self.config.subnet_timeout
    }
}

/// The way as the query wants it: cut down where it asks for less; `None` where it asks for more.
fn fit(mut way: Way, want: &PathRecord, mask: u64) -> Option<Way> {
    let both = |a: u64, b: u64| mask & a != 0 && mask & b != 0;
    if both(PathRecord::MTU_SELECTOR, PathRecord::MTU) {
        way.mtu = match want.mtu_selector {
            selector::GREATER if way.mtu > want.mtu => way.mtu,
            selector::LESS if want.mtu > 1 => way.mtu.min(want.mtu - 1),
            selector::EXACTLY if way.mtu >= want.mtu && want.mtu > 0 => want.mtu,
            selector::LARGEST => way.mtu,
            _ => return None,
        };
    }
    if both(PathRecord::RATE_SELECTOR, PathRecord::RATE) {
        let (has, asked) = (rate::megabits(way.rate), rate::megabits(want.rate));
        way.rate = match want.rate_selector {
            selector::GREATER if has > asked => way.rate,
            selector::LESS if has < asked => way.rate,
            selector::LESS => {
                let slower = (2..=22).filter(|code| rate::megabits(*code) < asked);
                slower.max_by_key(|code| rate::megabits(*code))?
            }
            selector::EXACTLY if has >= asked && asked > 0 => want.rate,
            selector::LARGEST => way.rate,
            _ => return None,
        };
    }
    Some(way)
}

/// The life time as the query wants it. Longer than it is at most does no harm; shorter cannot be promised.
fn fit_life_time(has: u8, want: &PathRecord, mask: u64) -> Option<u8> {
    if mask & PathRecord::LIFE_TIME_SELECTOR == 0 || mask & PathRecord::LIFE_TIME == 0 {
        return Some(has);
    }
    match want.life_time_selector {
        selector::GREATER => Some(has.max(want.life_time.checked_add(1).filter(|t| *t < 64)?)),
        selector::LESS if has < want.life_time => Some(has),
        selector::EXACTLY if has <= want.life_time => Some(want.life_time),
        selector::LARGEST => Some(has),
        _ => None,
    }
}
