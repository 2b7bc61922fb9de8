//! TransportIDs: the names of initiator ports that reservations remember. SPC-4 §7.6.4.
//!
//! iSCSI has the node name, with the ISID for a port (RFC 7143 §4.7); SRP has its 16-byte initiator port identifier.
//! A name is kept as the standard's bytes, so that it compares, persists and travels without another form.

use std::fmt;
use std::sync::Arc;

use crate::bytes::{put, u8_at, u16_at};

const ISCSI: u8 = 0x5;
const SRP: u8 = 0x4;
/// TransportID formats of iSCSI: a node, or a node's port.
const FORMAT_PORT: u8 = 0x40;
/// Bytes of every TransportID but iSCSI's.
const FIXED_LEN: usize = 24;
/// Longest iSCSI name that is taken, in bytes (RFC 7143 §4.2.7.2: 223).
pub const MAX_ISCSI_NAME: usize = 223;
/// What stands between an iSCSI name and an ISID.
const ISID_SEPARATOR: &str = ",i,0x";
/// Longest TransportID: 4 bytes, name, separator, ISID, NUL, padded to 4.
pub const MAX_TRANSPORT_ID: usize = (4 + MAX_ISCSI_NAME + ISID_SEPARATOR.len() + 12 + 1).next_multiple_of(4);

/// Protocol identifiers of SPC-4 table 361 that appear here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// SRP.
    Srp,
    /// iSCSI, iSER too.
    Iscsi,
}

impl Protocol {
    /// The code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Srp => SRP,
            Self::Iscsi => ISCSI,
        }
    }

    /// The version descriptor of its standard (SPC-4 table 145): SRP, iSCSI without a version.
    pub const fn version_descriptor(self) -> u16 {
        match self {
            Self::Srp => 0x0940,
            Self::Iscsi => 0x0960,
        }
    }
}

/// An initiator port's TransportID.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransportId(Arc<[u8]>);

impl TransportId {
    /// The port of an iSCSI initiator: its name, and the session's ISID. `None` for a name over 223 bytes.
    pub fn iscsi(name: &str, isid: [u8; 6]) -> Option<Self> {
        let isid = isid.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        Self::iscsi_text(FORMAT_PORT, name, &format!("{name}{ISID_SEPARATOR}{isid}"))
    }

    fn iscsi_text(format: u8, name: &str, text: &str) -> Option<Self> {
        if name.is_empty() || name.len() > MAX_ISCSI_NAME || text.contains('\0') {
            return None;
        }
        // SPC-4 §7.6.4.6: NUL terminated, padded to a multiple of 4, at least 20 bytes of text.
        let text_len = (text.len() + 1).next_multiple_of(4).max(20);
        let mut bytes = vec![0; 4 + text_len];
        bytes[0] = format | ISCSI;
        put(&mut bytes, 2, (text_len as u16).to_be_bytes());
        bytes[4..4 + text.len()].copy_from_slice(text.as_bytes());
        Some(Self(bytes.into()))
    }

    /// The port of an SRP initiator: its 16-byte initiator port identifier.
    pub fn srp(port: [u8; 16]) -> Self {
        let mut bytes = [0; FIXED_LEN];
        bytes[0] = SRP;
        put(&mut bytes, 8, port);
        Self(bytes.as_slice().into())
    }

    /// Reads one TransportID from the start of `bytes`; gives how many it took. `None` for a protocol or format that no
    /// transport here has, or a length that does not fit.
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        match bytes.first()? & 0x0f {
            SRP if bytes[0] & 0xc0 == 0 => Some((Self(bytes.get(..FIXED_LEN)?.into()), FIXED_LEN)),
            ISCSI if bytes[0] & 0xc0 <= FORMAT_PORT => {
                let len = usize::from(u16_at(bytes, 2));
                let text = bytes.get(4..4 + len)?;
                if len % 4 != 0 || len < 20 || 4 + len > MAX_TRANSPORT_ID || text.last() != Some(&0) {
                    return None;
                }
                let text = std::str::from_utf8(text).ok()?.trim_end_matches('\0');
                let name = match text.split_once(ISID_SEPARATOR) {
                    Some((name, _)) if bytes[0] & 0xc0 == FORMAT_PORT => name,
                    None if bytes[0] & 0xc0 == 0 => text,
                    _ => return None,
                };
                Some((Self::iscsi_text(bytes[0] & 0xc0, name, text)?, 4 + len))
            }
            _ => None,
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its protocol.
    pub fn protocol(&self) -> Protocol {
        if u8_at(&self.0, 0) & 0x0f == SRP { Protocol::Srp } else { Protocol::Iscsi }
    }

    /// True for the name of one port: an iSCSI node name without an ISID stands for many.
    pub fn is_port(&self) -> bool {
        self.protocol() == Protocol::Srp || self.0[0] & 0xc0 == FORMAT_PORT
    }
}

impl fmt::Display for TransportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.protocol() == Protocol::Iscsi {
            return f.write_str(&crate::bytes::text(&self.0[4..]));
        }
        self.0[8..FIXED_LEN].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TransportId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {self}", self.protocol())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iscsi_port_names_of_the_standard() {
        let id =
            TransportId::iscsi("iqn.1993-08.org.debian:01:ab", [0, 2, 0x3d, 0, 0, 1]).expect("short enough");
        let text = b"iqn.1993-08.org.debian:01:ab,i,0x00023d000001";
        assert_eq!(
            id.as_bytes()[..4],
            [0x45, 0, 0, 48],
            "format 01b, protocol 5; 45 characters and a NUL, padded"
        );
        assert_eq!(&id.as_bytes()[4..4 + text.len()], text);
        assert_eq!(TransportId::parse(id.as_bytes()), Some((id.clone(), 52)));
        assert_eq!(id.to_string().as_bytes(), text);
        assert_eq!(TransportId::iscsi(&"x".repeat(224), [0; 6]), None);
        let longest = TransportId::iscsi(&"x".repeat(223), [0; 6]).expect("fits");
        assert_eq!(longest.as_bytes().len(), MAX_TRANSPORT_ID);
        assert!(TransportId::parse(longest.as_bytes()).is_some());
    }

    #[test]
    fn a_node_name_is_no_port() {
        let mut node = vec![0x05, 0, 0, 20];
        node.extend_from_slice(b"iqn.2026-01.a:b\0\0\0\0\0");
        let (node, len) = TransportId::parse(&node).expect("good");
        assert_eq!((len, node.is_port(), node.to_string()), (24, false, "iqn.2026-01.a:b".to_owned()));
        assert!(TransportId::srp([1; 16]).is_port());
    }

    #[test]
    fn srp_ports_are_24_bytes() {
        let id = TransportId::srp(std::array::from_fn(|i| i as u8));
        assert_eq!(id.as_bytes()[..8], [4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(id.to_string(), "000102030405060708090a0b0c0d0e0f");
        assert_eq!(TransportId::parse(id.as_bytes()), Some((id, 24)));
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for bad in [&[][..], &[4; 23], &[0x45, 0, 0, 20], &[0x45, 0, 0, 19, 0, 0], &[6; 24], &[0x84; 24]] {
            assert_eq!(TransportId::parse(bad), None, "{bad:02x?}");
        }
    }
}
