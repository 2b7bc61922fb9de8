//! What single values of the configuration may be. The reader of the file adds line and column to what is said here.
//!
//! Lengths of texts are those of the fields that carry them: NVMe Base 2.0 figure 275 (SN, MN). Limits that depend on more
//! than the value are checked where all of it is known.

use std::fmt::Display;

use everywire_nvmeof::target::config::MAX_NSID;
use everywire_verbs::DeviceLimits;
use serde::de::{Deserialize, Deserializer, Error};
use uuid::Uuid;

use super::nvme::{MAX_IN_CAPSULE, MIN_QUEUE_ENTRIES};

/// Bytes of the serial number.
const SERIAL: usize = 20;
/// Bytes of the model number.
const MODEL: usize = 40;
/// Most I/O queues: their identifiers are 1 to 65535, and a count of them fits 16 bits.
const MAX_IO_QUEUES: u16 = u16::MAX;

/// A number that fits its type; one that does not is told the range that makes sense.
fn number<'de, D: Deserializer<'de>, T: TryFrom<i64>>(
    from: D,
    low: impl Display,
    high: impl Display,
) -> Result<T, D::Error> {
    let number = i64::deserialize(from)?;
    T::try_from(number).map_err(|_| D::Error::custom(format_args!("{number} is not in {low} to {high}")))
}

pub(super) fn port<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    number(from, 1, u16::MAX)
}

pub(super) fn max_queue_entries<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    number(from, MIN_QUEUE_ENTRIES, DeviceLimits::default().max_qp_wr).map(Some)
}

pub(super) fn max_io_queues<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    number(from, 1, MAX_IO_QUEUES).map(Some)
}

pub(super) fn in_capsule_data<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    number(from, 0, MAX_IN_CAPSULE).map(Some)
}

pub(super) fn nsid<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    number(from, 1, MAX_NSID).map(Some)
}

/// 1 to `most` printable ASCII characters.
fn text<'de, D: Deserializer<'de>>(from: D, most: usize) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(from)?;
    let printable = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if text.is_empty() || text.len() > most || !printable {
        let count = text.chars().count();
        return Err(D::Error::custom(format_args!(
            "{text:?} ({count} characters): 1 to {most} printable ASCII characters are needed"
        )));
    }
    Ok(Some(text))
}

pub(super) fn serial<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    text(from, SERIAL)
}

pub(super) fn model<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    text(from, MODEL)
}

pub(super) fn hosts<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    let hosts = Vec::<String>::deserialize(from)?;
    if hosts.is_empty() {
        return Err(D::Error::custom("no host could connect; name some, or leave `hosts` out to let any"));
    }
    Ok(Some(hosts))
}

pub(super) fn uuid<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Uuid>, D::Error> {
    let uuid = Uuid::deserialize(from)?;
    if uuid.is_nil() {
        return Err(D::Error::custom("the nil UUID names nothing; leave `uuid` out to have one derived"));
    }
    Ok(Some(uuid))
}
