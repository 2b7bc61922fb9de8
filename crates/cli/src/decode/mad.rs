//! Management datagrams other than the CM's as JSON: class, method and attribute by name, and the few fields one looks for.
//!
//! Read IBTA §13.4 (common header), §14.2 (subnet management), §15.2 (administration) and §16.1 (performance) first. The
//! attributes' own fields are shown of paths, memberships and ports only; the whole of them is Wireshark's affair.

use everywire_wire::WireError;
use everywire_wire::mad::{Mad, MadHeader, class, method};
use everywire_wire::perf::{self, PerfMad};
use everywire_wire::sa::{self, McMemberRecord, PathRecord, SaMad};
use everywire_wire::smp::{self, NodeInfo, PortInfo, Smp};
use serde_json::{Value, json};

use super::packet::hex;

/// The member's name and what it holds.
pub fn describe(mad: &Mad) -> Result<(&'static str, Value), WireError> {
    let header = MadHeader::parse(mad)?;
    Ok(match header.mgmt_class {
        class::SUBN_LID_ROUTED | class::SUBN_DIRECTED_ROUTE => {
            ("smp", subnet_management(&Smp::from_mad(mad)?)?)
        }
        class::SUBN_ADM => ("sa", administration(&SaMad::from_mad(mad)?)?),
        class::PERF_MGT => ("perf", performance(&PerfMad::parse(mad)?)),
        other => {
            let mut value = common(&header, None);
            value["class"] = hex(other, 2);
            ("mad", value)
        }
    })
}

/// What all classes have.
fn common(header: &MadHeader, attribute: Option<&str>) -> Value {
    let attribute = attribute.map_or_else(|| hex(header.attribute_id, 4), |name| json!(name));
    let mut value = json!({
        "method": method_name(header.method), "attribute": attribute, "tid": hex(header.transaction_id, 16),
    });
    if header.attribute_modifier != 0 {
        value["modifier"] = hex(header.attribute_modifier, 8);
    }
    if header.status != 0 && header.mgmt_class != class::SUBN_DIRECTED_ROUTE {
        value["status"] = hex(header.status, 4);
    }
    value
}

/// IBTA §13.4.5, and §15.2.2 for what only the administrator answers.
fn method_name(code: u8) -> Value {
    json!(match code {
        method::GET => "Get",
        method::SET => "Set",
        method::SEND => "Send",
        method::TRAP => "Trap",
        method::REPORT => "Report",
        method::TRAP_REPRESS => "TrapRepress",
        method::GET_RESP => "GetResp",
        method::REPORT_RESP => "ReportResp",
        sa::method::GET_TABLE => "GetTable",
        sa::method::GET_TABLE_RESP => "GetTableResp",
        sa::method::GET_TRACE_TABLE => "GetTraceTable",
        sa::method::GET_MULTI => "GetMulti",
        sa::method::GET_MULTI_RESP => "GetMultiResp",
        sa::method::DELETE => "Delete",
        sa::method::DELETE_RESP => "DeleteResp",
        other => return hex(other, 2),
    })
}

fn subnet_management(mad: &Smp) -> Result<Value, WireError> {
    use smp::attribute as a;
    let header = &mad.header;
    let name = match header.attribute_id {
        a::NOTICE => "Notice",
        a::NODE_DESCRIPTION => "NodeDescription",
        a::NODE_INFO => "NodeInfo",
        a::SWITCH_INFO => "SwitchInfo",
        a::GUID_INFO => "GUIDInfo",
        a::PORT_INFO => "PortInfo",
        a::PKEY_TABLE => "P_KeyTable",
        a::SL_TO_VL => "SLtoVLMappingTable",
        a::VL_ARBITRATION => "VLArbitrationTable",
        a::LINEAR_FORWARDING_TABLE => "LinearForwardingTable",
        a::MULTICAST_FORWARDING_TABLE => "MulticastForwardingTable",
        a::SM_INFO => "SMInfo",
        a::LED_INFO => "LedInfo",
        _ => "",
    };
    let mut value = common(header, Some(name).filter(|name| !name.is_empty()));
    if mad.is_directed() {
        let (pointer, count) = (mad.hop_pointer(), mad.hop_count());
        let path = mad.initial_path.iter().skip(1).take(usize::from(count)).map(u8::to_string);
        value["way"] = json!(if mad.is_returning() { "back" } else { "out" });
        value["hop"] = json!(format!("{pointer}/{count}"));
        value["path"] = json!(path.collect::<Vec<_>>().join(","));
        if mad.status() != 0 {
            value["status"] = hex(mad.status(), 4);
        }
    }
    let tells = header.method == method::GET_RESP || header.method == method::SET;
    match header.attribute_id {
        a::NODE_INFO if tells => {
            let info = NodeInfo::parse(&mad.data)?;
            value["node_guid"] = hex(info.node_guid.0, 16);
            value["ports"] = json!(info.num_ports);
        }
        a::PORT_INFO if tells => {
            let info = PortInfo::parse(&mad.data)?;
            value["lid"] = json!(info.lid.0);
            value["state"] = json!(info.port_state);
        }
        _ => {}
    }
    Ok(value)
}

fn administration(mad: &SaMad) -> Result<Value, WireError> {
    use sa::attribute as a;
    let header = &mad.header;
    let name = match header.attribute_id {
        a::CLASS_PORT_INFO => "ClassPortInfo",
        a::NOTICE => "Notice",
        a::INFORM_INFO => "InformInfo",
        a::NODE => "NodeRecord",
        a::PORT_INFO => "PortInfoRecord",
        a::SL_TO_VL => "SLtoVLMappingTableRecord",
        a::SWITCH_INFO => "SwitchInfoRecord",
        a::LFT => "LinearForwardingTableRecord",
        a::MFT => "MulticastForwardingTableRecord",
        a::SM_INFO => "SMInfoRecord",
        a::LINK => "LinkRecord",
        a::GUID_INFO => "GuidInfoRecord",
        a::SERVICE => "ServiceRecord",
        a::PKEY_TABLE => "P_KeyTableRecord",
        a::PATH => "PathRecord",
        a::VL_ARBITRATION => "VLArbitrationTableRecord",
        a::MC_MEMBER => "MCMemberRecord",
        a::INFORM_INFO_RECORD => "InformInfoRecord",
        _ => "",
    };
    let mut value = common(header, Some(name).filter(|name| !name.is_empty()));
    if mad.rmpp.active {
        value["segment"] = json!(mad.rmpp.data1);
        value["last"] = json!(mad.rmpp.last);
    }
    // Records of a table run on over its segments.
    let whole = mad.rmpp.data1 <= 1 && header.status == 0;
    match header.attribute_id {
        a::PATH if whole => {
            let path = PathRecord::parse(&mad.data)?;
            value["sgid"] = json!(path.sgid.to_string());
            value["dgid"] = json!(path.dgid.to_string());
            value["slid"] = json!(path.slid.0);
            value["dlid"] = json!(path.dlid.0);
        }
        a::MC_MEMBER if whole => {
            let member = McMemberRecord::parse(&mad.data)?;
            value["mgid"] = json!(member.mgid.to_string());
            value["port_gid"] = json!(member.port_gid.to_string());
            value["mlid"] = hex(member.mlid.0, 4);
        }
        _ => {}
    }
    Ok(value)
}

fn performance(mad: &PerfMad) -> Value {
    use perf::attribute as a;
    let name = match mad.header.attribute_id {
        a::CLASS_PORT_INFO => Some("ClassPortInfo"),
        a::PORT_COUNTERS => Some("PortCounters"),
        a::PORT_COUNTERS_EXTENDED => Some("PortCountersExtended"),
        _ => None,
    };
    let mut value = common(&mad.header, name);
    if matches!(mad.header.attribute_id, a::PORT_COUNTERS | a::PORT_COUNTERS_EXTENDED) {
        // Both begin with a reserved byte and the port (IBTA §16.1.3.5, §16.1.4.11).
        value["port"] = json!(mad.data[1]);
    }
    value
}
