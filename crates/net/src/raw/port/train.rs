//! Trains of RoCE v2 that leave a raw port as one frame, for the interface or the kernel to cut.
//!
//! Read first: `struct virtio_net_hdr`, packet(7) on PACKET_VNET_HDR. Most of what a frame costs is its way through the kernel,
//! so sixteen datagrams in one are nearly twice as fast (docs/performance.md). `frame.rs` puts them together.

use std::os::fd::AsFd;

use everywire_wire::MacAddr;

use super::RawPort;
use crate::route;
use crate::udp::Outgoing;

impl RawPort {
    /// Sends a train of RoCE v2 as one frame; false if the kernel takes no more now, `None` if it is to be cut here.
    pub(super) fn send_train(&mut self, item: &Outgoing<'_>, mac: MacAddr) -> Option<bool> {
        let segment = item.segment.filter(|segment| *segment < item.bytes.len())?;
        let fits = segment + route::header_overhead(self.local) <= self.interface.mtu;
        if !self.gso || !fits || item.roce_v1 {
            return None;
        }
        let train = self.sender.train(item, mac, segment);
        loop {
            match self.send.send_frames(self.socket.as_fd(), std::iter::once(&train[..])) {
                Ok(_) => {
                    self.counters.send_calls += 1;
                    self.counters.sent_pieces += 1;
                    return Some(true);
                }
                Err(error) => match error.raw_os_error().unwrap_or(0) {
                    libc::EINTR => {}
                    libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => return Some(false),
                    libc::EINVAL | libc::EIO | libc::EOPNOTSUPP | libc::EMSGSIZE => {
                        // Linux before 6.2 knows no such trains of packet sockets.
                        tracing::debug!(%error, "trains are cut here");
                        self.gso = false;
                        return None;
                    }
                    _ => return None,
                },
            }
        }
    }
}
