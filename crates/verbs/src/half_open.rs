//! Connections that have been taken and have not said what they are: how many there may be, and which one goes for another.
//!
//! A host that opens connections and says nothing must not lock others out (the SYN flood of RFC 4987, one layer up). So the
//! newest is always taken: it costs its own host the oldest where that has many, else the oldest of all. Pure bookkeeping,
//! for the device and for drivers that hold connections back themselves; resetting the loser is the caller's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// Half-open connections, all peers together, at most.
pub const MAX_HALF_OPEN: usize = 1024;
/// Half-open connections of one peer's address, at most.
pub const MAX_HALF_OPEN_PER_PEER: usize = 256;

/// Half-open connections by name, which must grow from one to the next.
#[derive(Debug)]
pub struct HalfOpen<K> {
    peers: BTreeMap<K, IpAddr>,
    of_peer: HashMap<IpAddr, BTreeSet<K>>,
}

impl<K> Default for HalfOpen<K> {
    fn default() -> HalfOpen<K> {
        HalfOpen { peers: BTreeMap::new(), of_peer: HashMap::new() }
    }
}

impl<K: Copy + Ord> HalfOpen<K> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// One more. Gives the one that has to go for it, which is not counted any more.
    #[must_use = "the one that has to go must be reset"]
    pub fn add(&mut self, name: K, peer: IpAddr) -> Option<K> {
        let of_peer = self.of_peer.get(&peer).filter(|names| names.len() >= MAX_HALF_OPEN_PER_PEER);
        let oldest = match of_peer {
            Some(names) => names.first(),
            None if self.peers.len() >= MAX_HALF_OPEN => self.peers.keys().next(),
            None => None,
        };
        let oldest = oldest.copied();
        if let Some(oldest) = oldest {
            self.remove(oldest);
        }
        self.peers.insert(name, peer);
        self.of_peer.entry(peer).or_default().insert(name);
        oldest
    }

    /// It has said what it is, or is gone. Nothing happens where it is not known.
    pub fn remove(&mut self, name: K) {
        let Some(peer) = self.peers.remove(&name) else { return };
        if let Some(names) = self.of_peer.get_mut(&peer) {
            names.remove(&name);
            if names.is_empty() {
                self.of_peer.remove(&peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: usize) -> IpAddr {
        IpAddr::from([192, 0, 2, n as u8])
    }

    #[test]
    fn a_peer_with_many_loses_its_own() {
        let mut half_open = HalfOpen::default();
        assert_eq!(half_open.add(0, peer(1)), None);
        for name in 1..=MAX_HALF_OPEN_PER_PEER {
            assert_eq!(half_open.add(name, peer(2)), None);
        }
        assert_eq!(half_open.add(5000, peer(2)), Some(1), "its own oldest, not the other's");
        assert_eq!(half_open.add(5001, peer(1)), None);
        half_open.remove(2);
        half_open.remove(2);
        assert_eq!(half_open.add(5002, peer(2)), None);
        assert_eq!(half_open.add(5003, peer(2)), Some(3));
    }

    #[test]
    fn many_peers_lose_the_oldest_of_all() {
        let mut half_open = HalfOpen::default();
        for name in 0..MAX_HALF_OPEN {
            assert_eq!(half_open.add(name, peer(name % 8)), None);
        }
        assert_eq!(half_open.add(MAX_HALF_OPEN, peer(100)), Some(0));
        assert_eq!(half_open.len(), MAX_HALF_OPEN);
        for name in 0..=MAX_HALF_OPEN {
            half_open.remove(name);
        }
        assert!(half_open.is_empty() && half_open.of_peer.is_empty());
    }
}
