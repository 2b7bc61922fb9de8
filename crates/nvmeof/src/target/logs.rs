//! Get Log Page. NVMe Base 2.0 §5.16. A page is built whole and cut to what the host asked for; past its end it is zero.

use std::time::Instant;

use super::config::ERROR_LOG_ENTRIES;
use super::{ControllerKey, Failure, Target};
use crate::pdu::command::{IoOpcode, NSID_ALL};
use crate::pdu::identify::ascii;
use crate::pdu::log::*;
use crate::pdu::{AdminOpcode, Status};

const ADMIN_COMMANDS: [AdminOpcode; 7] = [
    AdminOpcode::GET_LOG_PAGE,
    AdminOpcode::IDENTIFY,
    AdminOpcode::ABORT,
    AdminOpcode::SET_FEATURES,
    AdminOpcode::GET_FEATURES,
    AdminOpcode::ASYNC_EVENT_REQUEST,
    AdminOpcode::KEEP_ALIVE,
];

/// I/O commands, and whether they change data.
const IO_COMMANDS: [(IoOpcode, bool); 6] = [
    (IoOpcode::FLUSH, false),
    (IoOpcode::WRITE, true),
    (IoOpcode::READ, false),
    (IoOpcode::COMPARE, false),
    (IoOpcode::WRITE_ZEROES, true),
    (IoOpcode::DATASET_MANAGEMENT, true),
];

const IO_LOGS: [u8; 6] =
    [SUPPORTED_LOG_PAGES, ERROR_INFORMATION, SMART, FIRMWARE_SLOT, CHANGED_NAMESPACES, COMMAND_EFFECTS];
const DISCOVERY_LOGS: [u8; 3] = [SUPPORTED_LOG_PAGES, ERROR_INFORMATION, DISCOVERY];

impl Target {
    /// The bytes that `request` asks for.
    pub(super) fn log_page(
        &mut self,
        now: Instant,
        key: ControllerKey,
        request: &LogRequest,
        nsid: u32,
    ) -> Result<Vec<u8>, Failure> {
        let controller = self.controllers.get(&key).ok_or(Status::ABORTED_SQ_DELETION)?;
        let known: &[u8] = if controller.subsystem.is_discovery() { &DISCOVERY_LOGS } else { &IO_LOGS };
        if !known.contains(&request.lid) {
            return Err(Status::INVALID_LOG_PAGE.dnr().into());
        }
        let page = match request.lid {
            SUPPORTED_LOG_PAGES => supported(known),
            ERROR_INFORMATION => {
                let mut page: Vec<u8> = controller.errors.iter().flat_map(|entry| entry.emit()).collect();
                page.resize(ERROR_LOG_ENTRIES * ErrorEntry::LEN, 0);
                page
            }
            SMART => self.smart(now, key, nsid)?,
            FIRMWARE_SLOT => FirmwareSlot { afi: 1, frs1: ascii(env!("CARGO_PKG_VERSION")) }.emit().to_vec(),
            CHANGED_NAMESPACES => changed(&controller.changed_namespaces),
            COMMAND_EFFECTS => effects().emit().to_vec(),
            _ => self.discovery_log(key),
        };
        // NVMe Base 2.0 §5.16: an offset past the page is Invalid Field.
        if request.offset > page.len() as u64 {
            return Err(Status::INVALID_FIELD.dnr().into());
        }
        if !request.retain {
            self.log_was_read(key, request.lid);
        }
        let from = request.offset as usize;
        let end = page.len().min(from.saturating_add(request.len as usize));
        let mut bytes = page[from..end].to_vec();
        bytes.resize(request.len as usize, 0);
        Ok(bytes)
    }

    fn log_was_read(&mut self, key: ControllerKey, lid: u8) {
        if let Some(controller) = self.controllers.get_mut(&key) {
            if lid == CHANGED_NAMESPACES {
                controller.changed_namespaces.clear();
            }
            controller.unmask(lid);
        }
        self.report(key);
    }

    fn smart(&self, now: Instant, key: ControllerKey, nsid: u32) -> Result<Vec<u8>, Failure> {
        let controller = self.controllers.get(&key).ok_or(Status::ABORTED_SQ_DELETION)?;
        // LPA bit 0 is clear: the page is the controller's, not a namespace's.
        if nsid != NSID_ALL && nsid != 0 {
            return Err(Status::INVALID_FIELD.dnr().into());
        }
        let up = self.started.map_or(0, |started| now.saturating_duration_since(started).as_secs());
        let mut smart = Smart {
            available_spare: 100,
            power_on_hours: u128::from(up / 3600),
            error_log_entries: controller.error_count.into(),
            ..Default::default()
        };
        let subsystem = self.subsystems.get(&controller.subsystem);
        for namespace in subsystem.into_iter().flat_map(|subsystem| subsystem.namespaces.values()) {
            let stats = &namespace.stats;
            // A data unit is a thousand 512-byte units, whatever the block size.
            let sectors = u128::from(namespace.geometry.block_size / 512);
            smart.data_units_read += (u128::from(stats.blocks_read.get()) * sectors).div_ceil(1000);
            smart.data_units_written += (u128::from(stats.blocks_written.get()) * sectors).div_ceil(1000);
            smart.host_reads += u128::from(stats.reads.get());
            smart.host_writes += u128::from(stats.writes.get());
            smart.media_errors += u128::from(stats.media_errors.get());
        }
        Ok(smart.emit().to_vec())
    }
}

/// LID 0: a dword for each log page, bit 0 for supported. NVMe Base 2.0 §5.16.1.1.
fn supported(known: &[u8]) -> Vec<u8> {
    let mut page = vec![0; 1024];
    for &lid in known {
        page[usize::from(lid) * 4] = 1;
    }
    page
}

fn changed(namespaces: &std::collections::BTreeSet<u32>) -> Vec<u8> {
    let mut page: Vec<u8> = if namespaces.len() > MAX_CHANGED {
        NSID_ALL.to_le_bytes().to_vec()
    } else {
        namespaces.iter().flat_map(|nsid| nsid.to_le_bytes()).collect()
    };
    page.resize(MAX_CHANGED * 4, 0);
    page
}

fn effects() -> CommandEffects {
    let mut page = CommandEffects::default();
    for opcode in ADMIN_COMMANDS {
        page.admin[usize::from(opcode.0)] = EFFECT_SUPPORTED;
    }
    for (opcode, changes) in IO_COMMANDS {
        page.io[usize::from(opcode.0)] = EFFECT_SUPPORTED | if changes { EFFECT_CHANGES_DATA } else { 0 };
    }
    page
}
