//! Queries by component mask for what the manager knows of nodes, ports, links and tables.
//!
//! Read IBTA §15.4.1 first. Every query goes over all records of its kind; those that name a LID look at that node only.
//! M_Keys and SM_Keys are shown to nobody but those who know the SM_Key.

use everywire_wire::mad::status as mad_status;
use everywire_wire::sa::{
    GuidInfoRecord, LftRecord, LinkRecord, MATCH_CAPABILITY_BITS, MftRecord, NodeRecord, PKeyTableRecord,
    PortInfoRecord, SaMad, SlToVlRecord, SmInfoRecord, SwitchInfoRecord, VlArbitrationRecord, attribute,
    status,
};
use everywire_wire::smp::{
    GuidInfo, LinearForwardingTable, MulticastForwardingTable, NodeInfo, PKeyTable, PortInfo, SlToVl,
    VlArbitration, attribute as smp,
};
use everywire_wire::{Guid, Lid};

use super::super::inventory::Node;
use super::super::routing::NO_PATH;
use super::{Answer, Records, Sm};

/// The first component of all records here: LID.
const LID: u64 = 1;
/// The component of a PortInfoRecord with the capability mask.
const CAPABILITY_MASK: u64 = 1 << 7;

impl Sm {
    /// SubnAdmGet and GetTable of everything but paths.
    pub(super) fn query(&self, request: &SaMad) -> Answer {
        match request.header.attribute_id {
            attribute::NODE => Records::matching(request, self.node_records(request)),
            attribute::PORT_INFO => self.ports_asked_for(request),
            attribute::SWITCH_INFO => Records::matching(request, self.switch_records(request)),
            attribute::LINK => Records::matching(request, self.link_records()),
            attribute::SM_INFO => Records::matching(request, self.sm_records()),
            attribute::LFT => Records::matching(request, self.lft_records(request)),
            attribute::MFT => Records::matching(request, self.mft_records()),
            attribute::GUID_INFO => Records::matching(request, self.guid_records(request)),
            attribute::PKEY_TABLE => Records::matching(request, self.pkey_records()),
            attribute::SL_TO_VL => Records::matching(request, self.sl_to_vl_records()),
            attribute::VL_ARBITRATION => Records::matching(request, self.arbitration_records()),
            attribute::MC_MEMBER => self.member_records(request),
            attribute::SERVICE => self.sa.services.query(request),
            attribute::INFORM_INFO_RECORD => self.subscriptions(request),
            _ => Err(mad_status::UNSUPPORTED_METHOD_ATTRIBUTE),
        }
    }

    /// Nodes that a query may be about: the one whose LID it names, or all.
    fn nodes_for(&self, request: &SaMad) -> impl Iterator<Item = (Guid, &Node)> {
        let lid = (request.component_mask & LID != 0)
            .then(|| Lid(u16::from_be_bytes([request.data[0], request.data[1]])));
        let only = lid.map(|lid| self.map.owner(lid).map(|owner| owner.node));
        let nodes = self.known.nodes.iter().map(|(guid, node)| (*guid, node));
        nodes.filter(move |(guid, _)| only.is_none_or(|only| only == Some(*guid)))
    }

    fn lid(&self, guid: Guid) -> Lid {
        self.lids.get(&guid).copied().unwrap_or_default()
    }

    /// LID of the end port that stands for a node's port.
    fn lid_at(&self, node: Guid, port: u8) -> Lid {
        let end = self.known.nodes.get(&node).and_then(|node| node.end_port_of(port));
        end.map_or(Lid(0), |port| self.lid(port.guid))
    }

    fn node_records(&self, request: &SaMad) -> impl Iterator<Item = NodeRecord> {
        self.nodes_for(request).flat_map(|(_, node)| {
            node.end_ports().map(|(number, port)| NodeRecord {
                lid: self.lid(port.guid),
                node_info: NodeInfo {
                    port_guid: port.guid,
                    local_port_num: if node.is_switch() { node.info.local_port_num } else { number },
                    ..node.info
                },
                description: node.description,
                ..NodeRecord::default()
            })
        })
    }

    /// PortInfoRecords, by bits of the capability mask where the asker wants that.
    fn ports_asked_for(&self, request: &SaMad) -> Answer {
        let by_bits = request.header.attribute_modifier & MATCH_CAPABILITY_BITS != 0;
        if !by_bits || request.component_mask & CAPABILITY_MASK == 0 {
            return Records::matching(request, self.port_records(request));
        }
        let asked = PortInfoRecord::parse(&request.data).map_err(|_| status::REQ_INVALID)?;
        let bits = asked.port_info.capability_mask;
        let rest = SaMad { component_mask: request.component_mask & !CAPABILITY_MASK, ..*request };
        let capable = |record: &PortInfoRecord| record.port_info.capability_mask & bits == bits;
        Records::matching(&rest, self.port_records(request).filter(capable))
    }

    fn port_records(&self, request: &SaMad) -> impl Iterator<Item = PortInfoRecord> {
        let trusted = self.trusts(request);
        self.nodes_for(request).flat_map(move |(_, node)| {
            let numbered = (0u8..).zip(&node.ports).filter(|(_, port)| port.known);
            numbered.map(move |(number, port)| PortInfoRecord {
                lid: node.end_port_of(number).map_or(Lid(0), |end| self.lid(end.guid)),
                port: number,
                port_info: PortInfo { m_key: if trusted { port.info.m_key } else { 0 }, ..port.info },
                ..PortInfoRecord::default()
            })
        })
    }

    fn switch_records(&self, request: &SaMad) -> impl Iterator<Item = SwitchInfoRecord> {
        self.nodes_for(request).filter_map(|(_, node)| {
            let (lid, switch_info) = (self.lid(node.info.port_guid), node.switch?);
            Some(SwitchInfoRecord { lid, switch_info, ..SwitchInfoRecord::default() })
        })
    }

    fn link_records(&self) -> impl Iterator<Item = LinkRecord> {
        self.known.nodes.iter().flat_map(move |(guid, node)| {
            let linked = (0u8..).zip(&node.ports).filter(|(_, port)| port.is_linked());
            linked.filter_map(move |(number, port)| {
                let (peer, to_port) = port.peer?;
                Some(LinkRecord {
                    from_lid: self.lid_at(*guid, number),
                    from_port: number,
                    to_port,
                    to_lid: self.lid_at(peer, to_port),
                })
            })
        })
    }

    fn sm_records(&self) -> impl Iterator<Item = SmInfoRecord> {
        let own = (self.config.guid, self.sm_info());
        let others = self.others.values().map(|other| (other.info.guid, other.info));
        std::iter::once(own).chain(others).map(|(guid, sm_info)| SmInfoRecord {
            lid: self.lid(guid),
            sm_info: everywire_wire::smp::SmInfo { sm_key: 0, ..sm_info },
            ..SmInfoRecord::default()
        })
    }

    fn lft_records(&self, request: &SaMad) -> impl Iterator<Item = LftRecord> {
        self.nodes_for(request).filter_map(|(guid, _)| self.map.switch_index.get(&guid)).flat_map(|index| {
            let lid = self.map.graph.switches[*index as usize].lid;
            let lft = self.tables.lfts.get(*index as usize).map_or(&[][..], |lft| &lft[..]);
            lft.chunks(64).zip(0u16..).map(move |(chunk, block)| {
                let mut ports = [NO_PATH; 64];
                ports[..chunk.len()].copy_from_slice(chunk);
                LftRecord { lid, block, table: LinearForwardingTable { ports }, ..LftRecord::default() }
            })
        })
    }

    fn mft_records(&self) -> impl Iterator<Item = MftRecord> {
        self.all_written(smp::MULTICAST_FORWARDING_TABLE).filter_map(|(node, _, modifier, data)| {
            Some(MftRecord {
                lid: self.lid_at(node, 0),
                position: (modifier >> 28) as u8,
                block: (modifier & 0x1ff) as u16,
                table: MulticastForwardingTable::parse(data).ok()?,
                ..MftRecord::default()
            })
        })
    }

    fn guid_records(&self, request: &SaMad) -> impl Iterator<Item = GuidInfoRecord> {
        self.nodes_for(request).flat_map(|(_, node)| {
            node.end_ports().map(|(_, port)| {
                let mut guid_info = GuidInfo::default();
                guid_info.guids[0] = port.guid;
                GuidInfoRecord { lid: self.lid(port.guid), guid_info, ..GuidInfoRecord::default() }
            })
        })
    }

    fn pkey_records(&self) -> impl Iterator<Item = PKeyTableRecord> {
        self.all_written(smp::PKEY_TABLE).filter_map(|(node, port, modifier, data)| {
            Some(PKeyTableRecord {
                lid: self.lid_at(node, port),
                block: modifier as u16,
                port,
                table: PKeyTable::parse(data).ok()?,
                ..PKeyTableRecord::default()
            })
        })
    }

    fn sl_to_vl_records(&self) -> impl Iterator<Item = SlToVlRecord> {
        self.all_written(smp::SL_TO_VL).filter_map(|(node, port, modifier, data)| {
            Some(SlToVlRecord {
                lid: self.lid_at(node, port),
                input_port: (modifier >> 8) as u8,
                output_port: modifier as u8,
                sl_to_vl: SlToVl::parse(data).ok()?,
                ..SlToVlRecord::default()
            })
        })
    }

    fn arbitration_records(&self) -> impl Iterator<Item = VlArbitrationRecord> {
        self.all_written(smp::VL_ARBITRATION).filter_map(|(node, port, modifier, data)| {
            Some(VlArbitrationRecord {
                lid: self.lid_at(node, port),
                output_port: modifier as u8,
                block: (modifier >> 16) as u8,
                table: VlArbitration::parse(data).ok()?,
                ..VlArbitrationRecord::default()
            })
        })
    }
}
