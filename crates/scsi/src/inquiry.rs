//! Standard INQUIRY data and the vital product data pages. SPC-4 §6.6 and §7.8, SBC-3 §6.6.
//!
//! Pages: 00h, 80h, 83h, 86h, 87h, 8Fh, B0h, B1h, B2h. Each is made whole; the caller cuts it at the allocation length.
//! Names: a logical unit is NAA 3h (locally assigned), since an NAA 5h or 6h would need a registered company's number.
//! What this does not do: vendor-specific pages, protection information.

use crate::bytes::{ascii, put};
use crate::lun::copy::{
    MAX_INLINE, MAX_LIST, MAX_SEGMENT_BYTES, MAX_SEGMENTS, MAX_TARGETS, SEGMENT_TYPE, TARGET_TYPE,
};
use crate::lun::{Limits, LogicalUnit};
use crate::sense::Sense;
use crate::target::Port;

/// Direct access block device, and the report-LUNs well-known logical unit. SPC-4 table 141.
const DISK: u8 = 0x00;
const WELL_KNOWN: u8 = 0x1e;
/// Peripheral qualifier 011b and type 1Fh: there is no logical unit there.
const NOBODY: u8 = 0x7f;

/// Bytes of standard INQUIRY data: up to the version descriptors and the reserved bytes after them.
const STANDARD_LEN: usize = 96;
const VERSION_SPC4: u8 = 6;
/// SAM-5, SPC-4 and SBC-3, each without a version claimed. SPC-4 table 145.
const STANDARDS: [u16; 3] = [0x00a0, 0x0460, 0x04c0];

const PAGES: [u8; 9] = [0x00, 0x80, 0x83, 0x86, 0x87, 0x8f, 0xb0, 0xb1, 0xb2];

/// Whose INQUIRY it is.
#[derive(Clone, Copy)]
pub(crate) enum Subject<'a> {
    Unit(&'a LogicalUnit),
    WellKnown,
    Nobody,
}

/// Standard INQUIRY data as sent through `port`.
pub(crate) fn standard(subject: Subject<'_>, port: &Port) -> Vec<u8> {
    let mut data = vec![0; STANDARD_LEN];
    data[0] = match subject {
        Subject::Unit(_) => DISK,
        Subject::WellKnown => WELL_KNOWN,
        Subject::Nobody => NOBODY,
    };
    data[2] = VERSION_SPC4;
    // HISUP: LUNs are in the format of SAM-5 §4.7. Response data format 2.
    data[3] = 0x12;
    data[4] = (STANDARD_LEN - 5) as u8;
    // CMDQUE.
    data[7] = 0x02;
    let (vendor, product, revision) = match subject {
        Subject::Unit(unit) => {
            data[1] = u8::from(unit.config.removable) << 7;
            // TPGS 01b: implicit asymmetric access. 3PC: third-party copy.
            data[5] = 0x18;
            // MULTIP: more than one port.
            data[6] = 0x10;
            (&unit.config.vendor[..], &unit.config.product[..], &unit.config.revision[..])
        }
        _ => ("", "", ""),
    };
    put(&mut data, 8, ascii::<8>(vendor));
    put(&mut data, 16, ascii::<16>(product));
    put(&mut data, 32, ascii::<4>(revision));
    let descriptors = STANDARDS.into_iter().chain([port.config.protocol.version_descriptor()]);
    for (i, descriptor) in descriptors.enumerate() {
        put(&mut data, 58 + 2 * i, descriptor.to_be_bytes());
    }
    data
}

/// A vital product data page.
pub(crate) fn page(unit: &LogicalUnit, port: &Port, code: u8) -> Result<Vec<u8>, Sense> {
    let body = match code {
        0x00 => PAGES.to_vec(),
        0x80 => unit.identity.serial.as_bytes().to_vec(),
        0x83 => device_identification(unit, port),
        0x86 => extended_inquiry(unit),
        // Every page, one copy for all ports and nexuses (SPC-4 §7.8.9).
        0x87 => vec![0x3f, 0xff, 0, 0],
        0x8f => third_party_copy(),
        0xb0 => block_limits(&unit.limits),
        0xb1 => block_characteristics(),
        0xb2 => provisioning(unit),
        _ => return Err(Sense::cdb_field(2)),
    };
    let mut page = vec![DISK, code, 0, 0];
    put(&mut page, 2, (body.len() as u16).to_be_bytes());
    page.extend_from_slice(&body);
    Ok(page)
}

/// The page list of a well-known logical unit: page 00h only.
pub(crate) fn well_known_page(code: u8) -> Result<Vec<u8>, Sense> {
    if code == 0 { Ok(vec![WELL_KNOWN, 0, 0, 1, 0]) } else { Err(Sense::cdb_field(2)) }
}

/// Code sets of designators. SPC-4 table 591.
const BINARY: u8 = 1;
const ASCII: u8 = 2;
const UTF8: u8 = 3;

/// One designator: protocol and code set, association and type, length, value.
fn designator(port: Option<&Port>, code_set: u8, association: u8, kind: u8, value: &[u8]) -> Vec<u8> {
    // PIV says that the protocol identifier is valid: for designators of a port or a target device.
    let protocol = port.map_or(0, |port| port.config.protocol.code() << 4);
    let piv = u8::from(port.is_some()) << 7;
    let mut out = vec![protocol | code_set, piv | association << 4 | kind, 0, value.len() as u8];
    out.extend_from_slice(value);
    out
}

/// The logical unit's T10 vendor designator: vendor, then serial number.
pub(crate) fn vendor_designator(unit: &LogicalUnit) -> Vec<u8> {
    let mut value = ascii::<8>(&unit.config.vendor).to_vec();
    value.extend_from_slice(unit.identity.serial.as_bytes());
    value
}

fn device_identification(unit: &LogicalUnit, port: &Port) -> Vec<u8> {
    let relative = [0, 0, (port.relative_id >> 8) as u8, port.relative_id as u8];
    let group = [0, 0, (port.group.id >> 8) as u8, port.group.id as u8];
    let mut body = designator(None, BINARY, 0, 3, &unit.identity.naa.to_be_bytes());
    body.extend(designator(None, ASCII, 0, 1, &vendor_designator(unit)));
    body.extend(designator(Some(port), BINARY, 1, 4, &relative));
    body.extend(designator(Some(port), BINARY, 1, 5, &group));
    for (association, name) in [(1, &port.config.name), (2, &port.config.device_name)] {
        if !name.is_empty() {
            body.extend(designator(Some(port), UTF8, association, 8, &name_string(name)));
        }
    }
    body
}

/// A SCSI name string: NUL terminated, padded to a multiple of 4. SPC-4 §7.8.6.11.
fn name_string(name: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = name.bytes().take(usize::from(u8::MAX) - 4).collect();
    bytes.resize((bytes.len() + 1).next_multiple_of(4), 0);
    bytes
}

fn extended_inquiry(unit: &LogicalUnit) -> Vec<u8> {
    let mut body = vec![0; 0x3c];
    // HEADSUP, ORDSUP, SIMPSUP.
    body[1] = 0x07;
    // V_SUP: there is a volatile cache.
    body[2] = unit.geometry.volatile_cache.into();
    // LUICLR: unit attentions end with the nexus.
    body[3] = 0x01;
    body
}

fn block_limits(limits: &Limits) -> Vec<u8> {
    let mut body = vec![0; 0x3c];
    // Byte numbers are the page's, less its header of 4. SBC-3 table 193, SBC-4 for the atomic fields.
    // WSNZ: a WRITE SAME of 0 blocks, which would mean all up to the last one, is refused.
    body[0] = 0x01;
    body[1] = limits.compare_and_write;
    put(&mut body, 2, limits.granularity.to_be_bytes());
    put(&mut body, 4, limits.transfer.to_be_bytes());
    put(&mut body, 8, limits.optimal_transfer.to_be_bytes());
    if limits.unmap_descriptors != 0 {
        put(&mut body, 16, u32::MAX.to_be_bytes());
        put(&mut body, 20, limits.unmap_descriptors.to_be_bytes());
        put(&mut body, 24, u32::from(limits.granularity).to_be_bytes());
        // UGAVALID: granules start at LBA 0.
        put(&mut body, 28, 0x8000_0000u32.to_be_bytes());
    }
    put(&mut body, 32, limits.write_same.to_be_bytes());
    put(&mut body, 40, limits.atomic.to_be_bytes());
    if limits.atomic != 0 {
        put(&mut body, 44, 1u32.to_be_bytes());
        put(&mut body, 48, 1u32.to_be_bytes());
    }
    body
}

fn block_characteristics() -> Vec<u8> {
    let mut body = vec![0; 0x3c];
    // Medium rotation rate 1: non-rotating.
    put(&mut body, 0, 1u16.to_be_bytes());
    // WABEREQ 01b: after a block erase, blocks are read without error.
    body[3] = 0x40;
    body
}

fn provisioning(unit: &LogicalUnit) -> Vec<u8> {
    if !unit.is_thin() {
        return vec![0; 4];
    }
    // LBPU, LBPWS, LBPWS10, LBPRZ 001b: what is unmapped reads as zeroes. ANC_SUP is 0: nothing is anchored, because no
    // backend keeps room for blocks that it gave back. Provisioning type 2: thin.
    vec![0, 0xe4, 2, 0]
}

/// Third-party copy page. SPC-4 §7.8.17.
fn third_party_copy() -> Vec<u8> {
    let descriptor = |kind: u16, body: &[u8]| {
        let len = (4 + body.len()).next_multiple_of(4);
        let mut out = vec![0; len];
        put(&mut out, 0, kind.to_be_bytes());
        put(&mut out, 2, ((len - 4) as u16).to_be_bytes());
        out[4..4 + body.len()].copy_from_slice(body);
        out
    };
    // Supported commands: operation code, number of service actions, service actions.
    let mut body = descriptor(0x0001, &[7, 0x83, 1, 0x00, 0x84, 2, 0x00, 0x03]);
    let mut parameters = [0; 28];
    put(&mut parameters, 4, MAX_TARGETS.to_be_bytes());
    put(&mut parameters, 6, MAX_SEGMENTS.to_be_bytes());
    put(&mut parameters, 8, MAX_LIST.to_be_bytes());
    put(&mut parameters, 12, MAX_INLINE.to_be_bytes());
    body.extend(descriptor(0x0004, &parameters));
    body.extend(descriptor(0x0008, &[2, SEGMENT_TYPE, TARGET_TYPE]));
    body.extend(descriptor(0x000c, &[0, 0]));
    let mut general = [0; 32];
    put(&mut general, 0, 1u32.to_be_bytes());
    put(&mut general, 4, 1u32.to_be_bytes());
    put(&mut general, 8, MAX_SEGMENT_BYTES.to_be_bytes());
    // Granularity of segments: 2^9 bytes.
    general[12] = 9;
    body.extend(descriptor(0x8001, &general));
    body
}
