//! Which ports are taken, by whom.
//!
//! As rdma_cm's port spaces: a port with a wildcard address excludes all others on it, one with an address only the same
//! address. Port 0 draws a free one. No sockets are involved; these ports only exist in connection requests.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rand_chacha::ChaCha8Rng;
use rand_core::Rng;

/// Where port 0 draws from: as Linux's default `ip_local_port_range`, up to the end.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=65_535;

/// A port taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    /// `None`: on all addresses.
    pub ip: Option<IpAddr>,
    pub port: u16,
}

/// One port space.
#[derive(Default)]
pub(super) struct Ports {
    taken: BTreeMap<u16, Vec<Option<IpAddr>>>,
}

impl Ports {
    /// Takes a port; `None` if it is in use, or if no port is free.
    pub fn bind(&mut self, ip: Option<IpAddr>, port: u16, rng: &mut ChaCha8Rng) -> Option<Bound> {
        let port = if port == 0 { self.free(rng)? } else { port };
        let holders = self.taken.entry(port).or_default();
        if holders.iter().any(|&held| held.is_none() || ip.is_none() || held == ip) {
            return None;
        }
        holders.push(ip);
        Some(Bound { ip, port })
    }

    /// Gives it back.
    pub fn release(&mut self, bound: Bound) {
        if let Some(holders) = self.taken.get_mut(&bound.port) {
            if let Some(at) = holders.iter().position(|&held| held == bound.ip) {
                holders.swap_remove(at);
            }
            if holders.is_empty() {
                self.taken.remove(&bound.port);
            }
        }
    }

    fn free(&self, rng: &mut ChaCha8Rng) -> Option<u16> {
        let (first, count) = (u32::from(*EPHEMERAL.start()), EPHEMERAL.len() as u32);
        let start = rng.next_u32() % count;
        (0..count)
            .map(|step| (first + (start + step) % count) as u16)
            .find(|port| !self.taken.contains_key(port))
    }

    /// How many ports are taken.
    pub fn len(&self) -> usize {
        self.taken.values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;

    #[test]
    fn addresses_and_wildcards() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut ports = Ports::default();
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let bound = ports.bind(Some(a), 7, &mut rng).unwrap();
        assert_eq!(ports.bind(Some(a), 7, &mut rng), None);
        assert_eq!(ports.bind(None, 7, &mut rng), None);
        assert!(ports.bind(Some(b), 7, &mut rng).is_some());
        ports.release(bound);
        assert!(ports.bind(Some(a), 7, &mut rng).is_some());
        assert!(ports.bind(None, 8, &mut rng).is_some());
        assert_eq!(ports.bind(Some(a), 8, &mut rng), None);
        assert_eq!(ports.len(), 3);
    }

    #[test]
    fn drawn_ports_are_free_and_run_out() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut ports = Ports::default();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..EPHEMERAL.len() {
            let bound = ports.bind(None, 0, &mut rng).unwrap();
            assert!(EPHEMERAL.contains(&bound.port) && seen.insert(bound.port));
            if seen.len() == 2000 {
                break;
            }
        }
        for port in EPHEMERAL {
            let _ = ports.bind(None, port, &mut rng);
        }
        assert_eq!(ports.bind(None, 0, &mut rng), None);
    }
}
