//! Running the built program: to its end, or as a server that ends with its value.
#![allow(dead_code)] // each test binary uses its part

pub mod netns;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a run of the program gave.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Outcome {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard output as one JSON value.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Fails unless the exit code is this.
    #[track_caller]
    pub fn expect(self, code: i32) -> Outcome {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.text(), self.stderr);
        self
    }
}

/// The program with these arguments.
pub fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everywire"));
    command.args(args).env_remove("EVERYWIRE_LOG");
    command
}

/// Runs it to its end.
pub fn run(args: &[&str]) -> Outcome {
    run_with(args, Vec::new())
}

/// The same, with this on its standard input.
pub fn run_with(args: &[&str], input: Vec<u8>) -> Outcome {
    run_command(program(args), input)
}

/// The same of a command that ends in the program.
pub fn run_command(mut command: Command, input: Vec<u8>) -> Outcome {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // It may end without reading all of it.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let stdout = reader(child.stdout.take().expect("a pipe"));
    let stderr = reader(child.stderr.take().expect("a pipe"));
    let status = wait(&mut child, &format!("{command:?}"));
    writer.join().expect("the writer");
    let stdout = stdout.join().expect("a reader");
    let stderr = String::from_utf8_lossy(&stderr.join().expect("a reader")).into_owned();
    Outcome { code: status.code(), stdout, stderr }
}

fn reader(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    })
}

fn wait(child: &mut Child, what: &str) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().expect("a child can be killed");
            panic!("{what} did not end within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A server; killed with this value if it has not ended.
pub struct Server {
    child: Child,
    args: String,
    said: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts it and waits until it says on `stream` that it listens.
    pub fn start(args: &[&str]) -> Server {
        Server::start_until(args, "listening on")
    }

    /// Starts it and waits until it says this.
    pub fn start_until(args: &[&str], word: &'static str) -> Server {
        Server::start_command(program(args), word)
    }

    /// The same of a command that ends in the program.
    pub fn start_command(mut command: Command, word: &'static str) -> Server {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let out = child.stdout.take().expect("a pipe");
        let err = child.stderr.take().expect("a pipe");
        let (ready, is_ready) = std::sync::mpsc::channel();
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        // Both are read to their ends, so that the server never blocks.
        for stream in [Box::new(out) as Box<dyn Read + Send>, Box::new(err)] {
            let (ready, said) = (ready.clone(), said.clone());
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines() {
                    let Ok(line) = line else { return };
                    said.lock().expect("whole").push(line.clone());
                    if line.contains(word) {
                        drop(ready.send(line));
                    }
                }
            });
        }
        drop(ready);
        is_ready.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{command:?} never said {word:?}"));
        Server { child, args: format!("{command:?}"), said }
    }

    /// Waits for a line with all of these words on its output or in its log.
    #[track_caller]
    pub fn says(&self, words: &[&str]) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.said.lock().expect("whole").clone();
            if let Some(line) = said.iter().find(|line| words.iter().all(|word| line.contains(word))) {
                return line.clone();
            }
            assert!(Instant::now() < deadline, "no line with {words:?} in:\n{}", said.join("\n"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it has said so far with this in it.
    pub fn lines_with(&self, word: &str) -> Vec<String> {
        self.said.lock().expect("whole").iter().filter(|line| line.contains(word)).cloned().collect()
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("sh runs").success());
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child, &self.args)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loopback address that only this test binary uses; `n` from 1 to 254.
pub fn ip(n: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{low}.{n}", 0x80 | (high & 0x3f))
}

/// The device at [`ip`].
pub fn device(n: u8) -> String {
    format!("rocev2:{}", ip(n))
}

/// A fabric of two hosts on a switch, which ends with its value, and the devices of its hosts.
pub fn fabric_of_two(name: &str) -> (Server, [String; 2]) {
    const TOPOLOGY: &str = "links = [\"h1 - s1/1\", \"h2 - s1/2\"]\n\
        [[host]]\nname = \"h1\"\n[[host]]\nname = \"h2\"\n[[switch]]\nname = \"s1\"\nports = 2\n";
    let name = format!("{name}-{}", std::process::id());
    let scratch = Scratch::new(&name);
    let file = scratch.file("two.toml");
    std::fs::write(&file, TOPOLOGY).expect("a file can be written");
    let server = Server::start_until(&["fabric", "run", &file, "--name", &name], "ready");
    let devices = [1, 2].map(|host| format!("ib:{name}/h{host}/1"));
    (server, devices)
}

/// A directory of this test's own; removed with its value.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("everywire-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Scratch(path)
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path in UTF-8").to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The captures of real kernels.
pub fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures")
}

/// Fails if tshark, where it is installed, finds packets in a capture that this filter picks, or dissects fewer than `least` as
/// `protocol`: the judge from outside.
#[track_caller]
pub fn tshark_finds_nothing(capture: &str, filter: &str, protocol: &str, least: usize) {
    let tshark = |filter: &str| {
        Command::new("tshark").args(["-r", capture, "--disable-protocol", "rpcordma", "-Y", filter]).output()
    };
    let lines = |output: std::process::Output| {
        assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    match tshark(filter) {
        Ok(output) => assert_eq!(lines(output), ""),
        Err(e) => return everywire_testkit::skipped(format_args!("tshark: {e}")),
    }
    let dissected = lines(tshark(protocol).expect("it ran before")).lines().count();
    assert!(dissected >= least, "tshark sees {protocol} in {dissected} frames of {capture}");
}
