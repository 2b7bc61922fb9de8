//! How a command fails: a text that says who, which step and which limit, and an exit code by blame.

use std::fmt::Display;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use everywire_verbs::{CmError, CmErrorKind, Connection, ErrorKind, VerbsError, WcStatus};

use crate::patience::Cure;

/// Whose doing a failure is; the number is the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// Nobody's: whoever read standard output has seen enough and closed it.
    ReaderLeft = 0,
    /// The work failed here: I/O, resources, an unexpected state.
    Failed = 1,
    /// The command line or a configuration file is wrong.
    Usage = 2,
    /// The peer or the network did not answer, refused, was lost, or the fabric ended.
    Peer = 3,
    /// Data read back differs from data written.
    Mismatch = 4,
}

/// A failed command.
#[derive(Debug)]
pub struct CliError {
    blame: Blame,
    text: String,
    cure: Cure,
}

impl CliError {
    fn new(blame: Blame, text: impl Display) -> CliError {
        CliError { blame, text: text.to_string(), cure: Cure::None }
    }

    /// A failure of this machine: I/O, resources.
    pub fn failed(text: impl Display) -> CliError {
        CliError::new(Blame::Failed, text)
    }

    /// A mistake in the command line or a configuration file.
    pub fn usage(text: impl Display) -> CliError {
        CliError::new(Blame::Usage, text)
    }

    /// The peer refused or did not answer.
    pub fn peer(text: impl Display) -> CliError {
        CliError::new(Blame::Peer, text)
    }

    /// Wrong bytes came back.
    pub fn mismatch(text: impl Display) -> CliError {
        CliError::new(Blame::Mismatch, text)
    }

    /// The same failure with more to say.
    pub fn and(self, more: impl Display) -> CliError {
        CliError { text: format!("{}; {more}", self.text), ..self }
    }

    /// The same failure, and where it was.
    pub fn within(self, place: impl Display) -> CliError {
        CliError { text: format!("{place}: {}", self.text), ..self }
    }

    /// The same, of a connection that this could help.
    pub fn with_cure(self, cure: Cure) -> CliError {
        CliError { cure, ..self }
    }

    /// What could help.
    pub fn cure(&self) -> Cure {
        self.cure
    }

    /// Prints the text on standard error and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if self.blame == Blame::ReaderLeft {
            return ExitCode::SUCCESS;
        }
        eprintln!("everywire: {}", self.text);
        ExitCode::from(self.blame as u8)
    }
}

impl Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// A failure of connecting or listening: the peer's doing, or this side's.
pub fn cm(source: CmError) -> CliError {
    cm_with(&source, &source)
}

/// The same, with another text.
pub fn cm_with(source: &CmError, text: impl Display) -> CliError {
    let error = match source.kind() {
        CmErrorKind::NotOurAddress { .. } | CmErrorKind::NoScope => CliError::usage(text),
        CmErrorKind::Route(route) if route.is_wrong_request() => CliError::usage(text),
        CmErrorKind::AddressInUse
        | CmErrorKind::PrivateDataTooLong { .. }
        | CmErrorKind::Qp(_)
        | CmErrorKind::Verbs(_)
        | CmErrorKind::Refused(_) => CliError::failed(text),
        _ => CliError::peer(text),
    };
    error.with_cure(match source {
        source if source.is_nobody_there() => Cure::Time,
        source if source.is_stale() => Cure::OtherQueuePair,
        _ => Cure::None,
    })
}

/// A refused call: what the device does not offer is asked for by the command line.
pub fn verbs(source: VerbsError) -> CliError {
    match source.kind() {
        ErrorKind::NotSupported | ErrorKind::InvalidArgument => CliError::usage(source),
        ErrorKind::Unreachable => CliError::peer(source),
        _ => CliError::failed(source),
    }
}

/// How a work request ended; of one that was flushed, what has ended the connection; of one that nobody has acknowledged, that
/// the peer is lost, and how long nothing was heard of it.
pub fn ended(status: WcStatus, connection: Option<&Connection>, silent: Option<Duration>) -> String {
    match (status, connection.and_then(Connection::closed_reason)) {
        (WcStatus::RetryExcErr, _) => {
            let silent = silent.map_or_else(String::new, |time| format!(" for {:.1} s", time.as_secs_f64()));
            let (name, code) = (status.as_str(), status as u8);
            format!("the peer is lost: it has acknowledged nothing{silent} ({name}, {code})")
        }
        (WcStatus::WrFlushErr, Some(reason)) => format!("the connection was lost: {reason}"),
        _ => format!("{} ({})", status.as_str(), status as u8),
    }
}

/// A remark for a person; nothing in a pipe.
pub fn note(line: impl Display) {
    if std::io::stderr().is_terminal() {
        eprintln!("{line}");
    }
}

/// A line on standard output.
pub fn print(line: impl Display) -> Result<(), CliError> {
    use std::io::Write;
    writeln!(std::io::stdout(), "{line}").map_err(stdout)
}

/// An error of writing to standard output.
pub fn stdout(source: std::io::Error) -> CliError {
    if source.kind() == std::io::ErrorKind::BrokenPipe {
        return CliError::new(Blame::ReaderLeft, source);
    }
    CliError::failed(format_args!("cannot write to standard output: {source}"))
}
