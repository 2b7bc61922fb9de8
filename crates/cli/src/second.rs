//! A second process of the same program, so that two processes talk where the user has set up nothing.
//!
//! It gets a free address of its own ([`places`]), since one address belongs to one process. It ends when its standard input
//! does, so it never outlives this process, whatever happens to this one; and in order, so that it leaves a port of a fabric
//! as a program does that was told to stop.

pub mod places;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::error::{Blame, CliError};
use crate::peer::PeerName;

/// Loopback addresses tried.
const TRIES: u8 = 60;
/// The first of them, above those that clients take.
const FIRST: u8 = 101;
/// How a server says in its first line that it is ready.
const READY: &str = "listening on ";
/// How it says that its address is another's; iWARP's is taken only when somebody listens.
const TAKEN: [&str; 3] =
    ["cannot open a device at", "the address and port are in use", " is taken by process "];
/// How long the process has to end by itself.
const PATIENCE: Duration = Duration::from_secs(2);
/// How much of that it takes at most: what is not done by then is left undone.
const GRACE: Duration = Duration::from_secs(1);
/// Standard input has ended, and the process is to stop as a signal would have it.
static STDIN_ENDED: Notify = Notify::const_new();

/// The process; it ends with this value.
pub struct SecondProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    addr: SocketAddr,
}

/// Why it did not come up.
struct NotStarted {
    /// What it said on standard error.
    said: String,
    /// What it ended with, if it has ended by itself.
    code: Option<i32>,
}

impl NotStarted {
    /// The same failure, with the same exit code.
    fn pass_on(&self) -> CliError {
        let text = format_args!("the target's process: {}", self.said);
        match self.code {
            Some(code) if code == Blame::Usage as i32 => CliError::usage(text),
            Some(code) if code == Blame::Peer as i32 => CliError::peer(text),
            _ => CliError::failed(text),
        }
    }
}

impl SecondProcess {
    /// Starts it with the arguments that `arguments` gives for a device: the first of `devices` that is free.
    pub fn start(
        devices: &[String],
        arguments: impl Fn(&str) -> Vec<String>,
    ) -> Result<SecondProcess, CliError> {
        SecondProcess::start_beside(None, devices, arguments)
    }

    /// The same in the network namespace of process `beside`, if one is given.
    pub fn start_beside(
        beside: Option<u32>,
        devices: &[String],
        arguments: impl Fn(&str) -> Vec<String>,
    ) -> Result<SecondProcess, CliError> {
        let mut last = String::new();
        for device in devices {
            match launch(beside, arguments(device))? {
                Ok(second) => return Ok(second),
                // In use by another process: the next address.
                Err(e) if devices.len() > 1 && TAKEN.iter().any(|words| e.said.contains(words)) => {
                    last = e.said
                }
                Err(e) => return Err(e.pass_on()),
            }
        }
        let (first, end) =
            (devices.first().map_or("", String::as_str), devices.last().map_or("", String::as_str));
        Err(CliError::failed(format_args!("no device from {first} to {end} is free; of the last: {last}")))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

fn launch(
    beside: Option<u32>,
    arguments: Vec<String>,
) -> Result<Result<SecondProcess, NotStarted>, CliError> {
    let program = std::env::current_exe().map_err(|e| CliError::failed(format_args!("own program: {e}")))?;
    let mut command = match beside {
        None => Command::new(&program),
        Some(pid) => {
            let mut command = Command::new("nsenter"); // which becomes the program
            command.args(["--target", &pid.to_string(), "--net"]).arg(&program);
            command
        }
    };
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if std::env::var_os("EVERYWIRE_LOG").is_none() {
        command.env("EVERYWIRE_LOG", "warn");
    }
    let mut child = command
        .spawn()
        .map_err(everywire_net::with_limit)
        .map_err(|e| CliError::failed(format_args!("cannot start {}: {e}", program.display())))?;
    let stdin = child.stdin.take();
    let (Some(out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(CliError::failed("the second process has no pipes"));
    };
    let mut line = String::new();
    // One line, or the end of the output.
    let mut out = BufReader::new(out);
    let read = out.read_line(&mut line);
    let said = line.strip_prefix(READY).unwrap_or_default();
    let addr = said.split([',', '\n']).next().and_then(|text| text.trim().parse::<PeerName>().ok());
    let addr = addr.map(|name| name.socket_addr(0));
    if let (Ok(_), Some(addr)) = (read, addr) {
        // What else it prints is read, so that it has somebody to print to; what it has to say later is passed on.
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        std::thread::spawn(move || std::io::copy(&mut err, &mut std::io::stderr()));
        return Ok(Ok(SecondProcess { child, stdin, addr }));
    }
    drop(stdin);
    let _ = child.kill(); // it may have ended by itself
    let mut said = String::new();
    let _ = err.read_to_string(&mut said); // as much as there is
    let code = child.wait().ok().and_then(|status| status.code());
    let said = said.trim().trim_start_matches("everywire: ").to_owned();
    let said = if said.is_empty() { "it ended without a word".to_owned() } else { said };
    Ok(Err(NotStarted { said, code }))
}

impl Drop for SecondProcess {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side of that: ends this process when its standard input ends.
pub fn end_with_stdin() {
    end_after_stdin(Duration::ZERO);
}

/// The same in order, of a process that waits for [`Signals`](crate::serve::Signals): to them it is one more.
pub fn stop_with_stdin() {
    end_after_stdin(GRACE);
}

fn end_after_stdin(grace: Duration) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        STDIN_ENDED.notify_one();
        std::thread::sleep(grace);
        std::process::exit(0);
    });
}

/// Waits until [`stop_with_stdin`] has something to say; else for ever.
pub async fn stdin_ended() {
    STDIN_ENDED.notified().await;
}
