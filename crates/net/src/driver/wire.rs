//! Either kind of port, and the capture beside it: all that the engine knows of the network.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use everywire_verbs::{GidType, PathLink, Transmit};
use smallvec::SmallVec;

use crate::capture::{self, Capture};
use crate::raw::RawPort;
use crate::route::Interface;
use crate::udp::{MAX_SEND_BATCH, Outgoing, PathEvent, PortCounters, Received, UdpPort};

/// Pieces whose list needs no memory of its own.
const FEW: usize = 4;

/// A port of one of the kinds.
#[derive(Debug)]
pub(crate) enum Port {
    Udp(UdpPort),
    Raw(RawPort),
}

/// A device's way to the network.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) port: Port,
    pub(crate) capture: Option<Capture>,
    /// The device's address.
    pub(crate) local: IpAddr,
}

impl Wire {
    /// Receives one batch and hands over its pieces; returns whether there may be more.
    pub(crate) fn receive(
        &mut self,
        lost: &mut u64,
        paths: &mut Vec<PathEvent>,
        mut each: impl FnMut(&Received<'_>),
    ) -> bool {
        let Wire { port, capture, .. } = self;
        match port {
            Port::Udp(port) => port.receive(lost, paths, |received| {
                if let Some(capture) = capture {
                    capture_received(capture, &received);
                }
                each(&received);
            }),
            Port::Raw(port) => port.receive(lost, capture.as_mut(), |received| each(&received)),
        }
    }

    /// How many frames the port has refused as none of its protocol since it was last asked.
    #[inline]
    pub(crate) fn take_malformed(&mut self) -> u64 {
        match &mut self.port {
            Port::Udp(_) => 0,
            Port::Raw(port) => port.take_malformed(),
        }
    }

    /// Sends `items` in order; returns how many are done with.
    pub(crate) fn send(&mut self, now: Instant, items: &[Transmit], paths: &mut Vec<PathEvent>) -> usize {
        let mut done = 0;
        while done < items.len() {
            let batch = &items[done..items.len().min(done + MAX_SEND_BATCH)];
            let outgoing: SmallVec<[Outgoing<'_>; FEW]> = batch.iter().map(outgoing).collect();
            let sent = match &mut self.port {
                Port::Udp(port) => port.send(&outgoing, paths),
                Port::Raw(port) => port.send(now, &outgoing, self.capture.as_mut(), paths),
            };
            if let (Port::Udp(_), Some(capture)) = (&self.port, &mut self.capture) {
                batch[..sent].iter().for_each(|item| capture_sent(capture, item));
            }
            done += sent;
            if sent < batch.len() {
                break;
            }
        }
        done
    }

    /// Work of the port's own: errors that came back, datagrams that waited for a neighbour.
    pub(crate) fn housekeeping(&mut self, now: Instant, paths: &mut Vec<PathEvent>) {
        match &mut self.port {
            Port::Udp(port) => port.drain_errors(paths),
            Port::Raw(port) => port.send_waiting(now, self.capture.as_mut(), paths),
        }
    }

    /// The device's interface is this one now, or gone.
    pub(crate) fn follow(&mut self, interface: Option<&Interface>) {
        match &mut self.port {
            Port::Udp(port) => port.follow(interface),
            Port::Raw(port) => port.follow(interface),
        }
    }

    /// Whether the port must be looked at again soon though no descriptor will tell.
    pub(crate) fn is_waiting(&self) -> bool {
        match &self.port {
            Port::Udp(_) => false,
            Port::Raw(port) => port.is_waiting(),
        }
    }

    /// Whether several datagrams can be sent as one piece.
    pub(crate) fn takes_trains(&self) -> bool {
        match &self.port {
            Port::Udp(port) => port.has_gso(),
            Port::Raw(_) => true,
        }
    }

    pub(crate) fn join(&mut self, group: IpAddr, ty: GidType) -> io::Result<()> {
        match &mut self.port {
            Port::Udp(port) => port.join(group),
            Port::Raw(port) => port.join(group, ty == GidType::RoceV1),
        }
    }

    pub(crate) fn leave(&mut self, group: IpAddr, ty: GidType) {
        match &mut self.port {
            Port::Udp(port) => port.leave(group),
            Port::Raw(port) => port.leave(group, ty == GidType::RoceV1),
        }
    }

    pub(crate) fn counters(&self) -> PortCounters {
        match &self.port {
            Port::Udp(port) => port.counters(),
            Port::Raw(port) => port.counters(),
        }
    }

    pub(crate) fn for_each_fd(&self, each: impl FnMut(BorrowedFd<'_>)) {
        match &self.port {
            Port::Udp(port) => port.fds().for_each(each),
            Port::Raw(port) => port.fds().for_each(each),
        }
    }

    /// The socket that sends from this port.
    pub(crate) fn sender(&self, src_port: u16) -> Option<BorrowedFd<'_>> {
        match &self.port {
            Port::Udp(port) => port.sender(src_port),
            Port::Raw(port) => port.fds().next(),
        }
    }

    pub(crate) fn flush_capture(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.flush();
        }
    }
}

fn outgoing(item: &Transmit) -> Outgoing<'_> {
    Outgoing {
        src_port: item.src_port,
        dst: destination(item),
        tos: item.traffic_class,
        ttl: item.hop_limit,
        segment: item.segment,
        bytes: &item.buf,
        roce_v1: item.link == PathLink::Grh,
    }
}

/// The destination, with the flow label where it goes.
#[inline]
fn destination(item: &Transmit) -> SocketAddr {
    let mut dst = item.dst;
    if let SocketAddr::V6(v6) = &mut dst {
        v6.set_flowinfo(item.flow_label);
    }
    dst
}

#[cold]
fn capture_received(capture: &mut Capture, received: &Received<'_>) {
    for payload in received.segments() {
        capture.received(&capture::Datagram {
            src: received.src,
            dst: (received.dst, crate::udp::ROCE_V2_PORT).into(),
            tos: received.tos,
            ttl: received.ttl,
            payload,
        });
    }
}

#[cold]
fn capture_sent(capture: &mut Capture, item: &Transmit) {
    for (id, payload) in item.segments().enumerate() {
        let datagram = capture::Datagram {
            src: (item.src, item.src_port).into(),
            dst: destination(item),
            tos: item.traffic_class,
            ttl: item.hop_limit,
            payload,
        };
        capture.sent(&datagram, id as u16);
    }
}
