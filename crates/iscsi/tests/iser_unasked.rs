//! Data that comes unasked over RDMA (RFC 7143 §13.10, §13.11; RFC 7145 §6.8, §8.1): every combination of ImmediateData and
//! InitialR2T, and what breaks its rules.

mod lab;
mod rdma_lab;

use std::time::Duration;

use everywire_iscsi::keys::Key;
use everywire_iscsi::pdu::{DataOut, FINAL, Header, NO_TAG, Pdu, ScsiCommand};
use everywire_iscsi::rdma::{ControlHeader, RdmaOptions, Tagged};
use everywire_iscsi::target::TargetOptions;
use lab::pattern;
use rdma_lab::raw::{LINUX, Raw};
use rdma_lab::{RdmaLab, WIRES, options};

fn lab(seed: u64, wire: fn(std::net::IpAddr) -> everywire_sim::HostConfig, target: TargetOptions) -> RdmaLab {
    RdmaLab::with(seed, wire, target, RdmaOptions { unsolicited: true, ..RdmaOptions::default() })
}

/// Whoever of the two does not want it: the bytes are right, and nothing is left.
#[test]
fn data_moves_in_every_way() {
    for (wire, host) in WIRES {
        for (immediate, r2t) in [("Yes", "No"), ("Yes", "Yes"), ("No", "No"), ("No", "Yes")] {
            for (by_target, first) in [(false, "262144"), (false, "3072"), (true, "262144")] {
                let keys =
                    [(Key::ImmediateData, immediate), (Key::InitialR2T, r2t), (Key::FirstBurstLength, first)];
                let (mut target, mut initiator) = (TargetOptions::default(), options());
                let offers = if by_target { &mut target.offers } else { &mut initiator.offers };
                keys.into_iter().for_each(|(key, value)| offers.set(key, value));
                let lab = lab(1, host, target);
                lab.run(|host| async move {
                    let session = host.connect(initiator).await.expect("logs in");
                    let disk = session.disk(0).await.expect("a disk");
                    // More at once than the target has receives for commands alone.
                    let tasks: Vec<_> = [512, 3072, 3584, 8192, 8704, 16384, 16896, 70_144, 300_032]
                        .into_iter()
                        .cycle()
                        .take(110)
                        .enumerate()
                        .map(|(i, len)| {
                            let (disk, at) = (disk.clone(), i as u64 * 300_032);
                            host.rt.spawn(async move {
                                let bytes = pattern(i, len);
                                disk.write(at, bytes.clone().into()).await.expect("writes");
                                assert_eq!(disk.read(at, len).await.expect("reads"), bytes);
                            })
                        })
                        .collect();
                    for task in tasks {
                        task.await.expect("ends");
                    }
                    assert_eq!(session.reconnects(), 0, "{wire}");
                    session.logout().await;
                });
                lab.world.run_for(Duration::from_secs(30));
                assert_eq!((lab.target.sessions(), lab.disk.nexuses.get(), lab.memory_in_use()), (0, 0, 0));
            }
        }
    }
}

fn write_10(blocks: u8) -> [u8; 10] {
    [0x2a, 0, 0, 0, 0, 0, 0, 0, blocks, 0]
}

/// Bytes `from..to` of a pattern, of command `itt`.
fn data_out(itt: u32, data_sn: u32, from: usize, to: usize, last: bool) -> Pdu {
    let flags = if last { FINAL } else { 0 };
    let header = DataOut { flags, itt, ttt: NO_TAG, data_sn, offset: from as u32, ..DataOut::default() };
    Pdu::with_data(header, pattern(6, 65536)[from..to].to_vec())
}

/// Sends a WRITE of 64 blocks with `immediate` bytes and these Data-Out PDUs; its status and additional sense code.
async fn write(raw: &Raw, itt: u32, immediate: usize, tag: Option<Tagged>, data: &[Pdu]) -> (u8, [u8; 2]) {
    let mut command = raw.command(itt, ScsiCommand::WRITE, 64 * 512, &write_10(64));
    command.data = pattern(6, 65536)[..immediate].to_vec().into();
    if let Header::ScsiCommand(header) = &mut command.header
        && !data.is_empty()
    {
        header.flags &= !FINAL;
    }
    raw.say(ControlHeader { write: tag, read: None }, &command);
    data.iter().for_each(|pdu| raw.say(ControlHeader::default(), pdu));
    let pdu = raw.hear().await.expect("a response");
    let Header::ScsiResponse(response) = pdu.header else { panic!("{pdu:?}") };
    assert_eq!(response.itt, itt);
    (response.status, pdu.data.get(14..16).map_or([0, 0], |asc| [asc[0], asc[1]]))
}

const GOOD: (u8, [u8; 2]) = (0, [0, 0]);
/// UNEXPECTED UNSOLICITED DATA, INCORRECT AMOUNT OF DATA (RFC 7143 §11.4.7.2).
const UNEXPECTED: (u8, [u8; 2]) = (2, [0x0c, 0x0c]);
const INCORRECT: (u8, [u8; 2]) = (2, [0x0c, 0x0d]);

/// Data-Out PDUs in SENDs behind their command, the rest by RDMA READ from an STag of what is solicited; what comes where none
/// may, too much of it, or out of its order ends its command alone.
#[test]
fn what_a_target_takes() {
    let lab = lab(2, everywire_sim::HostConfig::new, TargetOptions::default());
    let disk = lab.disk.clone();
    lab.run(|host| async move {
        let raw = Raw::connect(&host, 0xc0).await;
        let (status, keys) = raw.login(LINUX).await;
        assert_eq!(status, (0, 0), "{keys:?}");
        let key = |name: &str| keys.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        assert_eq!((key("InitialR2T"), key("FirstBurstLength")), (Some("No"), Some("16384")));
        raw.data.write_at(0, &pattern(6, 65536)[16384..32768]).expect("inside");
        let rest = Some(raw.tag(0));
        let two = [data_out(1, 0, 512, 8704, false), data_out(1, 1, 8704, 16384, true)];
        assert_eq!(write(&raw, 1, 512, rest, &two).await, GOOD);
        assert_eq!(disk.bytes.borrow()[..64 * 512], pattern(6, 65536)[..64 * 512]);
        let too_much = [data_out(2, 0, 8192, 16384, false), data_out(2, 1, 16384, 16896, true)];
        assert_eq!(write(&raw, 2, 8192, rest, &too_much).await, INCORRECT);
        let gap = [data_out(3, 0, 8704, 16384, true)];
        assert_eq!(write(&raw, 3, 8192, rest, &gap).await, INCORRECT);
        let numbered = [data_out(4, 1, 8192, 16384, true)];
        assert_eq!(write(&raw, 4, 8192, rest, &numbered).await, INCORRECT);
        // Less than FirstBurstLength: the READ begins where it ended.
        raw.data.write_at(0, &pattern(6, 65536)[1024..32768]).expect("inside");
        assert_eq!(write(&raw, 5, 512, rest, &[data_out(5, 0, 512, 1024, true)]).await, GOOD);
    });
    let lab = RdmaLab::new(3);
    lab.run(|host| async move {
        let raw = Raw::connect(&host, 0xc0).await;
        assert_eq!(raw.login(LINUX).await.0, (0, 0));
        let one = [data_out(1, 0, 512, 8704, true)];
        assert_eq!(write(&raw, 1, 512, Some(raw.tag(0)), &one).await, UNEXPECTED, "InitialR2T=Yes");
    });
}
