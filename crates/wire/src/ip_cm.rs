//! RDMA IP CM service: IP addresses and ports on top of the InfiniBand CM.
//!
//! Read IBTA annex A11 first. An IP port becomes a service ID; the addresses stand in a 36-byte header that begins the
//! private data of REQ and SIDR_REQ, and the consumer's own private data follow. Linux's rdma_cm speaks this on every fabric
//! with IB management. What a listener does with an address is the transport's affair.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::layout::layout;

layout! {
    /// The header at the start of the private data (annex A11.4).
    IpCmHeader, 36 bytes {
        /// Major (high four bits) and minor version: 0.0.
        version: u8, 0, 0..8;
        /// 4 or 6.
        ip_version: u8, 1, 0..4;
        /// Reserved.
        reserved_1: u8, 1, 4..8;
        /// The sender's port.
        src_port: u16, 2, 0..16;
        /// The sender's address; an IPv4 one in the last four bytes. See [`IpCmHeader::src`].
        src_bytes: [u8; 16], 4, 0..128;
        /// The receiver's address. See [`IpCmHeader::dst`].
        dst_bytes: [u8; 16], 20, 0..128;
    }
}

impl IpCmHeader {
    /// The header for a connection from `src` to `dst`. Both are of the same IP version; where they are not, IPv4 is written
    /// as IPv4-mapped IPv6.
    pub fn new(src: SocketAddr, dst: IpAddr) -> IpCmHeader {
        let v4 = src.is_ipv4() && dst.is_ipv4();
        let bytes = |ip: IpAddr| match ip {
            IpAddr::V4(a) if v4 => {
                let [w, x, y, z] = a.octets();
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, w, x, y, z]
            }
            IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
            IpAddr::V6(a) => a.octets(),
        };
        IpCmHeader {
            version: 0,
            ip_version: if v4 { 4 } else { 6 },
            reserved_1: 0,
            src_port: src.port(),
            src_bytes: bytes(src.ip()),
            dst_bytes: bytes(dst),
        }
    }

    /// The sender's address and port; `None` where the IP version is neither 4 nor 6. Scopes do not travel: 0.
    pub fn src(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.address(&self.src_bytes)?, self.src_port))
    }

    /// The receiver's address; `None` where the IP version is neither 4 nor 6. The port is in the service ID.
    pub fn dst(&self) -> Option<IpAddr> {
        self.address(&self.dst_bytes)
    }

    /// A major version other than 0 may mean anything (annex A11.4.1).
    pub const fn is_supported(&self) -> bool {
        self.version >> 4 == 0 && matches!(self.ip_version, 4 | 6)
    }

    fn address(&self, bytes: &[u8; 16]) -> Option<IpAddr> {
        match self.ip_version {
            4 => Some(Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]).into()),
            6 => Some(Ipv6Addr::from(*bytes).into()),
            _ => None,
        }
    }
}

/// What a port number belongs to: the 16 bits above the port in a service ID. As Linux's `rdma_port_space`; for the IP ones
/// annex A11's prefix 0x01 and the IP protocol number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortSpace(pub u16);

impl PortSpace {
    /// IP over InfiniBand multicast groups.
    pub const IPOIB: PortSpace = PortSpace(0x0002);
    /// Connections.
    pub const TCP: PortSpace = PortSpace(0x0106);
    /// Datagrams.
    pub const UDP: PortSpace = PortSpace(0x0111);
    /// Any native InfiniBand service.
    pub const IB: PortSpace = PortSpace(0x013f);
}

/// The service ID of a port.
#[inline]
pub const fn service_id(port_space: PortSpace, port: u16) -> u64 {
    (port_space.0 as u64) << 16 | port as u64
}

/// The port space and port of a service ID, if it is one of the RDMA IP CM service: the high 32 bits are zero.
#[inline]
pub const fn split_service_id(service_id: u64) -> Option<(PortSpace, u16)> {
    if service_id >> 32 != 0 {
        return None;
    }
    Some((PortSpace((service_id >> 16) as u16), service_id as u16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::assert_complete;

    #[test]
    fn table_is_complete() {
        assert_complete("IpCmHeader", IpCmHeader::FIELDS, IpCmHeader::LEN);
    }

    #[test]
    fn service_ids_as_linux_forms_them() {
        // From a captured REQ to NVMe's port 4420.
        assert_eq!(service_id(PortSpace::TCP, 4420), 0x0106_1144);
        assert_eq!(split_service_id(0x0106_1144), Some((PortSpace::TCP, 4420)));
        assert_eq!(split_service_id(0x1_0106_1144), None);
    }

    #[test]
    fn ipv4_stands_in_the_last_bytes() {
        let h = IpCmHeader::new("10.1.2.3:4000".parse().unwrap(), "10.1.2.4".parse().unwrap());
        let mut out = [0xee; 36];
        h.emit(&mut out);
        assert_eq!(out[..4], [0, 0x40, 0x0f, 0xa0]);
        assert_eq!(out[4..20], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 1, 2, 3]);
        assert_eq!(out[20..36], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 1, 2, 4]);
        assert_eq!(h.src(), Some("10.1.2.3:4000".parse().unwrap()));
        assert_eq!(IpCmHeader { ip_version: 5, ..h }.dst(), None);
    }

    #[test]
    fn ipv6_and_mixed_versions() {
        let h = IpCmHeader::new("[fd77::b]:9".parse().unwrap(), "fd77::a".parse().unwrap());
        assert_eq!((h.ip_version, h.src(), h.dst()), (6, "[fd77::b]:9".parse().ok(), "fd77::a".parse().ok()));
        let h = IpCmHeader::new("10.0.0.1:9".parse().unwrap(), "fd77::a".parse().unwrap());
        assert_eq!((h.ip_version, h.src()), (6, "[::ffff:10.0.0.1]:9".parse().ok()));
    }
}
