//! What a client says while nobody answers, how long it waits at most, and that it ends when its fabric does.

use std::fmt::Display;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use everywire_net::Host;
use everywire_verbs::rt::{Either, select};
use everywire_verbs::{ConnectOptions, Connection, Device};

use crate::error::{self, CliError};

/// How long a client waits for a peer: a person or a script waits for it.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long it waits without a word.
const SILENCE: Duration = Duration::from_secs(1);

/// Tells on standard error that something is waited for, if that takes a second; until it is dropped.
pub struct Waiting {
    _done: Sender<()>,
}

impl Waiting {
    /// Begins; `who` names both ends.
    pub fn begin(who: impl Display) -> Waiting {
        let text = format!("waiting for an answer: {who} (for {} s at most)", PATIENCE.as_secs());
        let (done, is_done) = channel::<()>();
        let tell = move || {
            if is_done.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("everywire: {text}");
            }
        };
        // Without a thread it waits in silence.
        let _ = std::thread::Builder::new().spawn(tell);
        Waiting { _done: done }
    }
}

/// Connects, with a word while it takes long, and an end.
pub async fn connect(
    device: &Device,
    who: impl Display,
    options: ConnectOptions,
) -> Result<Connection, CliError> {
    let _waiting = Waiting::begin(who);
    device.connect(options.timeout(PATIENCE)).await.map_err(error::cm)
}

/// Does a client's work, which ends with the fabric that its device is attached to.
pub async fn while_attached<T>(
    host: &Host,
    work: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    match select(work, host.until_lost()).await {
        Either::First(done) => done.map_err(|error| explain(host, error)),
        Either::Second(why) => Err(lost(host, &why)),
    }
}

/// The same error, or why it has come to it if the fabric is gone.
pub fn explain(host: &Host, error: CliError) -> CliError {
    match host.lost() {
        Some(why) => lost(host, &why),
        None => error,
    }
}

fn lost(host: &Host, why: &str) -> CliError {
    CliError::peer(format_args!("{}: the port is gone: {why}", host.device().name()))
}
