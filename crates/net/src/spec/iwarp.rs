//! What follows the address of an iWARP device: what it asks of its peers.
//!
//! Read RFC 5044 §7.1 (CRC, markers) and RFC 6581 (revision 2, peer to peer) first. A peer that asks for a CRC gets it in any
//! case, and so does one that asks for markers.

use std::time::Duration;

use everywire_verbs::{IwarpOptions, Rtr};

/// The longest `pause=`.
const MAX_PAUSE_MS: u64 = 60_000;

/// Reads `crc=off,rtr=write` and the like.
///
/// # Errors
/// The option that is none, or the two that contradict each other, in words.
pub(super) fn options(text: &str) -> Result<IwarpOptions, String> {
    let mut options = IwarpOptions::default();
    for option in text.split(',') {
        match option {
            "crc=on" => options.crc = true,
            "crc=off" => options.crc = false,
            "markers" => options.markers = true,
            "mpa=1" => options.mpa_version = 1,
            "mpa=2" => options.mpa_version = 2,
            "rtr=send" => options.peer_to_peer = Some(Rtr::Send),
            "rtr=write" => options.peer_to_peer = Some(Rtr::Write),
            "rtr=read" => options.peer_to_peer = Some(Rtr::Read),
            "rfc7306" => options.rfc7306 = true,
            other => match other.strip_prefix("pause=").map(str::parse) {
                Some(Ok(ms)) if ms <= MAX_PAUSE_MS => options.pause = Duration::from_millis(ms),
                Some(_) => return Err(format!("{other}: a pause is 0 to {MAX_PAUSE_MS} milliseconds")),
                None => {
                    return Err(format!(
                        "{other:?} is none of crc=on, crc=off, markers, mpa=1, mpa=2, rtr=send, rtr=write, rtr=read, \
                         rfc7306, pause=MS"
                    ));
                }
            },
        }
    }
    if options.peer_to_peer.is_some() && options.mpa_version == 1 {
        return Err("MPA revision 1 has no peer-to-peer connections (RFC 6581)".to_owned());
    }
    Ok(options)
}
