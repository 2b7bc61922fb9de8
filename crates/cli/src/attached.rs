//! What a client is attached to: when its fabric ends, it ends, and says so.

use everywire_net::Host;
use everywire_verbs::rt::{Either, select};

use crate::error::CliError;

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
