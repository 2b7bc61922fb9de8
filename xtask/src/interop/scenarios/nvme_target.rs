//! A stock Linux host on our NVMe target: discovery, files, fio with verification, the target killed and started
//! again, a lossy link. What the host's kernel says about it is inspected by the bench.

use std::time::Duration;

use rustix::process::Signal;

use super::{Case, TWO_LINKS, ours, over_siw};
use crate::interop::bench::Bench;
use crate::interop::lab::Background;
use crate::interop::wire::Siw;

const NQN: &str = "nqn.2026-01.lab:ours";
const LIMIT: Duration = Duration::from_secs(300);
/// How fast a killed target is noticed and looked for again: for hosts whose target is killed.
const IMPATIENT: &str = "--keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=120";
/// For all others, since a machine that stands still for a few seconds ends an association of 5 s for nothing. On a lossy link for
/// those too: soft-RoCE waits 2.1 s (its ACK timeout of 19) before it repeats a lost last packet, and at a keep
/// alive timeout of 5 s the host calls an answer that late "long".
const PATIENT: &str = "--keep-alive-tmo=30 --reconnect-delay=1 --ctrl-loss-tmo=120";

pub fn cases() -> Vec<Case> {
    let files = || {
        Case::new(
            "nvme-target-files",
            "discover, connect 2 queues, ext4 and a file tree, errors, disconnect",
            files,
        )
    };
    let short =
        || Case::new("nvme-target-fio", "fio --verify=crc32c, random 512 B to 1 MiB, 10 s", fio_short);
    let long =
        || Case::new("nvme-target-fio-long", "fio --verify=crc32c, random 512 B to 1 MiB, 30 s", fio_long);
    let kill = || {
        Case::new("nvme-target-kill", "kill -9 of the target under I/O; the host comes back", kill)
            .reconnecting()
    };
    let registering = Case::new(
        "nvme-target-registering",
        "fio as above, host as it is by default: it may reconnect, and nothing is lost",
        fio_short,
    );
    let roce = vec![
        files().in_sample(),
        short().v6().jumbo().in_sample(),
        kill().in_sample(),
        short().lossy().in_sample(),
        files().v6(),
        files().jumbo(),
        files().v6().jumbo(),
        files().lossy(),
        files().v6().jumbo().lossy(),
        long(),
        long().jumbo(),
        long().v6(),
        long().v6().jumbo(),
        long().lossy(),
        long().v6().jumbo().lossy(),
        kill().jumbo(),
        kill().v6(),
        kill().v6().jumbo(),
        kill().lossy(),
        registering.lossy().registering().reconnecting(),
    ];
    // TCP's own errors do not trip siw, so that its host is as it is by default where packets are lost too.
    let lossy = short().siw(Siw::Crc).lossy().registering();
    let siw = [files(), short(), kill()].into_iter().flat_map(|case| over_siw(&case, &TWO_LINKS));
    roce.into_iter().chain(siw).chain([lossy]).collect()
}

/// Our target on a backend, once it answers discovery.
fn serve(bench: &Bench, name: &str, backend: &str) -> Result<Background, String> {
    let disk = format!("{NQN}={backend}");
    let mut target = bench.everywire(name, &["serve", "--device", &bench.device(), "--nvme", &disk])?;
    target.wait_for("listening on", LIMIT)?;
    let address = bench.host_address();
    let discover = format!(
        "modprobe nvme_rdma; bash /lab/retry.sh 'nvme discover -t rdma -a {address} -s 4420 | grep {NQN}'"
    );
    match bench.a.ok_within(&discover, LIMIT) {
        Ok(_) => Ok(target),
        Err(why) => Err(ours::with_words_of(&target, &why)),
    }
}

/// Runs host work against our target; SIGTERM must end it with exit code 0 and no error in its log.
fn with_target(
    bench: &Bench,
    backend: &str,
    work: impl Fn(&Bench) -> Result<(), String>,
) -> Result<(), String> {
    let target = serve(bench, "serve", backend)?;
    work(bench).map_err(|why| ours::with_words_of(&target, &why))?;
    ours::end_serve(target)
}

fn connect(bench: &Bench, options: &str) -> Result<(), String> {
    let address = bench.host_address();
    // Soft-RoCE can lose a queue pair for good when it registers on a lossy link (bench.rs); the host notices by a command's
    // timeout, 30 s as Linux has it.
    let timeout = if bench.lossy && bench.registers { 5 } else { 30 };
    let connect = format!(
        "modprobe nvme_core; echo {timeout} >/sys/module/nvme_core/parameters/io_timeout; bash /lab/nvme-connect.sh {address} {NQN} 2 {options}"
    );
    bench.a.ok_within(&connect, LIMIT)?;
    Ok(())
}

fn disconnect(bench: &Bench) -> Result<(), String> {
    bench.a.ok_within(&format!("nvme disconnect -n {NQN}"), LIMIT)?;
    Ok(())
}

/// With `register_always=N` and one segment a request the host registers nothing, so that soft-RoCE's own error (bench.rs)
/// stays out of the way, and a connection must live through every loss.
fn without_registration(bench: &Bench, work: impl Fn(&Bench) -> Result<(), String>) -> Result<(), String> {
    bench.a.ok("modprobe -r nvme_rdma; modprobe nvme_rdma register_always=N")?;
    work(bench)?;
    bench.a.ok("modprobe -r nvme_rdma; echo 0 >/proc/sys/vm/nr_hugepages")?;
    Ok(())
}

fn files(bench: &mut Bench) -> Result<(), String> {
    if bench.lossy { without_registration(bench, use_files) } else { use_files(bench) }
}

fn use_files(bench: &Bench) -> Result<(), String> {
    with_target(bench, "ram:256MiB", |bench| {
        connect(bench, PATIENT)?;
        bench.a.ok(
            "d=$(cat /run/nvme-disk); nvme id-ctrl $d; nvme id-ns $d; nvme list-subsys; nvme smart-log $d",
        )?;
        let tree = if bench.lossy {
            // A page a request is one segment, and lives in no registration.
            bench.a.ok("for limit in /sys/block/nvme*/queue/max_sectors_kb; do echo 4 >$limit; done")?;
            "/etc"
        } else {
            "/etc /usr/bin"
        };
        bench.a.ok_within("bash /lab/nvme-patterns.sh $(cat /run/nvme-disk) 'LBA Out of Range'", LIMIT)?;
        bench.a.ok_within("bash /lab/nvme-zeroes.sh $(cat /run/nvme-disk)", LIMIT)?;
        bench.a.ok_within(&format!("bash /lab/nvme-files.sh $(cat /run/nvme-disk) {tree}"), LIMIT)?;
        disconnect(bench)
    })
}

fn fio(bench: &Bench, seconds: u32) -> Result<(), String> {
    if bench.lossy && !bench.registers {
        without_registration(bench, |bench| use_fio(bench, seconds, "huge"))
    } else {
        use_fio(bench, seconds, "")
    }
}

fn use_fio(bench: &Bench, seconds: u32, memory: &str) -> Result<(), String> {
    with_target(bench, "ram:256MiB", |bench| {
        connect(bench, PATIENT)?;
        let limit = Duration::from_secs(u64::from(seconds)) + LIMIT;
        bench
            .a
            .ok_within(&format!("bash /lab/nvme-fio.sh $(cat /run/nvme-disk) {seconds} {memory}"), limit)?;
        disconnect(bench)
    })
}

fn fio_short(bench: &mut Bench) -> Result<(), String> {
    fio(bench, 10)
}

fn fio_long(bench: &mut Bench) -> Result<(), String> {
    fio(bench, 30)
}

/// A file that outlives the target; fio runs across the kill, and bytes flushed before it are there after it.
fn kill(bench: &mut Bench) -> Result<(), String> {
    if bench.lossy { without_registration(bench, kill_and_return) } else { kill_and_return(bench) }
}

fn kill_and_return(bench: &Bench) -> Result<(), String> {
    let file = bench.folder.join("disk");
    let backend = format!("file:{},size=128MiB", file.display());
    let first = serve(bench, "serve-1", &backend)?;
    connect(bench, if bench.lossy { PATIENT } else { IMPATIENT })?;
    let disk = "d=$(cat /run/nvme-disk)";
    bench.a.ok(&format!("{disk}; dd if=/dev/urandom of=/tmp/before bs=64k count=16 status=none; dd if=/tmp/before of=$d bs=64k seek=1500 oflag=direct conv=fsync status=none"))?;
    let memory = if bench.lossy { "huge" } else { "" };
    let job = bench.a.start(&format!("{disk}; bash /lab/nvme-fio.sh $d 20 {memory}"))?;
    std::thread::sleep(Duration::from_secs(6));
    first.signal(Signal::KILL);
    first.end(Duration::from_secs(10));
    std::thread::sleep(Duration::from_secs(2));
    let second = bench.everywire(
        "serve-2",
        &["serve", "--device", &bench.device(), "--nvme", &format!("{NQN}={backend}")],
    )?;
    let done = bench.a.wait(job, LIMIT)?;
    if done.code != 0 {
        return Err(format!("fio across the kill: {}\nserve said:\n{}", done.output, second.output()));
    }
    bench.a.ok(&format!(
        "{disk}; dd if=$d bs=64k skip=1500 count=16 iflag=direct status=none | cmp - /tmp/before"
    ))?;
    let state = bench.a.ok("dmesg | grep -c 'Successfully reconnected' || true")?;
    disconnect(bench)?;
    let _ = std::fs::remove_file(&file);
    if state.trim() == "0" {
        return Err("the host never said that it reconnected: the kill was not seen".into());
    }
    second.signal(Signal::TERM);
    match second.end(Duration::from_secs(30)) {
        (Some(0), _) => Ok(()),
        (code, output) => Err(format!("serve: exit {code:?} after SIGTERM:\n{output}")),
    }
}
