//! The discovery log page: a 1024-byte header and 1024-byte entries. NVMe-oF 1.1 §5.1 (NVMe Base 2.0 §5.16.1.23).

use std::net::IpAddr;

use super::PduError;

layout! {
    /// Header of the discovery log page.
    pub struct DiscoveryHeader[1024] {
        /// Generation counter.
        genctr: u64 = 0,
        /// Number of entries.
        numrec: u64 = 8,
        /// Record format: 0.
        recfmt: u16 = 16,
    }
}

layout! {
    /// An entry of the discovery log page.
    pub struct DiscoveryEntry[1024] {
        /// Transport type, `TRTYPE_*`.
        trtype: u8 = 0,
        /// Address family, `ADRFAM_*`.
        adrfam: u8 = 1,
        /// Subsystem type, `SUBTYPE_*`.
        subtype: u8 = 2,
        /// Transport requirements: secure channel 01b required, 10b not required.
        treq: u8 = 3,
        /// Port identifier.
        portid: u16 = 4,
        /// Controller identifier, FFFFh for the dynamic model.
        cntlid: u16 = 6,
        /// Maximum admin submission queue size.
        asqsz: u16 = 8,
        /// Entry flags.
        eflags: u16 = 10,
        /// Transport service identifier: a port number in ASCII.
        trsvcid: [u8; 32] = 32,
        /// Subsystem NQN.
        subnqn: [u8; 256] = 256,
        /// Transport address in ASCII.
        traddr: [u8; 256] = 512,
        /// RDMA QP service type, `QPTYPE_*`.
        rdma_qptype: u8 = 768,
        /// RDMA provider type, `PRTYPE_*`.
        rdma_prtype: u8 = 769,
        /// RDMA connection management service: 1 is RDMA_CM.
        rdma_cms: u8 = 770,
        /// RDMA partition key.
        rdma_pkey: u16 = 776,
    }
}

/// RDMA transport.
pub const TRTYPE_RDMA: u8 = 1;
/// TCP transport.
pub const TRTYPE_TCP: u8 = 3;
/// IPv4.
pub const ADRFAM_IPV4: u8 = 1;
/// IPv6.
pub const ADRFAM_IPV6: u8 = 2;
/// A referral to another discovery service.
pub const SUBTYPE_REFERRAL: u8 = 1;
/// An NVM subsystem.
pub const SUBTYPE_NVM: u8 = 2;
/// This discovery subsystem.
pub const SUBTYPE_CURRENT_DISCOVERY: u8 = 3;
/// Reliable connected.
pub const QPTYPE_CONNECTED: u8 = 1;
/// No provider type named.
pub const PRTYPE_NONE: u8 = 1;
/// RoCE v2.
pub const PRTYPE_ROCE_V2: u8 = 4;
/// RDMA_CM.
pub const CMS_RDMA_CM: u8 = 1;
/// Secure channel not required.
pub const TREQ_NOT_REQUIRED: u8 = 2;

impl DiscoveryEntry {
    /// The transport address, if it is an IP address.
    pub fn address(&self) -> Option<IpAddr> {
        text(&self.traddr).parse().ok()
    }

    /// The port number.
    pub fn port(&self) -> Option<u16> {
        text(&self.trsvcid).parse().ok()
    }

    /// The subsystem NQN, as text.
    pub fn subsystem(&self) -> &str {
        text(&self.subnqn)
    }
}

/// Writes text into a zero-padded field; cut at the field's end.
pub fn field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let n = text.len().min(N);
    field[..n].copy_from_slice(&text.as_bytes()[..n]);
    field
}

/// Reads a zero- or space-padded text field; what is not UTF-8 reads as empty.
pub fn text(field: &[u8]) -> &str {
    let len = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    std::str::from_utf8(&field[..len]).unwrap_or_default().trim_end()
}

/// Reads the entries of a log page that was read whole: as many as NUMREC says and the bytes hold.
pub fn parse_log(bytes: &[u8]) -> Result<(DiscoveryHeader, Vec<DiscoveryEntry>), PduError> {
    let header = DiscoveryHeader::parse(bytes)?;
    if header.recfmt != 0 {
        let value = header.recfmt.into();
        return Err(PduError::Invalid { what: "discovery log page", field: "RECFMT", value });
    }
    let rest = &bytes[DiscoveryHeader::LEN..];
    let have = rest.len() / DiscoveryEntry::LEN;
    if header.numrec > have as u64 {
        let need =
            DiscoveryHeader::LEN.saturating_add((header.numrec as usize).saturating_mul(DiscoveryEntry::LEN));
        return Err(PduError::Truncated { what: "discovery log page", need, have: bytes.len() });
    }
    let entries =
        rest.chunks_exact(DiscoveryEntry::LEN).take(header.numrec as usize).map(DiscoveryEntry::parse);
    Ok((header, entries.collect::<Result<_, _>>()?))
}
