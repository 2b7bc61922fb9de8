//! What a harness hands to the suite: two devices, their addresses, and how patient to be.
//!
//! Two ends may be one device: everything then goes through its own loopback. Nothing here drives anything.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use everywire_verbs::{Device, Wire};

/// One end of a pair: a device and the address at which the other end reaches it.
#[derive(Clone, Debug)]
pub struct End {
    /// The device. Somebody drives it.
    pub device: Device,
    /// Its address.
    pub ip: IpAddr,
}

impl End {
    /// A device at its first address.
    ///
    /// # Panics
    /// If it has no address.
    pub fn new(device: &Device) -> End {
        End { device: device.clone(), ip: device.gids()[0].ip }
    }

    /// A port of this end's address.
    pub fn port(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }
}

/// Two devices that reach each other.
#[derive(Clone)]
pub struct Pair {
    /// The end that asks: it sends, reads and connects.
    pub a: End,
    /// The end that answers.
    pub b: End,
    /// A multicast group that datagrams between them reach, or why there is none.
    pub group: Result<IpAddr, &'static str>,
    /// Cuts end B off for good, as a power failure does, or why that cannot be done here. The suite does it last.
    pub kill: Result<Rc<dyn Fn()>, &'static str>,
}

impl Pair {
    /// A pair without multicast that cannot be cut.
    pub fn new(a: &Device, b: &Device) -> Pair {
        let why = "this run has none";
        Pair { a: End::new(a), b: End::new(b), group: Err(why), kill: Err(why) }
    }

    /// What is between them.
    pub fn wire(&self) -> Wire {
        self.a.device.wire()
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pair({:?}, {:?}, group {:?})", self.a, self.b, self.group)
    }
}

/// How a run goes about it.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Packets are lost on the way: messages of unreliable services may not arrive, all else must.
    pub lossy: bool,
    /// How long something that must happen may take.
    pub patience: Duration,
    /// How long nothing may happen until it counts as never.
    pub quiet: Duration,
    /// Of the rows that differ in nothing but flags, every how many-th is run; 1 runs all.
    pub thin: usize,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { lossy: false, patience: Duration::from_secs(20), quiet: Duration::from_millis(2), thin: 1 }
    }
}
