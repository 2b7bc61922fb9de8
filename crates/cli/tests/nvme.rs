//! `everywire serve` and `everywire nvme`, as a user runs them: two processes, real bytes, wrong input, signals.

mod common;

use std::time::{Duration, Instant};

use common::{Outcome, Scratch, Server, device, ip, run, run_with};

const NQN: &str = "nqn.2026-11.example:disk";

fn serve(n: u8, backend: &str) -> Server {
    Server::start(&["serve", "--device", &device(n), "--nvme", &format!("{NQN}={backend}")])
}

fn nvme(from: u8, action: &str, to: u8, more: &[&str], input: Vec<u8>) -> Outcome {
    let (device, ip) = (device(from), ip(to));
    run_with(&[&["nvme", action, "--device", &device, &ip], more].concat(), input)
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(len)
    .collect()
}

#[test]
fn write_read_compare_on_ram() {
    let mut server = serve(1, "ram:32MiB");
    let found = nvme(2, "discover", 1, &["--json"], Vec::new()).expect(0).json();
    let ours: Vec<_> = found.as_array().unwrap().iter().filter(|e| e["subnqn"] == NQN).collect();
    assert_eq!(ours.len(), 1, "{found}");
    assert_eq!((ours[0]["trtype"].as_str(), ours[0]["trsvcid"].as_str()), (Some("rdma"), Some("4420")));
    assert_eq!(ours[0]["traddr"], ip(1));
    let info = nvme(2, "info", 1, &["--json"], Vec::new()).expect(0).json();
    assert_eq!(info["namespaces"][0]["bytes"], 32 << 20);
    let data = noise(9 << 20);
    nvme(2, "write", 1, &[NQN, "--offset", "1MiB"], data.clone()).expect(0);
    let back = nvme(2, "read", 1, &[NQN, "--offset", "1MiB", "--length", "9MiB"], Vec::new()).expect(0);
    assert!(back.stdout == data, "{} bytes came back, {} were written", back.stdout.len(), data.len());
    let bench = ["--seconds", "0.2", "--depth", "4", "--rw", "randwrite", "--queues", "2", "--json"];
    let result = nvme(2, "bench", 1, &bench, Vec::new()).expect(0).json();
    for key in ["iops", "gb_per_s", "p50_us", "p99_us"] {
        assert!(result[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {result}");
    }
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_file_outlives_its_server() {
    let scratch = Scratch::new("file");
    let backend = format!("file:{},size=16MiB", scratch.file("disk"));
    let data = noise(1 << 20);
    let mut server = serve(3, &backend);
    nvme(4, "write", 3, &["--offset", "4096"], data.clone()).expect(0);
    server.signal("INT");
    assert_eq!(server.wait().code(), Some(0));
    let disk = std::fs::read(scratch.file("disk")).unwrap();
    assert!(disk[4096..4096 + data.len()] == data[..], "what was flushed is in the file");
    let _server = serve(3, &backend);
    let back = nvme(4, "read", 3, &["--offset", "4096", "--length", "1MiB"], Vec::new()).expect(0);
    assert!(back.stdout == data);
}

#[test]
fn ranges_that_begin_within_a_block_are_refused_with_the_block_size() {
    let _server = serve(5, "ram:8MiB,bs=4096");
    for (args, word) in [
        (&["--offset", "512", "--length", "4096"][..], "blocks of 4096 bytes"),
        (&["--offset", "8MiB", "--length", "4096"], "ends at 8388608"),
        (&["--nsid", "2"], "no namespace 2"),
    ] {
        let outcome = nvme(6, "read", 5, args, Vec::new()).expect(2);
        assert!(outcome.stderr.contains(word), "{args:?}: {}", outcome.stderr);
        assert!(outcome.stdout.is_empty());
    }
    for format in [&[][..], &["--json"]] {
        let outcome = nvme(6, "info", 5, &[&["--nsid", "9"], format].concat(), Vec::new()).expect(2);
        assert!(outcome.stderr.contains("there is no namespace 9; there is 1"), "{}", outcome.stderr);
        assert!(outcome.stdout.is_empty(), "{}", outcome.text());
    }
    let one = nvme(6, "info", 5, &["--nsid", "1"], Vec::new()).expect(0).text();
    assert!(one.contains("namespace 1: "), "{one}");
}

/// From a pipe or a file, the rest of the last block stays; and so many bytes can be read back.
/// A file that is too long is refused before anything is written; of a pipe what fits is written, and that is said.
#[test]
fn what_lies_beyond_the_end_is_refused() {
    let _server = serve(31, "ram:4MiB");
    let scratch = Scratch::new("beyond");
    let long = scratch.file("long");
    std::fs::write(&long, vec![0x5a; 5 << 20]).unwrap();
    let mut command = common::program(&["nvme", "write", "--device", &device(32), &ip(31), NQN]);
    command.stdin(std::fs::File::open(&long).unwrap());
    let outcome = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(2), "{said}");
    assert!(said.contains("5242880 bytes at 0: namespace 1 ends at 4194304"), "{said}");
    let untouched = nvme(32, "read", 31, &[NQN], Vec::new()).expect(0).stdout;
    assert!(untouched.len() == 4 << 20 && untouched.iter().all(|byte| *byte == 0), "something was written");
    let piped = nvme(32, "write", 31, &[NQN], vec![0x5a; 5 << 20]).expect(2);
    assert!(piped.stderr.contains("ended early: 4194304 bytes were written at 0"), "{}", piped.stderr);
    for action in ["read", "write"] {
        let far = nvme(32, action, 31, &[NQN, "--offset", "1TiB"], Vec::new()).expect(2);
        let words = "offset 1099511627776 (1TiB): namespace 1 ends at 4194304 (4MiB)";
        assert!(far.stderr.contains(words), "{}", far.stderr);
    }
}

/// A lost controller is looked for as long as was asked for, not longer.
#[test]
fn bench_gives_up_when_it_is_told_to() {
    let mut server = serve(33, "ram:4MiB");
    let (near, far) = (device(34), ip(33));
    let bench = std::thread::spawn(move || {
        run(&["nvme", "bench", &far, "--device", &near, "--seconds", "30", "--loss-timeout", "1"])
    });
    server.says(&["association made"]);
    std::thread::sleep(Duration::from_millis(700));
    server.signal("TERM");
    server.wait();
    let stopped = Instant::now();
    bench.join().expect("the client").expect(3);
    assert!(stopped.elapsed() < Duration::from_secs(15), "{:?}", stopped.elapsed());
}

#[test]
fn input_that_ends_within_a_block() {
    let scratch = Scratch::new("tail");
    let _server = serve(13, "ram:1MiB,bs=4096");
    nvme(14, "write", 13, &[], vec![7; 16384]).expect(0);
    let odd = scratch.file("odd");
    std::fs::write(&odd, [1; 5000]).unwrap();
    let (from, to) = (device(14), ip(13));
    let mut write = common::program(&["nvme", "write", "--device", &from, &to, "--offset", "4096"]);
    let written = write.stdin(std::fs::File::open(&odd).unwrap()).output().unwrap();
    assert_eq!(written.status.code(), Some(0), "{}", String::from_utf8_lossy(&written.stderr));
    let some = |len: &str| nvme(14, "read", 13, &["--length", len], Vec::new()).expect(0).stdout;
    let mut expected = vec![7; 16384];
    expected[4096..9096].fill(1);
    assert!(some("16384") == expected);
    assert!(some("9097") == expected[..9097]);
    nvme(14, "write", 13, &[], vec![2; 3]).expect(0);
    assert_eq!(some("4"), [2, 2, 2, 7]);
    let past = nvme(14, "write", 13, &["--offset", "1044480"], vec![1; 4097]).expect(2);
    assert!(past.stderr.contains("ends at 1048576"), "{}", past.stderr);
    assert!(past.stderr.contains("0 bytes were written at 1044480"), "{}", past.stderr);
    let _large = serve(17, "ram:5MiB");
    let full = nvme(18, "write", 17, &[], noise(6 << 20)).expect(2);
    for words in ["ends at 5242880", "ended early: 4194304 bytes were written at 0"] {
        assert!(full.stderr.contains(words), "{words}: {}", full.stderr);
    }
}

/// A sparse disk may be larger than memory; that is told before somebody finds out.
#[test]
fn a_ram_disk_beyond_memory_is_warned_of() {
    let Some(memory) = everywire_block::memory::total().filter(|&memory| memory < 1 << 40) else { return };
    let server = serve(21, "ram:1TiB");
    server.says(&["WARN", "1TiB in all", &format!("{:.1} GiB", memory as f64 / f64::from(1 << 30))]);
}

/// The log of a server says who was refused and why, whose connection ended, and whose command met a broken disk.
#[test]
fn dropped_packets_are_counted_and_told_at_the_end() {
    let mut server = serve(17, "ram:8MiB");
    let socket = std::net::UdpSocket::bind((ip(18).as_str(), 0)).unwrap();
    for _ in 0..7 {
        socket.send_to(&[0xff; 13], (ip(17).as_str(), 4791)).unwrap();
    }
    nvme(18, "discover", 17, &[], Vec::new()).expect(0);
    server.signal("TERM");
    server.says(&["counted", "drop_malformed_datagram 7"]);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn the_log_says_who() {
    let scratch = Scratch::new("log");
    let (config, disk) = (scratch.file("t.toml"), scratch.file("disk"));
    let text = format!(
        "devices = [\"{}\"]\n[[nvme.subsystem]]\nnqn = \"{NQN}\"\nhosts = [\"nqn.2026-11.example:friend\"]\n\
        [[nvme.subsystem.namespace]]\nbackend = \"file:{disk},size=1MiB\"\nnsid = 5\n",
        device(15)
    );
    std::fs::write(&config, text).unwrap();
    let server = Server::start(&["serve", &config]);
    server.says(&["serving", NQN]);
    assert_eq!(server.lines_with("listening on").len(), 1, "once, for a person and for scripts");
    let (friend, stranger) = ("nqn.2026-11.example:friend", "nqn.2026-11.example:stranger");
    let as_host = |action, host, more: &[&str]| {
        nvme(16, action, 15, &[&["--host-nqn", host], more].concat(), Vec::new())
    };
    let addresses = [&*ip(16), &*format!("{}:4420", ip(15))];
    let says = |words: &[&str]| server.says(&[&addresses, words].concat());

    as_host("info", stranger, &[NQN]).expect(3);
    let line = says(&["Connect refused", stranger, NQN, "Connect Invalid Host"]);
    assert!(line.contains("WARN"), "{line}");
    let other = "nqn.2026-11.example:other";
    as_host("info", friend, &[other]).expect(3);
    says(&["WARN", "Connect refused", friend, other, "Connect Invalid Parameters", "SUBNQN at offset 256"]);

    as_host("info", friend, &[NQN]).expect(0);
    says(&["association made", friend, NQN]);
    for queue in ["queue 0", "queue 1"] {
        // Its flushed receives are a consequence, which nobody needs to read of.
        says(&[queue, "closed: disconnected by the host", friend, NQN]);
    }

    // The file ends before the namespace does.
    std::fs::File::options().write(true).open(&disk).unwrap().set_len(4096).unwrap();
    let broken = as_host("read", friend, &[NQN, "--offset", "512KiB", "--length", "4096"]).expect(3);
    assert!(broken.stderr.contains("Unrecovered Read Error"), "{}", broken.stderr);
    says(&["WARN", friend, NQN, "namespace 5", "read at 524288", "Unrecovered Read Error"]);
}

/// An outage in the middle is in the numbers, and told: nobody takes them for those of a quiet run.
#[test]
fn bench_tells_of_an_outage() {
    let server = serve(19, "ram:8MiB");
    let host = std::thread::spawn(|| nvme(20, "bench", 19, &["--seconds", "3", "--json"], Vec::new()));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    drop(server);
    let _server = serve(19, "ram:8MiB");
    let outcome = host.join().unwrap().expect(0);
    let result = outcome.json();
    assert!(result["reconnects"].as_u64() >= Some(1), "{result}");
    // A lost controller is tried half a second later at the earliest.
    assert!(result["max_us"].as_f64().unwrap() > 4e5, "{result}");
    for words in ["connection lost", "reconnecting for at most 30s", "reconnected after"] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
}

/// A disk here, and the same READs as raw UDP beside it.
#[test]
fn bench_without_a_target() {
    let bench = ["nvme", "bench", "--baseline", "--seconds", "0.3", "--depth", "8", "--json"];
    let result = run(&bench).expect(0).json();
    let (iops, raw) = (result["iops"].as_f64().unwrap(), result["baseline"]["iops"].as_f64().unwrap());
    assert!(iops > 0.0 && raw > 0.0, "{result}");
    assert!((result["ratio"].as_f64().unwrap() - iops / raw).abs() < 1e-9, "{result}");
    let text = run(&["nvme", "bench", "--baseline", "--seconds", "0.1"]).expect(0).text();
    assert!(text.contains("ratio ") && text.contains("raw UDP"), "{text}");
    for wrong in [&["--rw", "randwrite"][..], &["127.0.0.1"]] {
        run(&[&["nvme", "bench", "--baseline"], wrong].concat()).expect(2);
    }
}

#[test]
fn refusals_name_the_peer_and_the_reason() {
    let _server = serve(7, "ram:1MiB");
    let outcome = nvme(8, "info", 7, &["nqn.2026-11.example:other"], Vec::new()).expect(3);
    let advice = format!(
        "no such subsystem there, or this host may not use it; `everywire nvme discover {}:4420`",
        ip(7)
    );
    for word in ["Connect Invalid Parameters", "SUBNQN", &ip(7), "nqn.2026-11.example:other", &advice] {
        assert!(outcome.stderr.contains(word), "{word}: {}", outcome.stderr);
    }
    let (from, to) = (device(8), format!("{}:4421", ip(7)));
    let outcome = run(&["nvme", "discover", "--device", &from, &to]).expect(3);
    assert!(outcome.stderr.contains("invalid service ID (8)"), "{}", outcome.stderr);
}

#[test]
fn a_listed_host_may_and_another_may_not() {
    let scratch = Scratch::new("hosts");
    let config = scratch.file("t.toml");
    let text = format!(
        "devices = [\"{}\"]\n[nvme]\nport = 4444\n[[nvme.subsystem]]\nnqn = \"{NQN}\"\nserial = \"S1\"\n\
        hosts = [\"nqn.2026-11.example:friend\"]\n[[nvme.subsystem.namespace]]\nbackend = \"null:1GiB\"\nnsid = 5\n",
        device(9)
    );
    std::fs::write(&config, text).unwrap();
    let said = run(&["check", &config]).expect(0).text();
    assert!(said.contains("port 4444") && said.contains("namespace 5: null:1GiB"), "{said}");
    let _server = Server::start(&["serve", &config]);
    let (from, to) = (device(10), format!("{}:4444", ip(9)));
    let as_host = |host| run(&["nvme", "info", "--device", &from, &to, NQN, "--host-nqn", host, "--json"]);
    let info = as_host("nqn.2026-11.example:friend").expect(0).json();
    assert_eq!((info["serial"].as_str(), info["namespaces"][0]["nsid"].as_u64()), (Some("S1"), Some(5)));
    let outcome = as_host("nqn.2026-11.example:stranger").expect(3);
    assert!(outcome.stderr.contains("Connect Invalid Host"), "{}", outcome.stderr);
}

#[test]
fn a_typo_is_named_with_its_line() {
    let scratch = Scratch::new("typo");
    let config = scratch.file("t.toml");
    std::fs::write(&config, format!("[[nvme.subsystem]]\nnqn = \"{NQN}\"\nnamspace = []\n")).unwrap();
    for command in ["check", "serve"] {
        let outcome = run(&[command, &config]).expect(2);
        for word in ["t.toml", "line 3", "namspace", "namespace"] {
            assert!(outcome.stderr.contains(word), "{command}: {word}: {}", outcome.stderr);
        }
    }
    run(&["check", "/nonexistent.toml"]).expect(2);
    let outcome = run(&["serve", "--nvme", "nqn.2026-11.example:disk"]).expect(2);
    assert!(outcome.stderr.contains("NQN=BACKEND"), "{}", outcome.stderr);
}

/// A host that is stopped (SIGSTOP) never confirms that its connections end.
#[test]
fn the_second_signal_stops_at_once() {
    let mut server = serve(11, "ram:8MiB");
    let (device, ip) = (device(12), ip(11));
    let mut host = common::program(&["nvme", "bench", "--device", &device, &ip, "--seconds", "50"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // Long enough to connect, even on a busy machine; if not, the server has nothing to wait for and the test fails.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let stop = format!("kill -STOP {}", host.id());
    assert!(std::process::Command::new("sh").args(["-c", &stop]).status().unwrap().success());
    server.signal("TERM");
    std::thread::sleep(std::time::Duration::from_millis(300));
    server.signal("TERM");
    let start = std::time::Instant::now();
    let code = server.wait().code();
    host.kill().unwrap();
    host.wait().unwrap();
    assert_eq!(code, Some(1));
    assert!(
        start.elapsed() < std::time::Duration::from_secs(4),
        "the first signal's patience was waited for"
    );
}
