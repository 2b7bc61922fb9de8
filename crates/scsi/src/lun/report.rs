//! What a logical unit says of itself and of its paths. SBC-3 §5.15 to §5.18, SPC-4 §6.35 to §6.37.
//!
//! Each function makes the whole parameter data; `Run::give` cuts it.

use super::LogicalUnit;
use crate::bytes::put;
use crate::cdb::Size;
use crate::cdb::table::{SPECS, Spec};
use crate::sense::{Failure, Sense};
use crate::target::Target;

/// LBPME and LBPRZ of READ CAPACITY (16).
const PROVISIONED: u8 = 0xc0;

/// REPORT SUPPORTED OPERATION CODES: one command, by what REPORTING OPTIONS say. SPC-4 table 267.
const ALL: u8 = 0;
const BY_OPCODE: u8 = 1;
const BY_ACTION: u8 = 2;
const BY_EITHER: u8 = 3;
const NOT_SUPPORTED: u8 = 1;
const SUPPORTED: u8 = 3;
/// CTDP: a timeouts descriptor follows.
const TIMEOUTS_ONE: u8 = 0x80;
const TIMEOUTS_ALL: u8 = 0x02;
const SERVICE_ACTION_VALID: u8 = 0x01;

/// ABORT TASK, ABORT TASK SET, CLEAR ACA, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET. SPC-4 table 275.
const FUNCTIONS: u8 = 0xfa;

/// All states but offline and LBA dependent can be. SPC-4 table 286.
const STATES: u8 = 0x8f;
/// The state changed by the device server's own doing.
const CHANGED_IMPLICITLY: u8 = 2;
/// A port count has 8 bits.
const MAX_GROUP_PORTS: usize = 255;

impl LogicalUnit {
    pub(super) fn capacity_10(&self) -> [u8; 8] {
        let mut data = [0; 8];
        let last = self.geometry.blocks.saturating_sub(1);
        put(&mut data, 0, u32::try_from(last).unwrap_or(u32::MAX).to_be_bytes());
        put(&mut data, 4, self.geometry.block_size.to_be_bytes());
        data
    }

    pub(super) fn capacity_16(&self) -> [u8; 32] {
        let mut data = [0; 32];
        put(&mut data, 0, self.geometry.blocks.saturating_sub(1).to_be_bytes());
        put(&mut data, 8, self.geometry.block_size.to_be_bytes());
        // Physical blocks are logical blocks; what is best for speed is in the block limits page.
        if self.is_thin() {
            data[14] = PROVISIONED;
        }
        data
    }

    /// SPC-4 §6.35.
    pub(super) fn supported_opcodes(
        &self,
        timeouts: bool,
        options: u8,
        opcode: u8,
        action: u16,
    ) -> Result<Vec<u8>, Failure> {
        let mut specs = SPECS.iter().filter(|spec| self.has_spec(spec));
        if options == ALL {
            let body: Vec<u8> = specs.flat_map(|spec| entry(spec, timeouts)).collect();
            let mut data = (body.len() as u32).to_be_bytes().to_vec();
            data.extend(body);
            return Ok(data);
        }
        if options > BY_EITHER {
            return Err(Sense::cdb_bit(2, 2).into());
        }
        let acting = SPECS.iter().find(|spec| spec.opcode == opcode).map(|spec| spec.action.is_some());
        match (options, acting) {
            (BY_OPCODE, Some(true)) | (BY_ACTION, Some(false)) => return Err(Sense::cdb_bit(2, 2).into()),
            (BY_EITHER, Some(false)) if action != 0 => return Ok(one(None, timeouts)),
            _ => {}
        }
        let found = specs
            .find(|spec| spec.opcode == opcode && spec.action.is_none_or(|its| u16::from(its) == action));
        Ok(one(found, timeouts))
    }
}

fn timeouts_of(spec: &Spec) -> [u8; 12] {
    let mut data = [0; 12];
    put(&mut data, 0, 10u16.to_be_bytes());
    put(&mut data, 4, spec.nominal.to_be_bytes());
    put(&mut data, 8, spec.recommended.to_be_bytes());
    data
}

/// A command descriptor of the list of all.
fn entry(spec: &Spec, timeouts: bool) -> Vec<u8> {
    let mut data = vec![spec.opcode, 0, 0, spec.action.unwrap_or(0), 0, 0, 0, spec.usage.len() as u8];
    if spec.action.is_some() {
        data[5] |= SERVICE_ACTION_VALID;
    }
    if timeouts {
        data[5] |= TIMEOUTS_ALL;
        data.extend(timeouts_of(spec));
    }
    data
}

/// Parameter data for one command.
fn one(spec: Option<&Spec>, timeouts: bool) -> Vec<u8> {
    let Some(spec) = spec else { return vec![0, NOT_SUPPORTED, 0, 0] };
    let mut data = vec![0, SUPPORTED, 0, spec.usage.len() as u8];
    data.extend(spec.usage);
    if timeouts {
        data[1] |= TIMEOUTS_ONE;
        data.extend(timeouts_of(spec));
    }
    data
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS. SPC-4 §6.36.
pub(super) fn task_management(extended: bool) -> Vec<u8> {
    let mut data = vec![FUNCTIONS, 0, 0, 0];
    if extended {
        data[3] = 12;
        data.extend([0; 12]);
    }
    data
}

/// Defect lists that are always empty. SBC-3 §5.17, §5.18.
pub(super) fn defects(size: Size, lists: u8, format: u8) -> Vec<u8> {
    let flags = lists << 3 | format;
    if size == Size::Ten { vec![0, flags, 0, 0] } else { vec![0, flags, 0, 0, 0, 0, 0, 0] }
}

/// REPORT TARGET PORT GROUPS. SPC-4 §6.37.
pub(super) fn port_groups(target: &Target, extended: bool) -> Vec<u8> {
    let ports = target.ports();
    let mut groups: Vec<u16> = ports.iter().map(|port| port.group.id).collect();
    groups.sort_unstable();
    groups.dedup();
    let mut body = if extended { vec![0x10, 0, 0, 0] } else { Vec::new() };
    for id in groups {
        let members: Vec<_> = ports.iter().filter(|port| port.group.id == id).take(MAX_GROUP_PORTS).collect();
        let state = members.first().map_or(0, |port| port.group.state().code());
        body.extend([state, STATES]);
        body.extend(id.to_be_bytes());
        body.extend([0, CHANGED_IMPLICITLY, 0, members.len() as u8]);
        for port in members {
            body.extend([0, 0]);
            body.extend(port.relative_id.to_be_bytes());
        }
    }
    let mut data = (body.len() as u32).to_be_bytes().to_vec();
    data.extend(body);
    data
}
