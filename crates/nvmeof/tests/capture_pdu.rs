//! Every NVMe structure that the captured Linux host and nvmet exchanged parses and re-emits bit for bit.

mod capture;

use std::collections::HashMap;

use capture::{From, What};
use everywire_nvmeof::pdu::fabrics::{Connect, ConnectData, PropertyGet, PropertySet};
use everywire_nvmeof::pdu::log::{LogRequest, Smart};
use everywire_nvmeof::pdu::{AdminOpcode, Cqe, SglKind, Sqe, Status, cm, discovery, fabrics, identify, log};

/// What a command's data is, by its queue and opcode.
fn data_kind(sqe: &Sqe, admin: bool) -> String {
    match sqe.opcode {
        0x7f => fabrics::name(sqe.fctype()).to_owned(),
        op if !admin => format!("io {op:#x}"),
        0x06 => format!("identify {:#x}", sqe.cdw10 & 0xff),
        0x02 => format!("log {:#x} {}", sqe.cdw10 & 0xff, LogRequest::from_sqe(sqe).len),
        op => format!("admin {op:#x}"),
    }
}

/// Compares; a difference is named by its offset.
fn same(ours: &[u8], wire: &[u8]) {
    assert_eq!(ours.len(), wire.len());
    if let Some(at) = ours.iter().zip(wire).position(|(a, b)| a != b) {
        panic!("byte {at}: {:#04x} where the wire has {:#04x}", ours[at], wire[at]);
    }
}

fn check_data(kind: &str, bytes: &[u8]) -> bool {
    match kind {
        "Connect" => same(&ConnectData::parse(bytes).expect("parses").emit(), bytes),
        "identify 0x1" => {
            same(&identify::IdentifyController::parse(bytes).expect("parses").emit(), bytes);
        }
        "identify 0x0" => {
            same(&identify::IdentifyNamespace::parse(bytes).expect("parses").emit(), bytes);
        }
        "identify 0x3" => {
            let found = identify::parse_descriptors(bytes);
            assert_eq!(
                found.iter().map(|(kind, value)| (*kind, value.len())).collect::<Vec<_>>(),
                [(3, 16), (4, 1)]
            );
            same(&identify::emit_descriptors(&found), bytes);
        }
        "log 0x70 1024" => {
            same(&discovery::DiscoveryHeader::parse(bytes).expect("parses").emit(), bytes);
        }
        "log 0x70 3072" => {
            let (header, entries) = discovery::parse_log(bytes).expect("parses");
            let mut again = header.emit().to_vec();
            entries.iter().for_each(|entry| again.extend_from_slice(&entry.emit()));
            same(&again, bytes);
            assert_eq!(entries[1].address().expect("an address").to_string(), "192.168.77.11");
            assert_eq!((entries[1].port(), entries[1].subsystem()), (Some(4420), "nqn.2026-01.lab:s1"));
        }
        "log 0x2 512" => same(&Smart::parse(bytes).expect("parses").emit(), bytes),
        "log 0x5 4096" => same(&log::CommandEffects::parse(bytes).expect("parses").emit(), bytes),
        _ => return false,
    }
    true
}

fn check_sqe(bytes: &[u8]) -> Sqe {
    let sqe = Sqe::parse(bytes).expect("an entry");
    assert_eq!(sqe.emit(), bytes[..64]);
    if sqe.opcode == AdminOpcode::FABRICS.0 {
        let again = match sqe.fctype() {
            fabrics::CONNECT => Connect::from_sqe(&sqe).to_sqe(),
            fabrics::PROPERTY_GET => PropertyGet::from_sqe(&sqe).to_sqe(),
            fabrics::PROPERTY_SET => PropertySet::from_sqe(&sqe).to_sqe(),
            other => panic!("fabrics command {other:#x} is not in this capture"),
        };
        // nvme-cli and the kernel set nothing that these layouts do not name.
        assert_eq!(again, sqe);
    }
    sqe
}

#[test]
fn every_capsule_and_structure_round_trips() {
    let mut commands: HashMap<u32, (Sqe, bool)> = HashMap::new();
    let (mut sqes, mut cqes, mut structures, mut admin_qp) = (0, 0, 0, true);
    for message in capture::messages() {
        match message.what {
            What::ConnectRequest(bytes) => {
                let request = cm::CmRequest::check(&bytes).expect("a valid request");
                assert_eq!(request.emit(), bytes[..32]);
                admin_qp = request.qid == 0;
                // facts/kernel-peers.md: the admin queue asks for 32 and 31, an I/O queue of 16 for 16 and 15.
                let sizes = if admin_qp { (32, 31) } else { (16, 15) };
                assert_eq!((request.hrqsize, request.hsqsize), sizes);
            }
            What::ConnectReply(bytes) => {
                let accept = cm::CmAccept::parse(&bytes).expect("parses");
                assert_eq!(accept.emit(), bytes[..32]);
                assert_eq!(accept.crqsize, if admin_qp { 32 } else { 16 });
            }
            What::Send { bytes, .. } if message.from == From::Host => {
                let sqe = check_sqe(&bytes);
                sqes += 1;
                let admin = sqe.opcode == 0x7f || bytes.len() == 64 && message.frame < 224;
                match sqe.sgl.kind() {
                    SglKind::Keyed(block) if block.len != 0 => {
                        commands.insert(block.key, (sqe, admin || is_admin(&sqe)));
                    }
                    SglKind::InCapsule { offset, len } => {
                        assert_eq!((offset, len as usize), (0, bytes.len() - 64));
                        structures += u32::from(check_data(&data_kind(&sqe, false), &bytes[64..]));
                    }
                    _ => {}
                }
            }
            What::Send { bytes, .. } => {
                let cqe = Cqe::parse(&bytes).expect("an entry");
                assert_eq!((cqe.emit().as_slice(), bytes.len()), (&bytes[..], 16));
                if !cqe.status().is_success() {
                    assert!([0x6006, 0x6002].contains(&cqe.status().0));
                    assert!(cqe.status().is_dnr());
                }
                assert_eq!(Cqe::new(cqe.cid, cqe.status(), cqe.result).raw_status, cqe.raw_status);
                cqes += 1;
            }
            What::Write { key, bytes, .. } | What::Read { key, bytes, .. } => {
                let (sqe, admin) = commands.get(&key).expect("a command named the key");
                structures += u32::from(check_data(&data_kind(sqe, *admin), &bytes));
            }
            What::Disconnect => {}
        }
    }
    // Counted with tshark: nvme.cmd.opc and nvme.cqe fields; two AERs stay unanswered.
    assert_eq!(sqes, cqes + 2);
    assert!(structures >= 18, "{structures} structures compared");
}

/// Identify and Get Log Page share opcodes with no I/O command but Read (02h), told apart by the log identifier.
fn is_admin(sqe: &Sqe) -> bool {
    sqe.opcode == 0x06 || sqe.opcode == 0x02 && sqe.nsid != 1
}

#[test]
fn the_host_learns_nothing_wrong_from_status_names() {
    assert_eq!(Status(0x6002).name(), "Invalid Field in Command");
    assert_eq!(Status(0x6006).name(), "Internal Error");
}
