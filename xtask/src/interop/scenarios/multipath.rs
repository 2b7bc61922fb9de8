//! Two ways to one disk: dm-multipath of a stock Linux host over two portals of our target, with ALUA by its REPORT TARGET PORT
//! GROUPS. Under verified I/O one of the portals' addresses goes and comes back, then the other. The host must see each path fail
//! and return, and lose nothing.

use std::time::Duration;

use super::{Case, ours};
use crate::interop::bench::Bench;
use crate::interop::lab::{Background, Family, HOST, address};
use crate::interop::wire::Wire;

const IQN: &str = "iqn.2026-01.lab:ours";
/// SRP's target port: its identifier extension and the I/O controller's GUID.
const EXT: &str = "0002c90300000001";
const GUID: &str = "0002c90300000002";
const LIMIT: Duration = Duration::from_secs(300);
/// How long fio runs before the first path goes, and between one and the next.
const BEFORE: Duration = Duration::from_secs(4);

/// The portals, in the order of the host's disks.
const WAYS: [Family; 2] = [Family::V4, Family::V6];

pub fn cases() -> Vec<Case> {
    let iscsi = |name| {
        Case::new(name, "dm-multipath over two portals: ALUA, each path lost under fio and back", iscsi)
            .losing_paths()
    };
    let about = "dm-multipath over two logins of ib_srp: ALUA, each path lost under fio and back";
    vec![
        iscsi("iscsi-multipath-tcp").tcp(),
        iscsi("iscsi-multipath-iser").in_sample(),
        Case::new("srp-multipath", about, srp).losing_paths(),
    ]
}

/// Our target at both of the host's addresses, once it listens.
fn serve(bench: &Bench, more: &[&str], ready: &str) -> Result<Background, String> {
    let devices = WAYS.map(|family| bench.wire.device(address(HOST, family)));
    let devices = devices.iter().flat_map(|device| ["--device", device.as_str()]);
    let arguments: Vec<&str> = ["serve"].into_iter().chain(devices).chain(more.iter().copied()).collect();
    let mut target = bench.everywire("serve", &arguments)?;
    target.wait_for(ready, LIMIT)?;
    Ok(target)
}

fn iscsi(bench: &mut Bench) -> Result<(), String> {
    let (disk, [v4, v6]) = (format!("{IQN}=ram:256MiB"), WAYS.map(|family| address(HOST, family)));
    let (v4_portal, v6_portal) = (v4.to_string(), format!("[{v6}]"));
    let mut arguments = vec!["--iscsi", disk.as_str()];
    let interface = if bench.wire == Wire::Tcp {
        arguments.extend(["--tcp", &v4_portal, "--tcp", &v6_portal]);
        "default"
    } else {
        "iser"
    };
    let target = serve(bench, &arguments, "serving iqn")?;
    let work = || {
        bench.a.ok_within(&format!("bash /lab/iscsi-paths.sh {IQN} {interface} {v4} {v6}"), LIMIT)?;
        across(bench)?;
        bench.a.ok_within(&format!("bash /lab/iscsi-paths.sh {IQN} logout"), LIMIT).map(drop)
    };
    work().map_err(|why| ours::with_words_of(&target, &why))?;
    ours::end_serve(target)
}

/// An initiator port of its own for each path: a second login of one port would take the first one's place (SRP §5.4).
fn srp(bench: &mut Bench) -> Result<(), String> {
    let arguments = ["--srp", "disk=ram:256MiB", "--srp-id-ext", EXT, "--srp-ioc-guid", GUID];
    let target = serve(bench, &arguments, "serving disk")?;
    let (ids, [v4, v6]) = (format!("id_ext={EXT},ioc_guid={GUID}"), WAYS.map(|family| address(HOST, family)));
    let work = || {
        bench.a.ok_within(&format!("bash /lab/srp-login.sh {ids} {v4} fast_io_fail_tmo=5"), LIMIT)?;
        let second = format!("bash /lab/srp-second.sh {ids},initiator_ext=0000000000000002 {v6}");
        bench.a.ok_within(&second, LIMIT)?;
        bench.a.ok("for of in disk second; do basename $(cat /run/srp-$of); done >/run/paths")?;
        across(bench)?;
        bench.a.ok("bash /lab/srp-logout.sh").map(drop)
    };
    work().map_err(|why| ours::with_words_of(&target, &why))?;
    ours::end_serve(target)
}

/// One path after the other, on the disks that /run/paths names.
fn across(bench: &Bench) -> Result<(), String> {
    bench.a.ok_within("bash /lab/multipath-up.sh", LIMIT)?;
    let fio = bench.a.start("bash /lab/multipath-fio.sh")?;
    for (at, family) in WAYS.into_iter().enumerate() {
        let path = |state: &str| {
            let disk = format!("$(sed -n {}p /run/paths)", at + 1);
            bench.a.ok_within(&format!("bash /lab/multipath-path.sh {disk} {state}"), LIMIT)
        };
        std::thread::sleep(BEFORE);
        bench.a.ok("echo '<6>lab: a path goes' >/dev/kmsg")?;
        bench.lab.lose_address(family)?;
        path("failed")?;
        bench.lab.give_address(family)?;
        path("active")?;
    }
    bench.a.ok("touch /run/multipath-enough")?;
    let done = bench.a.wait(fio, LIMIT)?;
    if done.code != 0 {
        return Err(format!("fio across the losses: {}", done.output));
    }
    bench.a.ok_within("bash /lab/multipath-down.sh", LIMIT).map(drop)
}
