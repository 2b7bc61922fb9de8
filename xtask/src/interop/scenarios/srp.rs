//! SRP over RDMA/CM: Linux's ib_srp on our target, our initiator on Linux's ib_srpt, and that one as a disk of the guest. Files,
//! fio with verification, buffers of many descriptors, the target killed and started again, a lossy link.

use std::time::Duration;

use rustix::process::Signal;

use super::{Case, ours};
use crate::interop::bench::Bench;
use crate::interop::lab::Background;

const EXT: &str = "0002c90300000001";
const GUID: &str = "0002c90300000002";
const LIMIT: Duration = Duration::from_secs(300);
/// MiB that fio works on.
const COMPARED: u32 = 64;

pub fn cases() -> Vec<Case> {
    let files = || {
        Case::new(
            "srp-target-files",
            "ib_srp with 2 channels: sg3-utils, ext4 and a file tree, logout",
            files,
        )
    };
    let fio = || Case::new("srp-target-fio", "ib_srp: fio --verify=crc32c, random 512 B to 8 MiB, 10 s", fio);
    let many =
        || Case::new("srp-target-many", "ib_srp without registrations: 255 descriptors and more, fio", many);
    let persist =
        Case::new("srp-target-persist", "reservations: two initiator ports, every type; APTPL", persist);
    let kill = || Case::new("srp-target-kill", "kill -9 of the target under I/O; ib_srp comes back", kill);
    let refused =
        || Case::new("srp-target-refused", "ib_srp with a wrong id_ext: the reason in words", refused);
    let io =
        || Case::new("srp-initiator", "everywire srp on Linux's ib_srpt, bytes checked in the guest", io);
    let attach = || Case::new("srp-attach-fio", "our initiator on ib_srpt as /dev/nbd0: ext4, fio", attach);
    vec![
        files().in_sample(),
        files().v6().jumbo(),
        fio(),
        fio().v6().jumbo(),
        many().in_sample(),
        persist.reconnecting(),
        kill().reconnecting().in_sample(),
        refused().reconnecting().in_sample(),
        io().in_sample(),
        io().jumbo(),
        attach().in_sample(),
    ]
}

/// Our target on a backend, once it listens.
fn serve(bench: &Bench, name: &str, backend: &str) -> Result<Background, String> {
    let disk = format!("disk={backend}");
    let device = bench.device();
    let ids = ["--srp-id-ext", EXT, "--srp-ioc-guid", GUID];
    let args = [&["serve", "--device", &device, "--srp", &disk][..], &ids].concat();
    let mut target = bench.everywire(name, &args)?;
    target.wait_for("SRP target disk: id_ext=", LIMIT)?;
    Ok(target)
}

fn login(bench: &Bench, options: &str) -> Result<String, String> {
    let address = bench.host_address();
    let login = format!("bash /lab/srp-login.sh id_ext={EXT},ioc_guid={GUID} {address} {options}");
    bench.a.ok_within(&login, LIMIT)
}

fn with_target(
    bench: &Bench,
    backend: &str,
    work: impl Fn(&Bench) -> Result<(), String>,
) -> Result<(), String> {
    let target = serve(bench, "serve", backend)?;
    let done = work(bench).and_then(|()| bench.a.ok("bash /lab/srp-logout.sh").map(drop));
    done.map_err(|why| ours::with_words_of(&target, &why))?;
    ours::end_serve(target)
}

fn on_disk(bench: &Bench, script: &str) -> Result<(), String> {
    bench.a.ok_within(&format!("disk=$(cat /run/srp-disk); {script}"), LIMIT).map(drop)
}

fn files(bench: &mut Bench) -> Result<(), String> {
    with_target(bench, "ram:256MiB", |bench| {
        let said = login(bench, "ch_count=2")?;
        if !said.contains("ch_count 2") {
            return Err(format!("ib_srp has not got two channels: {said}"));
        }
        on_disk(bench, "bash /lab/srp-commands.sh $disk")?;
        on_disk(bench, "bash /lab/nvme-files.sh $disk /etc /usr/bin")
    })
}

fn fio(bench: &mut Bench) -> Result<(), String> {
    with_target(bench, "ram:256MiB", |bench| {
        login(bench, "")?;
        on_disk(bench, "bash /lab/scsi-fio.sh $disk 10")
    })
}

/// Two initiator ports of one host, and so two initiators to a reservation. What APTPL keeps is on the target's disk: it is killed,
/// and the next one has it.
fn persist(bench: &mut Bench) -> Result<(), String> {
    let file = bench.folder.join("disk");
    let backend = format!("file:{},size=64MiB", file.display());
    let on_disks = |script: &str| on_disk(bench, &format!("bash /lab/{script} $disk $(cat /run/srp-second)"));
    let first = serve(bench, "serve-1", &backend)?;
    let second = format!(
        "bash /lab/srp-second.sh id_ext={EXT},ioc_guid={GUID},initiator_ext=0000000000000002 {}",
        bench.host_address()
    );
    login(bench, "")
        .and_then(|_| bench.a.ok_within(&second, LIMIT))
        .and_then(|_| on_disks("persist.sh"))
        .and_then(|()| on_disks("persist-keep.sh set"))
        .map_err(|why| ours::with_words_of(&first, &why))?;
    first.signal(Signal::KILL);
    first.end(Duration::from_secs(10));
    let second = serve(bench, "serve-2", &backend)?;
    on_disks("persist-keep.sh check")
        .and_then(|()| bench.a.ok("bash /lab/srp-logout.sh").map(drop))
        .map_err(|why| ours::with_words_of(&second, &why))?;
    let _ = std::fs::remove_file(&file);
    ours::end_serve(second)
}

/// Without registrations every page is a descriptor. First with tables that the command holds, then with tables that the target
/// fetches.
fn many(bench: &mut Bench) -> Result<(), String> {
    let plain = "register_always=N never_register=Y";
    for options in ["cmd_sg_entries=255", "cmd_sg_entries=12 indirect_sg_entries=2048 allow_ext_sg=1"] {
        with_target(bench, "ram:256MiB", |bench| {
            login(bench, &format!("{plain} {options}"))?;
            let large = "for q in /sys/block/sd*/queue; do cat $q/max_hw_sectors_kb >$q/max_sectors_kb; done";
            on_disk(bench, large)?;
            on_disk(bench, "bash /lab/nvme-fio.sh $disk 5")?;
            on_disk(
                bench,
                "head -c 8388608 /dev/urandom >/tmp/large; dd if=/tmp/large of=$disk bs=8M oflag=direct status=none; \
                 dd if=$disk bs=8M count=1 iflag=direct status=none | cmp - /tmp/large",
            )
        })?;
    }
    Ok(())
}

/// A file that outlives the target; fio runs across the kill, and bytes flushed before it are there after it.
fn kill(bench: &mut Bench) -> Result<(), String> {
    let file = bench.folder.join("disk");
    let backend = format!("file:{},size=128MiB", file.display());
    let first = serve(bench, "serve-1", &backend)?;
    login(bench, "")?;
    on_disk(
        bench,
        "dd if=/dev/urandom of=/tmp/before bs=64k count=16 status=none; \
         dd if=/tmp/before of=$disk bs=64k seek=1500 oflag=direct conv=fsync status=none",
    )?;
    let job = bench.a.start("bash /lab/nvme-fio.sh $(cat /run/srp-disk) 20")?;
    std::thread::sleep(Duration::from_secs(6));
    first.signal(Signal::KILL);
    first.end(Duration::from_secs(10));
    std::thread::sleep(Duration::from_secs(2));
    let second = serve(bench, "serve-2", &backend)?;
    let done = bench.a.wait(job, LIMIT)?;
    if done.code != 0 {
        return Err(format!("fio across the kill: {}\nserve said:\n{}", done.output, second.output()));
    }
    on_disk(bench, "dd if=$disk bs=64k skip=1500 count=16 iflag=direct status=none | cmp - /tmp/before")?;
    let back = bench.a.ok("dmesg | grep -c 'reconnect succeeded' || true")?;
    bench.a.ok("bash /lab/srp-logout.sh")?;
    let _ = std::fs::remove_file(&file);
    if back.trim() == "0" {
        return Err("ib_srp never said that it reconnected: the kill was not seen".into());
    }
    ours::end_serve(second)
}

/// SR-02: who is refused hears why, on both ends.
fn refused(bench: &mut Bench) -> Result<(), String> {
    let target = serve(bench, "serve", "ram:64MiB")?;
    let address = bench.host_address();
    let wrong = format!("id_ext=1,ioc_guid={GUID},dest={address}:5555");
    let add = format!(
        "modprobe ib_srp; if echo {wrong} >/sys/class/infiniband_srp/srp-rxe0-1/add_target; then exit 1; fi; \
         dmesg | grep 'SRP LOGIN.* REJECTED, reason 0x00010003'"
    );
    bench.a.ok(&add).map_err(|why| ours::with_words_of(&target, &why))?;
    bench.a.ok("modprobe -r ib_srp")?;
    let said = target.output();
    if !said.contains("unable to associate") || !said.contains("0x00010003") {
        return Err(format!("serve does not say why it refused:\n{said}"));
    }
    ours::end_serve(target)
}

/// Linux's target, up while `work` runs; it gets the target port.
fn with_srpt(bench: &Bench, work: impl Fn(&str) -> Result<(), String>) -> Result<(), String> {
    let (ours, theirs) = (bench.host_address(), bench.a_address());
    let said = bench.a.ok_within(&format!("bash /lab/srpt-up.sh {ours} {theirs}"), LIMIT)?;
    let id = said.lines().last().unwrap_or_default().trim().to_owned();
    let outcome = work(&id);
    bench.a.ok("bash /lab/srpt-down.sh")?;
    outcome
}

fn io(bench: &mut Bench) -> Result<(), String> {
    with_srpt(bench, |id| {
        let (device, address) = (bench.device(), bench.a_address().to_string());
        let srp = |what: &str, more: &[&str]| {
            let all = [&["srp", what, "--device", &device, &address, id], more].concat();
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        bench.everywire_io("info", &srp("info", &["--channels", "2"]), None, LIMIT)?;
        // Immediate data, direct and indirect descriptors; offsets that are block multiples, not page multiples.
        let forms: [&[&str]; 4] = [
            &[],
            &["--immediate", "0"],
            &["--segment", "4096", "--descriptors", "255"],
            &["--channels", "2", "--segment", "65536", "--descriptors", "64"],
        ];
        for (i, (offset, length)) in
            [(0usize, 512usize), (4096 + 512, 4096), (1 << 20, 65536), (2 << 20, (3 << 20) + 512)]
                .into_iter()
                .enumerate()
        {
            let (at, long) = (offset.to_string(), length.to_string());
            let out = bench.lab.folder.join("share/ours");
            let bytes: Vec<u8> = (0..length).map(|i| ((i * 7 + i / 251 + offset) % 256) as u8).collect();
            std::fs::write(&out, &bytes).map_err(|e| e.to_string())?;
            let write = srp("write", &[&["--offset", &at], forms[i]].concat());
            bench.everywire_io("write", &write, Some(&out), LIMIT)?;
            let (block, blocks) = (offset / 512, length / 512);
            bench.a.ok(&format!(
                "dd if=/dev/ram0 bs=512 skip={block} count={blocks} iflag=direct status=none | cmp - /lab/ours"
            ))?;
            let read = srp("read", &[&["--offset", &at, "--length", &long], forms[i]].concat());
            if bench.everywire_io("read", &read, None, LIMIT)? != bytes {
                return Err(format!("read {length} B at {offset}: not the bytes that were written"));
            }
        }
        Ok(())
    })
}

fn attach(bench: &mut Bench) -> Result<(), String> {
    with_srpt(bench, |id| {
        let (device, target) = (bench.device(), bench.a_address().to_string());
        let args = ["srp", "attach", "--device", &device, &target, id, "--channels", "2"];
        ours::attached(bench, &args, COMPARED, |_| {
            bench.a.ok_within("bash /lab/nvme-files.sh /dev/nbd0 /etc", LIMIT)?;
            bench.a.ok_within("bash /lab/nvme-fio.sh /dev/nbd0 10", LIMIT).map(drop)
        })
    })
}
