//! Management datagrams on QP0 and QP1 as JSON: the CM messages with the fields one looks for; the rest is [`super::mad`]'s.
//!
//! Read IBTA §12.6 and annex A11 (RDMA IP CM service) first. What a REQ and REP agree on is given to [`super::upper`], so that
//! later packets of that queue pair are decoded as their protocol.

use everywire_wire::RocePacket;
use everywire_wire::cm::{CmMad, CmMessage, Req};
use everywire_wire::ip_cm::{IpCmHeader, PortSpace, split_service_id};
use everywire_wire::mad::{MAD_LEN, MadHeader, class};
use serde_json::{Map, Value, json};

use super::mad;
use super::packet::{Ends, hex};
use super::upper::Flows;

/// Adds a `cm` member, or that of another class.
pub fn describe(packet: &RocePacket<'_>, ends: Ends, flows: &mut Flows, object: &mut Map<String, Value>) {
    let Ok(bytes) = <&[u8; MAD_LEN]>::try_from(packet.payload) else {
        object
            .insert("mad".into(), json!({"error": format!("{} bytes, not {MAD_LEN}", packet.payload.len())}));
        return;
    };
    match CmMad::parse(bytes) {
        Ok(cm) => {
            flows.learn(&cm.message, ends);
            object.insert("cm".into(), message(&cm));
        }
        Err(error) => {
            let of_cm = MadHeader::parse(bytes).is_ok_and(|header| header.mgmt_class == class::COM_MGT);
            match mad::describe(bytes) {
                Ok((name, value)) if !of_cm => object.insert(name.into(), value),
                _ => object.insert("mad".into(), json!({"error": error.to_string()})),
            };
        }
    }
}

fn message(cm: &CmMad) -> Value {
    let mut value = json!({"message": cm.message.name(), "tid": hex(cm.header.transaction_id, 16)});
    let more = match &cm.message {
        CmMessage::Req(m) => req(m),
        CmMessage::Rep(m) => json!({
            "local_comm_id": hex(m.local_comm_id, 8), "remote_comm_id": hex(m.remote_comm_id, 8),
            "qpn": hex(m.local_qpn.get(), 6), "starting_psn": m.starting_psn.get(),
            "responder_resources": m.responder_resources, "initiator_depth": m.initiator_depth,
            "rnr_retry": m.rnr_retry_count, "private_data": private(&m.private_data),
        }),
        CmMessage::Rej(m) => json!({
            "local_comm_id": hex(m.local_comm_id, 8), "remote_comm_id": hex(m.remote_comm_id, 8),
            "reason": m.reason.to_string(), "private_data": private(&m.private_data),
        }),
        CmMessage::Mra(m) => json!({
            "local_comm_id": hex(m.local_comm_id, 8), "remote_comm_id": hex(m.remote_comm_id, 8),
            "service_timeout": m.service_timeout,
        }),
        CmMessage::Rtu(m) => ids(m.local_comm_id, m.remote_comm_id, &m.private_data),
        CmMessage::Dreq(m) => json!({
            "local_comm_id": hex(m.local_comm_id, 8), "remote_comm_id": hex(m.remote_comm_id, 8),
            "remote_qpn": hex(m.remote_qpn.get(), 6), "private_data": private(&m.private_data),
        }),
        CmMessage::Drep(m) => ids(m.local_comm_id, m.remote_comm_id, &m.private_data),
        CmMessage::SidrReq(m) => json!({
            "request_id": hex(m.request_id, 8), "service": service(m.service_id), "private_data": private(&m.private_data),
        }),
        CmMessage::SidrRep(m) => json!({
            "request_id": hex(m.request_id, 8), "status": m.status.to_string(), "qpn": hex(m.qpn.get(), 6),
            "qkey": hex(m.qkey.0, 8), "private_data": private(&m.private_data),
        }),
        CmMessage::Lap(m) => ids(m.local_comm_id, m.remote_comm_id, &m.private_data),
        CmMessage::Apr(m) => ids(m.local_comm_id, m.remote_comm_id, &m.private_data),
    };
    if let (Value::Object(all), Value::Object(more)) = (&mut value, more) {
        all.extend(more);
    }
    value
}

fn req(m: &Req) -> Value {
    let mut value = json!({
        "local_comm_id": hex(m.local_comm_id, 8), "service": service(m.service_id), "qpn": hex(m.local_qpn.get(), 6),
        "starting_psn": m.starting_psn.get(), "responder_resources": m.responder_resources,
        "initiator_depth": m.initiator_depth, "retry": m.retry_count, "rnr_retry": m.rnr_retry_count,
        "path_mtu": m.path_mtu, "ack_timeout": m.primary.local_ack_timeout,
    });
    let ip_cm = split_service_id(m.service_id).and_then(|_| IpCmHeader::parse(&m.private_data).ok());
    let user = match ip_cm.filter(IpCmHeader::is_supported) {
        Some(header) => {
            if let (Some(src), Some(dst)) = (header.src(), header.dst()) {
                value["from"] = json!(src.to_string());
                value["to"] = json!(dst.to_string());
            }
            &m.private_data[IpCmHeader::LEN..]
        }
        None => &m.private_data[..],
    };
    value["private_data"] = private(user);
    value
}

fn ids(local: u32, remote: u32, data: &[u8]) -> Value {
    json!({"local_comm_id": hex(local, 8), "remote_comm_id": hex(remote, 8), "private_data": private(data)})
}

/// The service ID, and the port space and port where it is one of the RDMA IP CM service.
fn service(id: u64) -> Value {
    match split_service_id(id) {
        Some((PortSpace::TCP, port)) => json!(format!("tcp/{port}")),
        Some((PortSpace::UDP, port)) => json!(format!("udp/{port}")),
        Some((space, port)) => json!(format!("{:#06x}/{port}", space.0)),
        None => hex(id, 16),
    }
}

/// Private data in hexadecimal without the zero bytes at its end.
fn private(data: &[u8]) -> Value {
    let used = data.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
    json!(data[..used].iter().map(|b| format!("{b:02x}")).collect::<String>())
}
