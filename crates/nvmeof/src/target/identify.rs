//! Identify. NVMe Base 2.0 §5.17; NVMe-oF 1.1 §4.1 for the fabrics fields. Everything advertised here works; what does
//! not is zero.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::config::{ControllerModel, ERROR_LOG_ENTRIES, MAX_ASYNC_EVENTS, MAX_NSID};
use super::controller::{Controller, KEEP_ALIVE_GRANULARITY_MS};
use super::subsystem::Namespace;
use super::{ControllerKey, Failure, Target};
use crate::pdu::command::NSID_ALL;
use crate::pdu::features::{AEC_DISCOVERY_LOG, AEC_NAMESPACE_ATTRIBUTE};
use crate::pdu::identify::*;
use crate::pdu::properties::VERSION;
use crate::pdu::{Cqe, Sqe, Status};

/// CTRATT: 128-bit host identifiers, traffic-based keep alive.
const CTRATT: u32 = 1 | 1 << 6;
/// SGLS: SGLs supported, keyed data blocks, in-capsule address is an offset.
const SGLS: u32 = 1 | 1 << 2 | 1 << 20;
/// LPA: commands supported and effects; extended data (offsets) for Get Log Page.
const LPA: u8 = 1 << 1 | 1 << 2;
/// FRMW: one slot, read only.
const FRMW: u8 = 1 | 1 << 1;
/// ONCS: Compare, Dataset Management, Write Zeroes.
const ONCS: u16 = 1 | 1 << 2 | 1 << 3;
/// CMIC: the subsystem may have several ports and several controllers.
const CMIC: u8 = 1 | 1 << 1;
/// VWC: present, and Flush may name every namespace.
const VWC: u8 = 1 | 3 << 1;
/// DLFEAT: deallocated blocks read zero, Write Zeroes may deallocate.
const DLFEAT: u8 = 1 | 1 << 3;
/// NSFEAT bit 4: NPWG, NPWA, NPDG, NPDA and NOWS are given.
const NSFEAT_OPTIMAL: u8 = 1 << 4;
const CONTROLLER_IO: u8 = 1;
const CONTROLLER_DISCOVERY: u8 = 2;
/// NVM command set.
const CSI_NVM: u8 = 0;

impl Target {
    pub(super) fn identify(&self, key: ControllerKey, sqe: &Sqe) -> Result<Vec<u8>, Failure> {
        let invalid = Failure::from(Status::INVALID_FIELD.dnr());
        let controller = self.controllers.get(&key).ok_or(invalid)?;
        let cns = sqe.cdw10 as u8;
        if cns == CNS_CONTROLLER {
            return Ok(self.identify_controller(controller).emit().to_vec());
        }
        // A discovery controller has no namespaces to tell of. NVMe-oF 1.1 §5.2.
        let subsystem = self.subsystems.get(&controller.subsystem).ok_or(invalid)?;
        let csi = (sqe.cdw11 >> 24) as u8;
        let namespaces = &subsystem.namespaces;
        match cns {
            CNS_NAMESPACE | CNS_ALLOCATED_NAMESPACE => {
                if sqe.nsid == NSID_ALL && cns == CNS_NAMESPACE {
                    // What all namespaces have in common. NVMe Base 2.0 §5.17.2.1.
                    return Ok(common_namespace().emit().to_vec());
                }
                if sqe.nsid == 0 || sqe.nsid > MAX_NSID {
                    return Err(Status::INVALID_NAMESPACE.dnr().into());
                }
                // An inactive namespace identifies as zeroes.
                let namespace = namespaces.get(&sqe.nsid);
                Ok(namespace.map_or(vec![0; IDENTIFY_LEN], |found| identify_namespace(found).emit().to_vec()))
            }
            CNS_ACTIVE_NAMESPACES | CNS_ALLOCATED_NAMESPACES => list_after(namespaces, sqe.nsid),
            CNS_NAMESPACE_DESCRIPTORS => {
                let namespace = namespaces.get(&sqe.nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
                Ok(descriptors(namespace))
            }
            CNS_CSI_NAMESPACE if csi == CSI_NVM => {
                namespaces.get(&sqe.nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
                Ok(vec![0; IDENTIFY_LEN])
            }
            CNS_CSI_ACTIVE_NAMESPACES if csi == CSI_NVM => list_after(namespaces, sqe.nsid),
            CNS_COMMAND_SETS => {
                // One combination: the NVM command set alone. NVMe Base 2.0 §5.17.2.19.
                let mut page = vec![0; IDENTIFY_LEN];
                page[0] = 1 << CSI_NVM;
                Ok(page)
            }
            CNS_CSI_CONTROLLER if csi == CSI_NVM => Ok(vec![0; IDENTIFY_LEN]),
            CNS_ATTACHED_CONTROLLERS | CNS_CONTROLLERS => {
                if cns == CNS_ATTACHED_CONTROLLERS && !namespaces.contains_key(&sqe.nsid) {
                    return Err(Status::INVALID_NAMESPACE.dnr().into());
                }
                Ok(self.controller_list(controller, (sqe.cdw10 >> 16) as u16))
            }
            _ => Err(invalid),
        }
    }

    /// Controllers of the same subsystem with identifiers from `first` on. NVMe Base 2.0 §4.4.1.
    fn controller_list(&self, of: &Controller, first: u16) -> Vec<u8> {
        let same = self.controllers.values().filter(|other| other.subsystem == of.subsystem);
        let mut ids: Vec<u16> = same.map(|other| other.cntlid).filter(|&id| id >= first).collect();
        ids.sort_unstable();
        ids.truncate(IDENTIFY_LEN / 2 - 1);
        let mut list = (ids.len() as u16).to_le_bytes().to_vec();
        list.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        list.resize(IDENTIFY_LEN, 0);
        list
    }

    fn identify_controller(&self, controller: &Controller) -> IdentifyController {
        let mut id = IdentifyController {
            fr: ascii(env!("CARGO_PKG_VERSION")),
            cntlid: controller.cntlid,
            ver: VERSION,
            mdts: self.limits.mdts,
            ctratt: CTRATT,
            acl: 3,
            aerl: MAX_ASYNC_EVENTS as u8 - 1,
            frmw: FRMW,
            lpa: LPA,
            elpe: ERROR_LOG_ENTRIES as u8 - 1,
            kas: (KEEP_ALIVE_GRANULARITY_MS / 100) as u16,
            maxcmd: self.limits.max_queue_entries,
            sgls: SGLS,
            subnqn: controller.subsystem.to_field(),
            ioccsz: (64 + self.limits.in_capsule_data) / 16,
            iorcsz: (Cqe::LEN / 16) as u32,
            msdbd: self.limits.sgl_descriptors(),
            ..Default::default()
        };
        let Some(subsystem) = self.subsystems.get(&controller.subsystem) else {
            id.sn = ascii("discovery");
            id.mn = ascii("Everywire");
            id.cntrltype = CONTROLLER_DISCOVERY;
            id.oaes = AEC_DISCOVERY_LOG;
            return id;
        };
        id.sn = ascii(&subsystem.serial);
        id.mn = ascii(&subsystem.model);
        id.cntrltype = CONTROLLER_IO;
        id.rab = 6;
        id.cmic = CMIC;
        id.oaes = AEC_NAMESPACE_ATTRIBUTE;
        id.sqes = 0x66;
        id.cqes = 0x44;
        id.nn = MAX_NSID;
        id.mnan = MAX_NSID;
        id.oncs = ONCS;
        id.vwc = if subsystem.has_volatile_cache() { VWC } else { 0 };
        id.fcatt = u8::from(matches!(subsystem.controllers, ControllerModel::Static(_)));
        id
    }
}

/// Identifiers greater than `nsid`. NVMe Base 2.0 §5.17.2.2.
fn list_after(namespaces: &BTreeMap<u32, Rc<Namespace>>, nsid: u32) -> Result<Vec<u8>, Failure> {
    if nsid >= NSID_ALL - 1 {
        return Err(Status::INVALID_NAMESPACE.dnr().into());
    }
    let after = namespaces.range(nsid + 1..).map(|(nsid, _)| nsid.to_le_bytes());
    let mut list: Vec<u8> = after.take(IDENTIFY_LEN / 4).flatten().collect();
    list.resize(IDENTIFY_LEN, 0);
    Ok(list)
}

fn common_namespace() -> IdentifyNamespace {
    let mut id = IdentifyNamespace { nlbaf: 1, dlfeat: DLFEAT, nmic: 1, ..Default::default() };
    id.lbaf[0] = 9 << 16;
    id.lbaf[1] = 12 << 16;
    id
}

fn identify_namespace(namespace: &Namespace) -> IdentifyNamespace {
    let geometry = namespace.geometry;
    let optimal = (geometry.optimal_io / geometry.block_size).max(1) as u16 - 1;
    let mut id = IdentifyNamespace {
        nsze: geometry.blocks,
        ncap: geometry.blocks,
        nuse: geometry.blocks,
        nsfeat: NSFEAT_OPTIMAL,
        nmic: 1,
        dlfeat: DLFEAT,
        nvmcap: geometry.bytes().into(),
        npwg: optimal,
        npwa: optimal,
        npdg: optimal,
        npda: optimal,
        nows: optimal,
        nsattr: u8::from(geometry.read_only),
        nguid: namespace.ids.nguid,
        eui64: namespace.ids.eui64,
        ..Default::default()
    };
    id.lbaf[0] = geometry.block_size.trailing_zeros() << 16;
    id
}

fn descriptors(namespace: &Namespace) -> Vec<u8> {
    let ids = &namespace.ids;
    let mut list: Vec<(u8, &[u8])> = Vec::new();
    if ids.eui64 != [0; 8] {
        list.push((NIDT_EUI64, &ids.eui64));
    }
    if ids.nguid != [0; 16] {
        list.push((NIDT_NGUID, &ids.nguid));
    }
    list.push((NIDT_UUID, ids.uuid.as_bytes()));
    list.push((NIDT_CSI, &[CSI_NVM]));
    emit_descriptors(&list)
}
