//! Discovery sessions: what targets a portal leads to.
//!
//! Read RFC 7143 §4.3 and appendix C (SendTargets). An answer may come in pieces; what is none of its two keys is passed over.

use std::net::SocketAddr;

use bytes::Bytes;
use everywire_verbs::rt::Rt;

use super::binding::Streams;
use super::{Binding, Connector, Initiator, IscsiError, Options};
use crate::keys::{Key, text};
use crate::login::SessionKind;
use crate::rdma::RdmaBinding;
use crate::session::target::Listed;

/// Pieces of an answer to SendTargets that are fetched.
const MAX_PIECES: usize = 4096;

/// What targets there are at `address` for this initiator (RFC 7143 appendix C).
///
/// # Errors
/// See [`IscsiError`].
pub async fn discover<C: Connector + 'static>(
    rt: &Rt,
    connector: C,
    address: SocketAddr,
    options: Options,
) -> Result<Vec<Listed>, IscsiError> {
    discover_by(rt, Streams(connector), address, options).await
}

/// The same over RDMA (iSER).
///
/// # Errors
/// See [`IscsiError`].
pub async fn discover_rdma(
    rt: &Rt,
    binding: RdmaBinding,
    address: SocketAddr,
    options: Options,
) -> Result<Vec<Listed>, IscsiError> {
    discover_by(rt, binding, address, options).await
}

async fn discover_by<B: Binding>(
    rt: &Rt,
    binding: B,
    address: SocketAddr,
    options: Options,
) -> Result<Vec<Listed>, IscsiError> {
    let session = Initiator::start(rt, binding, address, SessionKind::Discovery, options).await?;
    let found = send_targets(&session).await;
    session.logout().await;
    found
}

async fn send_targets(session: &Initiator) -> Result<Vec<Listed>, IscsiError> {
    let mut answer = text::TextBuffer::default();
    let (mut data, mut tag) = (Bytes::from(text::emit([(Key::SendTargets.name(), "All")])), None);
    for _ in 0..MAX_PIECES {
        let (piece, more) = session.work.ask(data, tag).await?;
        answer.push(&piece)?;
        if more.is_none() {
            return listed(answer.take()?);
        }
        (data, tag) = (Bytes::new(), more);
    }
    Err(IscsiError::Protocol("the answer to SendTargets does not end".to_owned()))
}

fn listed(pairs: text::Pairs) -> Result<Vec<Listed>, IscsiError> {
    let mut found: Vec<Listed> = Vec::new();
    for (key, value) in pairs {
        match (Key::of(&key), found.last_mut()) {
            (Some(Key::TargetName), _) => {
                let name =
                    value.parse().map_err(|e| IscsiError::Protocol(format!("TargetName={value}: {e}")))?;
                found.push(Listed { name, addresses: Vec::new() });
            }
            (Some(Key::TargetAddress), Some(last)) => last.addresses.push(value),
            _ => tracing::debug!("SendTargets: {key}={value} is passed over"),
        }
    }
    Ok(found)
}
