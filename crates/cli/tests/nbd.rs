//! `everywire nvme attach`: other people's NBD clients on a namespace that is reached over RDMA, and fio on an iSCSI disk too.
//! QEMU's and libnbd's are the judges; those that are not installed are left out in words.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Scratch, Server, device, ip, run};
use everywire_testkit::skipped;

const NQN: &str = "nqn.2026-11.example:disk";

/// A target of its own, and a namespace of it attached at a socket. The target comes last in an address of `n`.
fn attach(n: u8, backend: &str, socket: &str, more: &[&str]) -> (Server, Server) {
    let export = format!("{NQN}={backend}");
    let target = Server::start(&["serve", "--device", &device(n), "--nvme", &export]);
    let (from, to) = (device(n + 1), ip(n));
    let attach = ["nvme", "attach", "--device", &from, &to, NQN, "--nbd", socket];
    (target, Server::start(&[&attach, more].concat()))
}

/// Whether a program ran and was content; what it said otherwise. `None` if it is not installed.
#[track_caller]
fn judged(mut command: Command) -> Option<String> {
    match command.output() {
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
            Some(said)
        }
        Err(e) => {
            skipped(format_args!("{}: {e}", command.get_program().display()));
            None
        }
    }
}

fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

#[test]
fn libnbd_sees_what_it_can_and_copies_there_and_back() {
    let scratch = Scratch::new("nbd-copy");
    let (socket, image, copy) = (scratch.file("s"), scratch.file("image"), scratch.file("copy"));
    let (_target, mut attached) = attach(1, "ram:48MiB", &socket, &["--queues", "2"]);
    let uri = format!("nbd+unix:///?socket={socket}");
    if let Some(said) = judged(command("nbdinfo", &["--json", &uri])) {
        let info: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&info["protocol"], &info["structured"]), (&"newstyle-fixed".into(), &true.into()));
        let export = &info["exports"][0];
        assert_eq!(export["export-size"], 48 << 20);
        assert_eq!(
            (&export["block_size_minimum"], &export["block_size_preferred"]),
            (&512.into(), &4096.into())
        );
        for can in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero", "can_df"] {
            assert_eq!(export[can], true, "{can}: {said}");
        }
        assert_eq!(export["is_read_only"], false);
        judged(command("nbdinfo", &["--list", &uri]));
        // Several connections, many requests on each; the source has holes, which become Write Zeroes.
        let bytes: Vec<u8> = (0..48u32 << 20)
            .map(|i| if i >> 20 & 3 == 1 { 0 } else { (i.wrapping_mul(2_654_435_761) >> 24) as u8 })
            .collect();
        std::fs::write(&image, &bytes).unwrap();
        judged(command("nbdcopy", &["--flush", "--connections=4", &image, &uri]));
        judged(command("nbdcopy", &["--connections=4", &uri, &copy]));
        assert!(std::fs::read(&copy).unwrap() == bytes, "nbdcopy brought back other bytes");
        // And the target itself holds them.
        let read = ["nvme", "read", "--device", &device(3), &ip(1), NQN];
        assert!(run(&read).expect(0).stdout == bytes, "the target holds other bytes");
    }
    attached.signal("TERM");
    assert_eq!(attached.wait().code(), Some(0));
    assert!(!std::path::Path::new(&socket).exists(), "the socket stays");
}

#[test]
fn qemu_reads_writes_zeroes_and_is_refused_past_the_end() {
    let scratch = Scratch::new("nbd-qemu");
    let socket = scratch.file("s");
    let (_target, _attached) = attach(4, "ram:16MiB", &socket, &[]);
    let uri = format!("nbd+unix:///?socket={socket}");
    let script = [
        "write -P 0x5a 0 3M",
        "write -f -P 0xa5 1M 64k",
        "read -P 0x5a 0 1M",
        "read -P 0xa5 1M 64k",
        "flush",
        "write -z 2M 512k",
        "read -P 0 2M 512k",
        "read -P 0x5a 2560k 512k",
        "discard 0 1M",
        "read -P 0 0 1M",
        "write -z -u 1M 64k",
        "read -P 0 1M 64k",
        "aio_write -P 1 8M 2M",
        "aio_write -P 2 10M 2M",
        "aio_flush",
        "read -P 1 8M 2M",
        "read -P 2 10M 2M",
        "write -P 3 512 1k",
        "read -P 3 512 1k",
        "read -P 0 1536 512",
    ];
    let mut qemu = command("qemu-io", &["-f", "raw", &uri]);
    qemu.args(script.iter().flat_map(|line| ["-c", line]));
    if let Some(said) = judged(qemu) {
        assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
        let past = command("qemu-io", &["-f", "raw", "-c", "read 16M 512", &uri]).output().unwrap();
        assert!(!past.status.success(), "a read past the end succeeded");
    }
}

#[test]
fn fio_finds_every_block_as_it_wrote_it() {
    let scratch = Scratch::new("nbd-fio");
    let socket = scratch.file("s");
    let (_target, _attached) = attach(6, "ram:64MiB", &socket, &["--queues", "2"]);
    fio_verifies(&scratch, &socket);
}

/// The same over iSCSI, by TCP.
#[test]
fn fio_finds_every_block_over_iscsi() {
    let scratch = Scratch::new("nbd-fio-iscsi");
    let (socket, portal) = (scratch.file("s"), ip(30));
    let export = "iqn.2026-11.example:disk=ram:64MiB";
    let _target = Server::start_until(
        &["serve", "--device", &device(31), "--iscsi", export, "--tcp", &portal],
        "iSCSI over TCP",
    );
    let _attached = Server::start(&["iscsi", "attach", &portal, "--nbd", &socket]);
    fio_verifies(&scratch, &socket);
}

fn fio_verifies(scratch: &Scratch, socket: &str) {
    let uri = format!("--uri=nbd+unix:///?socket={socket}");
    let engines = command("fio", &["--enghelp"]).output();
    if !engines.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("\tnbd")) {
        return skipped("no fio with its nbd engine");
    }
    let load = [
        "--name=v",
        "--ioengine=nbd",
        &uri,
        "--rw=randrw",
        "--size=48M",
        "--bsrange=512-1M",
        "--blockalign=512",
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_backlog=64",
        "--time_based",
        "--runtime=3",
    ];
    let mut fio = command("fio", &load);
    fio.current_dir(scratch.file(""));
    judged(fio);
}

/// A client that writes, flushes and goes on while the target is killed and comes back sees a pause, no error and no loss.
#[test]
fn a_target_that_dies_and_comes_back_is_a_pause() {
    let scratch = Scratch::new("nbd-kill");
    let (socket, disk) = (scratch.file("s"), scratch.file("disk"));
    let backend = format!("file:{disk},size=16MiB");
    let (target, attached) = attach(8, &backend, &socket, &[]);
    let mut client = Client::connect(&socket);
    let block = |i: u64| vec![i as u8 + 1; 4096];
    let write = |client: &mut Client, i: u64| client.request(1, i * 4096, 4096, &block(i));
    for i in 0..8 {
        assert_eq!(write(&mut client, i), 0);
    }
    drop(target);
    client.send(1, 8 * 4096, 4096, &block(8));
    std::thread::sleep(Duration::from_millis(500));
    let _target = Server::start(&["serve", "--device", &device(8), "--nvme", &format!("{NQN}={backend}")]);
    assert_eq!(client.error(), 0);
    attached.says(&["reconnected after"]);
    assert_eq!((write(&mut client, 9), client.request(3, 0, 0, &[])), (0, 0));
    let bytes = std::fs::read(&disk).unwrap();
    for i in 0..10 {
        assert_eq!(bytes[i as usize * 4096..][..4096], block(i), "block {i}");
    }
}

/// When it is told to stop, what was read is answered; and a second server does not take a socket that is in use.
#[test]
fn a_socket_in_use_is_left_alone() {
    let scratch = Scratch::new("nbd-twice");
    let socket = scratch.file("s");
    let (_target, mut attached) = attach(10, "ram:1MiB", &socket, &["--read-only"]);
    let (from, to) = (device(12), ip(10));
    let second = ["nvme", "attach", "--device", &from, &to, NQN, "--nbd", &socket];
    let outcome = run(&second).expect(1);
    assert!(outcome.stderr.contains("cannot listen on nbd+unix:"), "{}", outcome.stderr);
    let mut client = Client::connect(&socket);
    // EPERM, EINVAL for a read past the end, and EINVAL for a command that nobody knows.
    assert_eq!(client.request(1, 0, 512, &[1; 512]), 1);
    assert_eq!((client.request(0, 1 << 20, 512, &[]), client.request(77, 0, 512, &[])), (22, 22));
    let start = Instant::now();
    attached.signal("TERM");
    assert_eq!(attached.wait().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(5), "an idle client held it up");
}

/// Clients that connect and say nothing are sent away for those that come after them, also where descriptors run out.
#[test]
fn silent_clients_lock_nobody_out() {
    for descriptors in ["4096", "60"] {
        let scratch = Scratch::new(&format!("silent-{descriptors}"));
        let socket = scratch.file("d.sock");
        let export = format!("{NQN}=ram:1MiB");
        let _target = Server::start(&["serve", "--device", &device(21), "--nvme", &export]);
        let (from, to, program) = (device(22), ip(21), env!("CARGO_BIN_EXE_everywire"));
        let line = format!(
            "ulimit -n {descriptors}; exec {program} nvme attach --device {from} {to} {NQN} --nbd {socket}"
        );
        let mut attach = Command::new("sh");
        attach.args(["-c", &line]).env_remove("EVERYWIRE_LOG");
        let attached = Server::start_command(attach, "listening on");
        let silent: Vec<UnixStream> = (0..150).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        let start = Instant::now();
        let mut client = Client::connect(&socket);
        assert_eq!(client.request(3, 0, 0, &[]), 0, "a flush is answered");
        assert!(start.elapsed() < Duration::from_secs(20), "{:?} with {descriptors}", start.elapsed());
        let word = if descriptors == "60" { "accept:" } else { "had not begun was sent away" };
        attached.says(&["WARN", word]);
        assert!(attached.lines_with("WARN").len() < 8, "{:?}", attached.lines_with("WARN"));
        drop(silent);
    }
}

/// More clients at once than are served and may wait: none of them is sent away, each is served in its turn.
#[test]
fn many_clients_at_once_are_all_served() {
    let scratch = Scratch::new("nbd-many");
    let socket = scratch.file("s");
    let (_target, attached) = attach(25, "ram:1MiB", &socket, &[]);
    std::thread::scope(|scope| {
        for _ in 0..200 {
            scope.spawn(|| assert_eq!(Client::connect(&socket).request(3, 0, 0, &[]), 0));
        }
    });
    assert!(attached.lines_with("WARN").is_empty(), "{:?}", attached.lines_with("WARN"));
}

/// Why an address cannot be listened at: it is another host's, or somebody has it, who is named.
#[test]
fn a_tcp_door_that_cannot_be_opened_says_why() {
    let export = format!("{NQN}=ram:1MiB");
    let _target = Server::start(&["serve", "--device", &device(27), "--nvme", &export]);
    let refused = |door: &str, code| {
        run(&["nvme", "attach", "--device", &device(28), &ip(27), NQN, "--nbd", door]).expect(code).stderr
    };
    // 192.0.2.0/24 is reserved for documentation (RFC 5737).
    let said = refused("192.0.2.77:10809", 2);
    assert!(said.contains("192.0.2.77 is not an address of this host"), "{said}");
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let said = refused(&held.local_addr().unwrap().to_string(), 1);
    assert!(said.contains(&format!("is held by process {} (", std::process::id())), "{said}");
}

/// What is at the path of the socket stays if it is no socket.
#[test]
fn a_file_in_the_place_of_the_socket_is_left_alone() {
    let scratch = Scratch::new("nbd-file");
    let file = scratch.file("disk.img");
    std::fs::write(&file, b"precious").unwrap();
    let export = format!("{NQN}=ram:1MiB");
    let _target = Server::start(&["serve", "--device", &device(23), "--nvme", &export]);
    let outcome = run(&["nvme", "attach", "--device", &device(24), &ip(23), NQN, "--nbd", &file]).expect(1);
    assert!(outcome.stderr.contains(&file) && outcome.stderr.contains("no socket"), "{}", outcome.stderr);
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

/// The least of an NBD client: the old EXPORT_NAME, simple replies.
struct Client(UnixStream);

impl Client {
    fn connect(socket: &str) -> Client {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        let mut greeting = [0; 18 + 10];
        stream.read_exact(&mut greeting).unwrap();
        Client(stream)
    }

    fn send(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) {
        let head = [&[0x25, 0x60, 0x95, 0x13, 0, 0][..], &command.to_be_bytes(), &[7; 8]].concat();
        let place = [&offset.to_be_bytes()[..], &length.to_be_bytes(), data].concat();
        self.0.write_all(&[head, place].concat()).unwrap();
    }

    /// The next reply's error; of no command that returns data.
    fn error(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!((&reply[..4], &reply[8..]), (&[0x67, 0x44, 0x66, 0x98][..], &[7; 8][..]));
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    fn request(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) -> u32 {
        self.send(command, offset, length, data);
        self.error()
    }
}
