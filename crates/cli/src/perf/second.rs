//! The second process of a run without a peer: `everywire perf --listen` on another loopback address.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};

use crate::error::CliError;

/// Loopback addresses tried for the second process.
const TRIES: u8 = 60;
/// The first of them, above those that clients take.
const FIRST: u8 = 101;

/// A peer that ends with this value.
pub struct SecondProcess {
    child: Child,
    addr: SocketAddr,
}

impl SecondProcess {
    /// Starts it on a free loopback address, and waits until it listens.
    pub fn start(port: u16) -> Result<SecondProcess, CliError> {
        let program =
            std::env::current_exe().map_err(|e| CliError::failed(format_args!("own program: {e}")))?;
        let mut said = String::new();
        for last in FIRST..FIRST + TRIES {
            let ip = IpAddr::from([127, 0, 0, last]);
            let mut child = Command::new(&program)
                .args(["perf", "--listen", "--device", &format!("rocev2:{ip}"), "--port", &port.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .spawn()
                .map_err(|e| CliError::failed(format_args!("start {}: {e}", program.display())))?;
            let Some(out) = child.stdout.take() else { continue };
            said.clear();
            // One line, "listening on …", or the end of the output.
            let read = BufReader::new(out).read_line(&mut said);
            if read.is_ok() && said.starts_with("listening") {
                return Ok(SecondProcess { child, addr: SocketAddr::new(ip, port) });
            }
            // Taken by another process: the next one.
            let _ = child.wait();
        }
        Err(CliError::failed("no loopback address for a second process is free (127.0.0.101 and up)"))
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for SecondProcess {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
