//! InfiniBand packets, LRH to VCRC, as JSON: the link's headers and both sums; from the BTH on it is [`super::packet`]'s affair.
//!
//! Read IBTA §7.7 (LRH), §7.8 (sums) and §8.3 (GRH) first. Packets stand in records of the Extensible Record Format, as our
//! fabrics and cards that listen on links write them, or bare (LINKTYPE_INFINIBAND). Flow control packets are not decoded.

use std::net::{IpAddr, Ipv6Addr};

use everywire_wire::grh::{Grh, NEXT_HEADER_IBA};
use everywire_wire::vcrc::{VCRC_LEN, check_length, vcrc};
use everywire_wire::{Lid, Lnh, Lrh, WireError, icrc_ib};
use serde_json::{Map, Value, json};

use super::packet::{Ends, Outcome, grh_json, transport};
use super::upper::Flows;

/// Bytes of an ERF record's header.
const ERF_HEADER: usize = 16;
/// Bytes of one of its extension headers.
const ERF_EXTENSION: usize = 8;
/// Bit of the type, and of the first byte of an extension: another extension follows.
const ERF_MORE: u8 = 0x80;
/// ERF type of InfiniBand packets.
const ERF_INFINIBAND: u8 = 21;
const ICRC_LEN: usize = 4;

/// The packet in an ERF record, and its length on the wire.
///
/// Errors, in words: a record that is cut, or of something else.
pub fn of_erf(record: &[u8]) -> Result<(&[u8], u32), String> {
    let header: &[u8; ERF_HEADER] =
        record.first_chunk().ok_or_else(|| format!("an ERF record of {} bytes", record.len()))?;
    let (kind, mut at, mut more) = (header[8] & !ERF_MORE, ERF_HEADER, header[8] & ERF_MORE != 0);
    if kind != ERF_INFINIBAND {
        return Err(format!("ERF type {kind}, not InfiniBand ({ERF_INFINIBAND})"));
    }
    while more {
        let first = record.get(at).ok_or("an ERF record that ends in its extension headers")?;
        more = first & ERF_MORE != 0;
        at += ERF_EXTENSION;
    }
    let wire_len = u16::from_be_bytes([header[14], header[15]]);
    let rest = record.get(at..).unwrap_or_default();
    // Cards fill records up to eight bytes.
    Ok((&rest[..rest.len().min(usize::from(wire_len))], u32::from(wire_len)))
}

/// What a packet's sums said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// As of RoCE packets.
    pub outcome: Outcome,
    /// Whether the VCRC is wrong.
    pub bad_vcrc: bool,
}

/// Fills `object` from a packet, LRH to VCRC.
pub fn describe(packet: &[u8], flows: &mut Flows, object: &mut Map<String, Value>) -> Found {
    match try_describe(packet, flows, object) {
        Ok(found) => found,
        Err(e) => {
            object.insert("error".into(), json!(e.to_string()));
            Found { outcome: Outcome::Malformed, bad_vcrc: false }
        }
    }
}

fn try_describe(
    packet: &[u8],
    flows: &mut Flows,
    object: &mut Map<String, Value>,
) -> Result<Found, WireError> {
    let lrh = check_length(packet)?;
    let (covered, end) = packet.split_at(packet.len() - VCRC_LEN);
    let bad_vcrc = end != vcrc(covered).to_le_bytes();
    object.insert("src".into(), json!(format!("LID {}", lrh.slid.0)));
    object.insert("dst".into(), json!(format!("LID {}", lrh.dlid.0)));
    object.insert(
        "lrh".into(),
        json!({"slid": lrh.slid.0, "dlid": lrh.dlid.0, "sl": lrh.sl, "vl": lrh.vl, "words": lrh.pkt_len}),
    );
    object.insert("vcrc".into(), json!(if bad_vcrc { "bad" } else { "good" }));
    let rest = &covered[Lrh::LEN..];
    let bth_to_icrc = match lrh.lnh {
        Lnh::IbaLocal => rest,
        Lnh::IbaGlobal => {
            let grh = Grh::parse(rest)?;
            if grh.ip_version != 6 || grh.next_header != NEXT_HEADER_IBA {
                let value = u64::from(grh.next_header);
                return Err(WireError::Invalid { what: "GRH next header", value });
            }
            object.insert("grh".into(), grh_json(&grh));
            &rest[Grh::LEN..]
        }
        Lnh::RawEthertype | Lnh::RawIpv6 => {
            object.insert("other".into(), json!("a raw packet"));
            return Ok(Found { outcome: Outcome::Other, bad_vcrc });
        }
    };
    let ends = Ends { src: as_address(lrh.slid), dst: as_address(lrh.dlid) };
    let good = covered
        .split_last_chunk::<ICRC_LEN>()
        .is_some_and(|(lrh_to_pad, icrc)| icrc_ib(lrh_to_pad).map(u32::to_le_bytes) == Some(*icrc));
    Ok(Found { outcome: transport(bth_to_icrc, good, ends, flows, object), bad_vcrc })
}

/// A LID where connections are told apart by addresses: those of one subnet are as good.
fn as_address(lid: Lid) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(u128::from(lid.0)))
}
