//! iWARP in a capture: the MPA start frames and FPDUs that a TCP segment completes, as JSON objects.
//!
//! Read RFC 5044 §4 and §7, RFC 5041 §4, RFC 5040 §4 first. A direction is taken for iWARP by its first bytes, an MPA key.
//! Every header is put together again from what was read, and a difference is an error of that FPDU.

use std::collections::HashMap;
use std::net::SocketAddr;

use everywire_wire::ddp::{DdpHeader, DdpTarget};
use everywire_wire::mpa::{Enhanced, StartFrame, StartKind};
use everywire_wire::rdmap::{
    AtomicRequest, AtomicResponse, RdmapControl, RdmapOpcode, ReadRequest, Terminate,
};
use serde_json::{Map, Value, json};

use super::fpdu::{Fpdus, Whole};
use super::packet::hex;
use super::tcp::{Direction, Segment};

/// Connections followed at most; a capture with more leaves the later ones out.
const MAX_CONNECTIONS: usize = 16_384;

/// What the FPDUs of one frame turned out to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Start frames and FPDUs that the frame completes.
    pub units: u64,
    pub bad_crc: u64,
    pub malformed: u64,
}

/// What a direction's next bytes are.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A start frame, or no iWARP.
    #[default]
    Start,
    Fpdus,
    /// Not iWARP, or no longer understood.
    Other,
}

#[derive(Debug, Default)]
struct Side {
    tcp: Direction,
    stage: Stage,
    /// Bytes in order up to the end of the start frame.
    bytes: Vec<u8>,
    /// What follows it.
    fpdus: Fpdus,
    /// What its start frame says, once it was seen.
    asks_crc: bool,
    asks_markers: bool,
}

/// A connection, both directions; the first is that of the lower address.
#[derive(Debug, Default)]
struct Connection {
    sides: [Side; 2],
}

/// What was learned so far.
#[derive(Default)]
pub struct Streams {
    connections: HashMap<(SocketAddr, SocketAddr), Connection>,
}

impl Streams {
    /// Fills `object` from a frame with a TCP segment, if it belongs to iWARP.
    pub fn describe(&mut self, frame: &[u8], object: &mut Map<String, Value>) -> Counts {
        let Some(segment) = Segment::parse(frame) else { return Counts::default() };
        let (way, key) = match segment.src <= segment.dst {
            true => (0, (segment.src, segment.dst)),
            false => (1, (segment.dst, segment.src)),
        };
        if self.connections.len() >= MAX_CONNECTIONS && !self.connections.contains_key(&key) {
            return Counts::default();
        }
        let connection = self.connections.entry(key).or_default();
        let units = connection.take(way, &segment);
        if units.is_empty() {
            return Counts::default();
        }
        let count = |name: &str, value: &str| {
            let has = |unit: &&Value| unit.get(name).is_some_and(|v| value.is_empty() || v == value);
            units.iter().filter(has).count() as u64
        };
        let counts =
            Counts { units: units.len() as u64, bad_crc: count("crc", "bad"), malformed: count("error", "") };
        object.remove("other");
        object.insert("src".into(), json!(segment.src.ip().to_string()));
        object.insert("dst".into(), json!(segment.dst.ip().to_string()));
        let tcp = json!({"src_port": segment.src.port(), "dst_port": segment.dst.port(), "seq": segment.seq});
        object.insert("tcp".into(), tcp);
        object.insert("iwarp".into(), Value::Array(units));
        counts
    }
}

impl Connection {
    fn take(&mut self, way: usize, segment: &Segment<'_>) -> Vec<Value> {
        let side = &mut self.sides[way];
        if segment.syn {
            *side = Side::default();
            side.tcp.begin(segment.seq);
            return Vec::new();
        }
        if !side.tcp.is_followed() && key_of(segment.payload).is_some() {
            side.tcp.begin(segment.seq.wrapping_sub(1));
        }
        if side.stage == Stage::Other || segment.payload.is_empty() {
            return Vec::new();
        }
        let mut fresh = Vec::new();
        side.tcp.take(segment.seq, segment.payload, &mut fresh);
        let mut units = Vec::new();
        if side.stage == Stage::Start {
            side.bytes.append(&mut fresh);
            match start_frame(side) {
                Ok(Some((unit, rest))) => {
                    units.push(unit);
                    fresh = rest;
                }
                Ok(None) => return units,
                Err(unit) => return unit.into_iter().collect(),
            }
        }
        self.fpdus(way, &fresh, &mut units);
        units
    }

    /// Takes apart what is whole. CRCs are in use if either side asked; markers if the receiver did.
    fn fpdus(&mut self, way: usize, fresh: &[u8], units: &mut Vec<Value>) {
        let crc = self.sides.iter().any(|side| side.asks_crc);
        let markers = self.sides[1 - way].asks_markers;
        let side = &mut self.sides[way];
        side.fpdus.push(fresh);
        while let Some(fpdu) = side.fpdus.next(markers) {
            units.push(unit(&fpdu, crc));
        }
    }
}

/// Which start frame these bytes begin, as far as they go.
fn key_of(bytes: &[u8]) -> Option<StartKind> {
    let begins = |kind: &StartKind| bytes.len() >= 16 && bytes.starts_with(kind.key());
    [StartKind::Request, StartKind::Reply].into_iter().find(begins)
}

type Started = Option<(Value, Vec<u8>)>;

/// The start frame in a side's bytes and what follows it, once it is whole; an error if it is none.
fn start_frame(side: &mut Side) -> Result<Started, Option<Value>> {
    if side.bytes.len() < StartFrame::HEADER_LEN {
        return Ok(None);
    }
    let Some(kind) = key_of(&side.bytes) else {
        *side = Side { stage: Stage::Other, ..Side::default() };
        return Err(None);
    };
    let length = match StartFrame::length(kind, &side.bytes) {
        Ok(Some(length)) if length <= side.bytes.len() => length,
        Ok(_) => return Ok(None),
        Err(e) => {
            *side = Side { stage: Stage::Other, ..Side::default() };
            return Err(Some(json!({"error": e.to_string()})));
        }
    };
    let rest = side.bytes.split_off(length);
    let bytes = std::mem::take(&mut side.bytes);
    side.stage = Stage::Fpdus;
    let Ok(frame) = StartFrame::parse(kind, &bytes) else { return Ok(None) };
    (side.asks_crc, side.asks_markers) = (frame.crc, frame.markers);
    let mut unit = json!({
        "mpa": if kind == StartKind::Request { "request" } else { "reply" },
        "revision": frame.revision, "crc_asked": frame.crc, "markers_asked": frame.markers,
        "reject": frame.reject, "private_data": frame.private_data.len(),
    });
    if let (true, Ok(e)) = (frame.enhanced, Enhanced::parse(frame.private_data)) {
        unit["enhanced"] = json!({"ird": e.ird, "ord": e.ord, "peer_to_peer": e.peer_to_peer,
            "rtr_send": e.rtr_send, "rtr_write": e.rtr_write, "rtr_read": e.rtr_read});
    }
    let mut again = Vec::new();
    frame.emit(&mut again);
    if again != bytes {
        unit["error"] = json!("the frame does not come out as it was read");
    }
    Ok(Some((unit, rest)))
}

/// One FPDU.
fn unit(fpdu: &Whole, crc: bool) -> Value {
    let crc = match (crc, fpdu.good_crc) {
        (false, _) => "none",
        (true, true) => "good",
        (true, false) => "bad",
    };
    let mut unit = match segment(&fpdu.ulpdu) {
        Ok(unit) => unit,
        Err(why) => json!({"error": why}),
    };
    if let Some(why) = &fpdu.error {
        unit["error"] = json!(why);
    }
    unit["crc"] = json!(crc);
    unit
}

fn segment(ulpdu: &[u8]) -> Result<Value, String> {
    if ulpdu.is_empty() {
        // RFC 6581 §9: the RTR of that name.
        return Ok(json!({"rtr": "zero-length FPDU"}));
    }
    let header = DdpHeader::parse(ulpdu).map_err(|e| e.to_string())?;
    let payload = &ulpdu[header.header_len()..];
    let control = RdmapControl::from_byte(header.ulp);
    let opcode =
        RdmapOpcode::from_bits(control.opcode).ok_or_else(|| format!("RDMAP opcode {}", control.opcode))?;
    let mut unit = json!({"opcode": name(opcode), "last": header.last, "payload": payload.len()});
    match header.target {
        DdpTarget::Tagged { stag, to } => {
            unit["stag"] = hex(stag.0, 8);
            unit["to"] = hex(to, 16);
        }
        DdpTarget::Untagged { ulp, qn, msn, mo } => {
            (unit["queue"], unit["msn"], unit["mo"]) = (json!(qn), json!(msn), json!(mo));
            if opcode.invalidates() {
                unit["invalidates"] = hex(u32::from_be_bytes(ulp), 8);
            }
        }
    }
    let mut again = vec![0; header.header_len()];
    header.emit(&mut again);
    match opcode {
        RdmapOpcode::ReadRequest => {
            let read = ReadRequest::parse(payload).map_err(|e| e.to_string())?;
            unit["read"] = json!({"sink_stag": hex(read.sink_stag.0, 8), "sink_to": hex(read.sink_to, 16),
                "length": read.length, "source_stag": hex(read.source_stag.0, 8), "source_to": hex(read.source_to, 16)});
            let mut emitted = [0; ReadRequest::LEN];
            read.emit(&mut emitted);
            again.extend(emitted);
        }
        RdmapOpcode::Terminate => {
            let terminate = Terminate::parse(payload).map_err(|e| e.to_string())?;
            unit["terminate"] = json!(terminate.error.text());
            terminate.emit(&mut again);
        }
        RdmapOpcode::AtomicRequest => {
            let mut emitted = [0; AtomicRequest::LEN];
            AtomicRequest::parse(payload).map_err(|e| e.to_string())?.emit(&mut emitted);
            again.extend(emitted);
        }
        RdmapOpcode::AtomicResponse => {
            let mut emitted = [0; AtomicResponse::LEN];
            AtomicResponse::parse(payload).map_err(|e| e.to_string())?.emit(&mut emitted);
            again.extend(emitted);
        }
        _ => {}
    }
    if !ulpdu.starts_with(&again) || RdmapControl::to_byte(control) != header.ulp {
        return Err(format!("{} does not come out as it was read", name(opcode)));
    }
    Ok(unit)
}

/// RFC 5040's and RFC 7306's names.
fn name(opcode: RdmapOpcode) -> &'static str {
    match opcode {
        RdmapOpcode::Write => "RDMA Write",
        RdmapOpcode::ReadRequest => "RDMA Read Request",
        RdmapOpcode::ReadResponse => "RDMA Read Response",
        RdmapOpcode::Send => "Send",
        RdmapOpcode::SendInv => "Send with Invalidate",
        RdmapOpcode::SendSe => "Send with SE",
        RdmapOpcode::SendSeInv => "Send with SE and Invalidate",
        RdmapOpcode::Terminate => "Terminate",
        RdmapOpcode::Immediate => "Immediate Data",
        RdmapOpcode::ImmediateSe => "Immediate Data with SE",
        RdmapOpcode::AtomicRequest => "Atomic Request",
        RdmapOpcode::AtomicResponse => "Atomic Response",
    }
}

/// The units of a frame as text.
pub fn line(units: &[Value], flat: impl Fn(&Value) -> String) -> String {
    let one = |unit: &Value| {
        let mut unit = unit.clone();
        let fields = unit.as_object_mut();
        let head = fields.and_then(|f| f.remove("opcode").or_else(|| f.remove("error")));
        let head = head.as_ref().and_then(Value::as_str).map_or_else(String::new, |h| format!("{h} "));
        format!("{head}{}", flat(&unit))
    };
    units.iter().map(one).collect::<Vec<_>>().join(" | ")
}
