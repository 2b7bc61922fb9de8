//! One congestion window for each peer address that queue pairs are connected to.
//!
//! A window lives as long as some queue pair has the peer as its destination; so the table is bounded by the number of
//! queue pairs, whatever arrives from the network. What a window does is `transport::congestion`'s affair.

use std::collections::HashMap;
use std::net::IpAddr;

use everywire_transport::congestion::window::PeerWindow;
use everywire_wire::Qpn;

struct Peer {
    ip: IpAddr,
    window: PeerWindow,
    users: u32,
}

/// Windows by peer.
#[derive(Default)]
pub(crate) struct Windows {
    index: HashMap<IpAddr, usize>,
    peers: Vec<Peer>,
    /// Which one was asked for last: packets come in runs from one peer.
    last: usize,
    /// Whether a window may have room for those who wait.
    touched: bool,
}

impl Windows {
    /// The window of a peer.
    #[inline]
    pub(crate) fn get(&mut self, ip: IpAddr) -> &mut PeerWindow {
        self.touched = true;
        if self.peers.get(self.last).is_none_or(|peer| peer.ip != ip) {
            self.last = self.find(ip);
        }
        &mut self.peers[self.last].window
    }

    fn find(&mut self, ip: IpAddr) -> usize {
        *self.index.entry(ip).or_insert_with(|| {
            self.peers.push(Peer { ip, window: PeerWindow::default(), users: 0 });
            self.peers.len() - 1
        })
    }

    /// One more queue pair is connected to the peer.
    pub(crate) fn add_user(&mut self, ip: IpAddr) {
        let index = self.find(ip);
        self.peers[index].users += 1;
    }

    /// One fewer; the last takes the window with it.
    pub(crate) fn remove_user(&mut self, ip: IpAddr, qpn: Qpn) {
        let Some(&index) = self.index.get(&ip) else { return };
        let peer = &mut self.peers[index];
        peer.window.forget(qpn);
        peer.users = peer.users.saturating_sub(1);
        if peer.users > 0 {
            return;
        }
        self.index.remove(&ip);
        self.peers.swap_remove(index);
        if let Some(moved) = self.peers.get(index) {
            self.index.insert(moved.ip, index);
        }
    }

    /// The next queue pair that can go on, of the window used last.
    #[inline]
    pub(crate) fn next_waiter(&mut self) -> Option<Qpn> {
        if !self.touched {
            return None;
        }
        let waiter = self.peers.get_mut(self.last).and_then(|peer| peer.window.next_waiter());
        self.touched = waiter.is_some();
        waiter
    }

    /// How many windows there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_go_with_their_last_user() {
        let ips: Vec<IpAddr> = (1..=3).map(|n| IpAddr::from([10, 0, 0, n])).collect();
        let mut windows = Windows::default();
        for &ip in &ips {
            windows.add_user(ip);
        }
        windows.add_user(ips[0]);
        windows.get(ips[2]).charge(77);
        windows.remove_user(ips[0], Qpn::new(5));
        assert_eq!(windows.len(), 3);
        windows.remove_user(ips[0], Qpn::new(6));
        assert_eq!(windows.len(), 2);
        assert_eq!(windows.get(ips[2]).in_flight(), 77, "moved, not lost");
        windows.get(ips[2]).wait(Qpn::new(9), 1);
        assert_eq!(windows.next_waiter(), Some(Qpn::new(9)));
        assert_eq!(windows.next_waiter(), None);
    }
}
