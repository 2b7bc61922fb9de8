//! One RoCE frame as a JSON object, and that object as a line.
//!
//! Headers are named as IBTA volume 1 chapter 9 names them. Numbers that are identities (QPN, keys, addresses) are hexadecimal
//! strings; counts and sequence numbers are numbers.

use std::fmt::Write;
use std::net::IpAddr;

use everywire_wire::eth::EthHeader;
use everywire_wire::frame::{RoceV1Frame, UdpFrame, roce_v1_payload};
use everywire_wire::grh::Grh;
use everywire_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, ImmDt, Qpn, Reth, RocePacket, Syndrome, SyndromeKind,
};
use serde_json::{Map, Value, json};

use super::{cm, upper};

/// What a frame turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Not RoCE.
    Other,
    /// RoCE with the right ICRC.
    Good,
    /// RoCE whose ICRC is wrong.
    BadIcrc,
    /// RoCE by its port or Ethertype, but no RoCE packet.
    Malformed,
}

/// A number that is an identity.
pub fn hex(value: impl Into<u64>, digits: usize) -> Value {
    json!(format!("{:#0width$x}", value.into(), width = digits + 2))
}

/// Who sent a packet, and to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Sender; a GID on RoCE v1.
    pub src: IpAddr,
    /// Receiver.
    pub dst: IpAddr,
}

/// Fills `object` from an Ethernet frame; InfiniBand packets are [`super::infiniband`]'s.
pub fn describe(frame: &[u8], flows: &mut upper::Flows, object: &mut Map<String, Value>) -> Outcome {
    if let Some(outcome) = describe_v1(frame, flows, object) {
        return outcome;
    }
    let frame = match UdpFrame::parse(frame) {
        Ok(frame) => frame,
        Err(e) => {
            object.insert("other".into(), json!(e.to_string()));
            return Outcome::Other;
        }
    };
    let ends = Ends { src: frame.src().ip(), dst: frame.dst().ip() };
    name_ends(ends, &frame.eth, object);
    object.insert(
        "ip".into(),
        json!({"traffic_class": frame.ip.traffic_class(), "hop_limit": frame.ip.hop_limit()}),
    );
    object.insert("udp".into(), json!({"src_port": frame.udp.src_port, "dst_port": frame.udp.dst_port}));
    if !frame.is_roce() {
        object.insert("other".into(), json!("UDP"));
        return Outcome::Other;
    }
    transport(frame.payload, frame.icrc_is_right(), ends, flows, object)
}

/// The same for RoCE v1; `None` for frames of other types.
fn describe_v1(frame: &[u8], flows: &mut upper::Flows, object: &mut Map<String, Value>) -> Option<Outcome> {
    roce_v1_payload(frame)?;
    let frame = match RoceV1Frame::parse(frame) {
        Ok(frame) => frame,
        Err(e) => {
            object.insert("error".into(), json!(e.to_string()));
            return Some(Outcome::Malformed);
        }
    };
    let (grh, ends) = (frame.grh, Ends { src: frame.grh.sgid.to_ip(), dst: frame.grh.dgid.to_ip() });
    name_ends(ends, &frame.eth, object);
    object.insert("grh".into(), grh_json(&grh));
    Some(transport(frame.packet, frame.icrc_is_right(), ends, flows, object))
}

/// A GRH, as on RoCE v1 and InfiniBand.
pub fn grh_json(grh: &Grh) -> Value {
    json!({
        "sgid": grh.sgid.to_string(), "dgid": grh.dgid.to_string(), "traffic_class": grh.traffic_class,
        "flow_label": grh.flow_label, "hop_limit": grh.hop_limit,
    })
}

fn name_ends(ends: Ends, eth: &EthHeader, object: &mut Map<String, Value>) {
    object.insert("src".into(), json!(ends.src.to_string()));
    object.insert("dst".into(), json!(ends.dst.to_string()));
    if let Some(tag) = eth.vlan {
        object.insert("vlan".into(), json!({"vid": tag.vid, "priority": tag.priority}));
    }
}

/// BTH to ICRC, whose sum is right or not.
pub fn transport(
    bytes: &[u8],
    good: bool,
    ends: Ends,
    flows: &mut upper::Flows,
    object: &mut Map<String, Value>,
) -> Outcome {
    let packet = match RocePacket::parse(bytes) {
        Ok(packet) => packet,
        Err(e) => {
            object.insert("error".into(), json!(e.to_string()));
            return Outcome::Malformed;
        }
    };
    headers(&packet, object);
    object.insert("icrc".into(), json!(if good { "good" } else { "bad" }));
    if matches!(packet.bth.dest_qp, Qpn::GSI | Qpn::SMI) {
        cm::describe(&packet, ends, flows, object);
    } else {
        flows.describe(&packet, ends, object);
    }
    if good { Outcome::Good } else { Outcome::BadIcrc }
}

/// Every header that is there.
fn headers(packet: &RocePacket<'_>, object: &mut Map<String, Value>) {
    object.insert("opcode".into(), json!(packet.bth.opcode.name()));
    object.insert("bth".into(), bth(&packet.bth));
    if let Some(Deth { qkey, src_qp, .. }) = packet.deth {
        object.insert("deth".into(), json!({"qkey": hex(qkey.0, 8), "src_qp": hex(src_qp.get(), 6)}));
    }
    if let Some(Reth { va, rkey, length }) = packet.reth {
        object.insert("reth".into(), json!({"va": hex(va, 16), "rkey": hex(rkey.0, 8), "length": length}));
    }
    if let Some(Aeth { syndrome, msn }) = packet.aeth {
        object.insert("aeth".into(), json!({"syndrome": syndrome_text(syndrome), "msn": msn}));
    }
    if let Some(AtomicEth { va, rkey, swap_add, compare }) = packet.atomic_eth {
        object.insert(
            "atomic_eth".into(),
            json!({"va": hex(va, 16), "rkey": hex(rkey.0, 8), "swap_add": swap_add, "compare": compare}),
        );
    }
    if let Some(AtomicAckEth { original }) = packet.atomic_ack {
        object.insert("atomic_ack_eth".into(), json!({"original": original}));
    }
    if let Some(ImmDt(value)) = packet.immdt {
        object.insert("immdt".into(), hex(value, 8));
    }
    if let Some(ieth) = packet.ieth {
        object.insert("ieth".into(), json!({"rkey": hex(ieth.rkey.0, 8)}));
    }
    object.insert("payload".into(), json!(packet.payload.len()));
    object.insert("pad".into(), json!(packet.pad.len()));
}

fn bth(bth: &Bth) -> Value {
    json!({
        "dest_qp": hex(bth.dest_qp.get(), 6),
        "psn": bth.psn.get(),
        "ack_req": bth.ack_req,
        "solicited": bth.solicited,
        "mig_req": bth.mig_req,
        "pkey": hex(bth.pkey.0, 4),
        "fecn": bth.fecn,
        "becn": bth.becn,
    })
}

/// A syndrome in the standard's words.
fn syndrome_text(syndrome: Syndrome) -> String {
    match syndrome.kind() {
        SyndromeKind::Ack { credits: 31 } => "ACK, no credits".to_owned(),
        SyndromeKind::Ack { credits } => format!("ACK, credit code {credits}"),
        SyndromeKind::Rnr { timer } => format!("RNR NAK, timer {timer}"),
        SyndromeKind::Nak(code) => format!("NAK {}", code.name()),
        SyndromeKind::Reserved => format!("reserved {:#04x}", syndrome.0),
    }
}

/// The object as one line.
pub fn line(object: &Map<String, Value>) -> String {
    let text = |key: &str| object.get(key).map(plain).unwrap_or_default();
    let mut out = format!(
        "{:>6} {:>12.6} {} > {}",
        text("number"),
        object.get("time_s").and_then(Value::as_f64).unwrap_or_default(),
        text("src"),
        text("dst")
    );
    if let Some(Value::Array(units)) = object.get("iwarp") {
        let _ = write!(out, " iWARP {}", super::iwarp::line(units, flat));
        return out;
    }
    if let Some(other) = object.get("other").or(object.get("error")) {
        let _ = write!(out, " [{}]", plain(other));
        return out;
    }
    let _ = write!(out, " {}", text("opcode"));
    if let Some(Value::Object(bth)) = object.get("bth") {
        let _ = write!(out, " qp={} psn={}", plain(&bth["dest_qp"]), bth["psn"]);
        for (flag, letter) in [("ack_req", " A"), ("solicited", " S"), ("fecn", " FECN"), ("becn", " BECN")] {
            if bth[flag] == json!(true) {
                out.push_str(letter);
            }
        }
    }
    for key in ["vlan", "lrh", "grh", "deth", "reth", "aeth", "atomic_eth", "atomic_ack_eth", "immdt", "ieth"]
    {
        if let Some(value) = object.get(key) {
            let _ = write!(out, " {}({})", key.to_uppercase(), flat(value));
        }
    }
    let _ = write!(out, " {} B, ICRC {}", text("payload"), text("icrc"));
    if object.contains_key("vcrc") {
        let _ = write!(out, ", VCRC {}", text("vcrc"));
    }
    for key in ["cm", "smp", "sa", "perf", "mad", "nvme"] {
        if let Some(value) = object.get(key) {
            let _ = write!(out, " | {key} {}", flat(value));
        }
    }
    out
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn flat(value: &Value) -> String {
    let Value::Object(fields) = value else { return plain(value) };
    // What is empty says nothing.
    let told = fields.iter().filter(|(_, value)| value.as_str() != Some(""));
    let parts: Vec<String> = told.map(|(name, value)| format!("{name}={}", plain(value))).collect();
    parts.join(" ")
}
