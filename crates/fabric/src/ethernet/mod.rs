//! Ethernet devices of the simulated network. So far a learning switch; PFC and ECN are not modelled yet.

pub mod switch;

/// A 48-bit MAC address.
pub type Mac = [u8; 6];

/// The addresses and the VLAN of a frame, or `None` when it is too short for an Ethernet header.
pub(crate) struct Addresses {
    pub destination: Mac,
    pub source: Mac,
    /// The VID of an IEEE 802.1Q tag; zero without one.
    pub vlan: u16,
}

impl Addresses {
    pub fn of(frame: &[u8]) -> Option<Self> {
        let destination = frame.get(0..6)?.try_into().ok()?;
        let source = frame.get(6..12)?.try_into().ok()?;
        let ethertype = frame.get(12..14)?;
        let vlan = match frame.get(14..16) {
            Some(tci) if ethertype == [0x81, 0x00] => u16::from_be_bytes([tci[0], tci[1]]) & 0x0fff,
            _ => 0,
        };
        Some(Addresses { destination, source, vlan })
    }
}
