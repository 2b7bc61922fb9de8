//! The Ethernet below a simulated host's TCP: frames that arrived and frames to send, as smoltcp's device.
//!
//! Nothing is lost or delayed here; the world's links do that. What leaves goes by [`Sent::mend`].

use std::collections::VecDeque;
use std::net::SocketAddr;

use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant as TcpInstant;

use super::ack::Sent;

/// Bytes of Ethernet's header.
const ETHERNET: usize = 14;

/// Frames on their way through the stack.
#[derive(Debug)]
pub(super) struct Frames {
    pub(super) mtu: usize,
    pub(super) inbound: VecDeque<Vec<u8>>,
    pub(super) outbound: Vec<Vec<u8>>,
    sent: Sent,
}

impl Frames {
    pub(super) fn new(mtu: usize) -> Frames {
        Frames { mtu, inbound: VecDeque::new(), outbound: Vec::new(), sent: Sent::default() }
    }

    /// A connection is over: of our end and the peer's.
    pub(super) fn forget(&mut self, ends: (SocketAddr, SocketAddr)) {
        self.sent.forget(ends);
    }

    fn outbound(&mut self) -> Outbound<'_> {
        Outbound { frames: &mut self.outbound, sent: &mut self.sent }
    }
}

pub(super) struct Inbound(Vec<u8>);

pub(super) struct Outbound<'a> {
    frames: &'a mut Vec<Vec<u8>>,
    sent: &'a mut Sent,
}

impl phy::RxToken for Inbound {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl phy::TxToken for Outbound<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.sent.mend(&mut frame);
        self.frames.push(frame);
        result
    }
}

impl phy::Device for Frames {
    type RxToken<'a> = Inbound;
    type TxToken<'a> = Outbound<'a>;

    fn receive(&mut self, _: TcpInstant) -> Option<(Inbound, Outbound<'_>)> {
        let frame = self.inbound.pop_front()?;
        Some((Inbound(frame), self.outbound()))
    }

    fn transmit(&mut self, _: TcpInstant) -> Option<Outbound<'_>> {
        Some(self.outbound())
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + ETHERNET;
        capabilities
    }
}
