//! One guest: a stock Debian kernel under QEMU, and the jobs run in it.
//!
//! A job is a shell script in the shared folder; its number goes through a virtio port, and the guest's agent
//! answers with the exit code (interop/guest/init). No job puts a byte on the network of its own.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::hang;
use super::lab::{Family, Lab, address};
use crate::shell;

/// Boot to agent: 6–9 s emulated on an idle machine, four times that on a busy one.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// For a job with no limit of its own.
const JOB_LIMIT: Duration = Duration::from_secs(120);

/// How often the console is looked at while a job runs.
const CONSOLE_LOOK: Duration = Duration::from_secs(2);

/// A guest that answers.
pub struct Guest {
    /// "A" or "B".
    pub name: &'static str,
    number: u8,
    qemu: Child,
    console: PathBuf,
    jobs: PathBuf,
    port: UnixStream,
    ended: Arc<Ended>,
    next: AtomicU64,
}

/// Exit codes by job, and whether the channel is still there.
#[derive(Default)]
struct Ended {
    state: Mutex<(HashMap<u64, i32>, bool)>,
    changed: Condvar,
}

/// A job's exit code and output.
pub struct Done {
    pub code: i32,
    pub output: String,
}

/// A job that was started and not yet waited for.
#[must_use]
pub struct Job(u64);

impl Guest {
    pub(super) fn boot(
        lab: &Lab,
        image: &Path,
        name: &'static str,
        number: u8,
        tap: &str,
    ) -> Result<Guest, String> {
        let started = Instant::now();
        let jobs = lab.folder.join("share/jobs").join(name);
        fs::create_dir_all(&jobs).map_err(|e| format!("{}: {e}", jobs.display()))?;
        // The path of a UNIX socket is short by nature, the lab's folder need not be.
        let socket = std::env::temp_dir().join(format!("everywire-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(|e| format!("{}: {e}", socket.display()))?;
        let console = lab.folder.join(format!("{name}.console"));
        let mut command = qemu(lab, image, (name, number), tap, &socket, &console);
        let mut qemu = shell::spawn(&mut command, &lab.folder.join(format!("{name}.qemu")))?;
        let port = accept(&listener, &mut qemu, &console);
        let _ = fs::remove_file(&socket);
        let port = port.inspect_err(|_| shell::kill_group(&qemu))?;
        let ended = Arc::<Ended>::default();
        let reader = port.try_clone().map_err(|e| e.to_string())?;
        let (tell, up) = std::sync::mpsc::channel();
        let theirs = Arc::clone(&ended);
        std::thread::spawn(move || read_answers(reader, &tell, &theirs));
        let guest = Guest { name, number, qemu, console, jobs, port, ended, next: AtomicU64::new(1) };
        up.recv_timeout(BOOT_LIMIT).map_err(|_| guest.dead("did not come up"))?;
        println!("    guest {name} up after {:.1} s", started.elapsed().as_secs_f32());
        Ok(guest)
    }

    /// The guest's address.
    pub fn address(&self, family: Family) -> std::net::IpAddr {
        address(self.number, family)
    }

    /// Starts a job and does not wait.
    pub fn start(&self, script: &str) -> Result<Job, String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.jobs.join(format!("{number}.sh"));
        fs::write(&path, script).map_err(|e| format!("{}: {e}", path.display()))?;
        writeln!(&self.port, "{number}").map_err(|e| self.dead(&format!("takes no jobs ({e})")))?;
        Ok(Job(number))
    }

    /// Waits for a job's end; no longer than until the guest's kernel says that it hangs.
    pub fn wait(&self, job: Job, limit: Duration) -> Result<Done, String> {
        self.wait_unless(job, limit, || self.stuck().map(|line| format!("guest {} hangs: {line}", self.name)))
    }

    /// The line of the console that says that the guest's kernel hangs.
    fn stuck(&self) -> Option<String> {
        let console = fs::read(&self.console).unwrap_or_default();
        hang::stuck(&String::from_utf8_lossy(&console)).map(|line| line.trim().to_owned())
    }

    /// The kernel's log; of a kernel that hangs with the stack of every task that is blocked.
    pub fn kernel_log(&self) -> Result<String, String> {
        let blocked = if self.stuck().is_some() { "echo w >/proc/sysrq-trigger; " } else { "" };
        let job = self.start(&format!("{blocked}dmesg -x"))?;
        Ok(self.wait_unless(job, JOB_LIMIT, || None)?.output)
    }

    /// Waits for a job's end until `no_more` says why it is not worth it.
    fn wait_unless(
        &self,
        job: Job,
        limit: Duration,
        no_more: impl Fn() -> Option<String>,
    ) -> Result<Done, String> {
        let end = Instant::now() + limit;
        let mut state = self.ended.state.lock().map_err(|e| e.to_string())?;
        loop {
            if let Some(code) = state.0.remove(&job.0) {
                return Ok(Done { code, output: self.output(&job) });
            }
            if state.1 {
                return Err(self.dead("died"));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!(
                    "guest {}: job {} still runs after {limit:?}:\n{}",
                    self.name,
                    job.0,
                    self.output(&job)
                ));
            }
            if let Some(why) = no_more() {
                return Err(format!("{why}; job {} had said:\n{}", job.0, self.output(&job)));
            }
            let left = left.min(CONSOLE_LOOK);
            state = self.ended.changed.wait_timeout(state, left).map_err(|e| e.to_string())?.0;
        }
    }

    /// What a job has printed so far.
    pub fn output(&self, job: &Job) -> String {
        let bytes = fs::read(self.jobs.join(format!("{}.out", job.0))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Runs a job to its end, whatever its exit code.
    pub fn sh(&self, script: &str, limit: Duration) -> Result<Done, String> {
        self.wait(self.start(script)?, limit)
    }

    /// Runs a job that must succeed, and gives its output.
    pub fn ok(&self, script: &str) -> Result<String, String> {
        self.ok_within(script, JOB_LIMIT)
    }

    /// Runs a job that must succeed within `limit`, and gives its output.
    pub fn ok_within(&self, script: &str, limit: Duration) -> Result<String, String> {
        let done = self.sh(script, limit)?;
        if done.code == 0 {
            return Ok(done.output);
        }
        Err(format!("guest {}: exit {} from: {script}\n{}", self.name, done.code, done.output))
    }

    fn dead(&self, what: &str) -> String {
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<&str> = console.lines().collect();
        let tail = lines[lines.len().saturating_sub(30)..].join("\n");
        format!("guest {} {what}; its console ends with:\n{tail}", self.name)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        shell::kill_group(&self.qemu);
        let _ = self.qemu.wait();
    }
}

fn qemu(lab: &Lab, image: &Path, who: (&str, u8), tap: &str, socket: &Path, console: &Path) -> Command {
    let (name, number) = who;
    let (v4, v6) = (address(number, Family::V4), address(number, Family::V6));
    let mut qemu = lab.host("qemu-system-x86_64");
    qemu.args(["-machine", "q35", "-cpu", "max", "-smp", "2", "-m", "768", "-nodefaults", "-no-reboot"]);
    qemu.args(["-display", "none"]);
    qemu.args(accelerator());
    qemu.arg("-kernel").arg(image.join("vmlinux")).arg("-initrd").arg(image.join("initrd.img"));
    let quiet =
        "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr random.trust_cpu=on net.ifnames=0";
    let own = format!("lab.name={name} lab.v4={v4} lab.v6={v6} lab.mtu={}", lab.mtu);
    qemu.args(["-append", &format!("{quiet} {} {own}", hang::TASK_LIMIT)]);
    let disk = image.join("rootfs.ext4");
    qemu.args(["-drive", &format!("file={},if=virtio,format=raw,snapshot=on", disk.display())]);
    qemu.args(["-netdev", &format!("tap,id=n0,ifname={tap},script=no,downscript=no")]);
    qemu.args([
        "-device",
        &format!("virtio-net-pci,netdev=n0,mac=52:54:00:77:00:{number:02x},speed=1000,duplex=full"),
    ]);
    let share = lab.folder.join("share");
    let folder = format!("local,path={},mount_tag=lab,security_model=none,multidevs=remap", share.display());
    qemu.args(["-device", "virtio-rng-pci", "-virtfs", &folder]);
    qemu.args(["-chardev", &format!("socket,id=jobs,path={}", socket.display())]);
    qemu.args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=jobs,name=jobs"]);
    qemu.args(["-serial", &format!("file:{}", console.display())]);
    qemu
}

/// KVM where processor and kernel both have it, emulation everywhere else; `EVERYWIRE_ACCEL` overrules.
fn accelerator() -> [String; 2] {
    let accel = std::env::var("EVERYWIRE_ACCEL")
        .unwrap_or_else(|_| if kvm_works() { "kvm:tcg" } else { "tcg" }.into());
    ["-machine".into(), format!("accel={accel}")]
}

/// A /dev/kvm on a processor that shows neither vmx nor svm (paravirtual nesting) opens, but runs no stock kernel.
fn kvm_works() -> bool {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpu.lines().find(|l| l.starts_with("flags")).unwrap_or_default();
    flags.split(' ').any(|f| f == "vmx" || f == "svm")
        && fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
}

fn accept(listener: &UnixListener, qemu: &mut Child, console: &Path) -> Result<UnixStream, String> {
    listener.set_nonblocking(true).map_err(|e| e.to_string())?;
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Ok((port, _)) = listener.accept() {
            port.set_nonblocking(false).map_err(|e| e.to_string())?;
            return Ok(port);
        }
        if qemu.try_wait().is_ok_and(|s| s.is_some()) || Instant::now() > end {
            let log = console.with_extension("qemu");
            return Err(format!("QEMU did not start: {}", fs::read_to_string(log).unwrap_or_default()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads "ready" and then "NUMBER CODE" lines until the guest is gone.
fn read_answers(port: UnixStream, up: &std::sync::mpsc::Sender<()>, ended: &Ended) {
    for line in BufReader::new(port).lines().map_while(Result::ok) {
        if line == "ready" {
            let _ = up.send(());
        }
        let Some((number, code)) = line.split_once(' ') else { continue };
        let (Ok(number), Ok(code)) = (number.parse(), code.parse()) else { continue };
        if let Ok(mut state) = ended.state.lock() {
            state.0.insert(number, code);
        }
        ended.changed.notify_all();
    }
    if let Ok(mut state) = ended.state.lock() {
        state.1 = true;
    }
    ended.changed.notify_all();
}
