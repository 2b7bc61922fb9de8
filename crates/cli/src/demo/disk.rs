//! What the rows of every storage protocol share: a RAM disk behind a target in another process, written, read back and compared,
//! all of it, since memory that nobody has written is not memory yet; then 4 KiB commands are measured.

use std::net::SocketAddr;
use std::time::Duration;

use everywire_net::{Host, TokioRt};
use everywire_verbs::rt::Rt;

use super::{Places, Row, pattern};
use crate::bench::{Load, Measured, Pattern};
use crate::error::CliError;
use crate::serve;

/// Bytes of the disk.
pub const BYTES: u64 = 64 << 20;
/// Bytes of one call.
const CHUNK: u64 = 4 << 20;
/// Bytes of a measured command.
const BLOCK: u64 = 4096;
/// Commands in flight.
const DEPTH: u16 = 32;

/// A disk that is reached by one protocol.
pub trait Disk {
    /// Writes at this offset.
    async fn write(&self, offset: u64, bytes: Vec<u8>) -> Result<(), CliError>;
    /// Reads so many bytes.
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, CliError>;
    /// What was written is kept from now on.
    async fn flush(&self) -> Result<(), CliError>;
    /// Does as much as it can.
    async fn measure(&self, load: Load, rt: &Rt) -> Result<Measured, CliError>;
}

/// One protocol.
pub trait Protocol {
    /// Its name in the table.
    const NAME: &'static str;
    /// Flags of `everywire serve` for a disk of [`BYTES`].
    fn export() -> Vec<String>;
    /// Connects, uses the disk and disconnects.
    async fn with_disk(rt: &Rt, host: &Host, target: SocketAddr, work: Work) -> Result<Vec<Row>, CliError>;
}

/// What is done with a disk.
#[derive(Clone, Copy)]
pub struct Work {
    wire: &'static str,
    name: &'static str,
    seconds: Duration,
}

/// Starts a target, writes, reads back, measures.
pub fn rows<P: Protocol>(
    wire: &'static str,
    places: &Places,
    seconds: Duration,
) -> Result<Vec<Row>, CliError> {
    let second = places.second(wire, |device| serve::arguments(device, &P::export()))?;
    let host = places.open(wire, second.addr())?;
    let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
    host.run(&runtime).map_err(CliError::failed)?;
    let work = Work { wire, name: P::NAME, seconds };
    runtime.block_on(P::with_disk(&runtime.handle(), &host, second.addr(), work))
}

impl Work {
    /// The rows of this disk.
    pub async fn rows(self, rt: &Rt, disk: &impl Disk) -> Result<Vec<Row>, CliError> {
        let verified = write_and_compare(rt, disk).await?;
        let mut rows = Vec::new();
        for (what, pattern) in [("write", Pattern::RandWrite), ("read", Pattern::RandRead)] {
            let load = Load { pattern, block_size: BLOCK, depth: DEPTH, duration: self.seconds };
            let measured = disk.measure(load, rt).await?;
            rows.push(Row {
                wire: self.wire,
                protocol: format!("{} {what} 4 KiB, {DEPTH} in flight", self.name),
                verified: verified.clone(),
                gb_per_s: measured.gb_per_s(),
                iops: measured.iops(),
                p50_us: measured.samples.micros(0.5),
                p99_us: measured.samples.micros(0.99),
            });
        }
        Ok(rows)
    }
}

async fn write_and_compare(rt: &Rt, disk: &impl Disk) -> Result<Result<u64, pattern::Difference>, CliError> {
    let seed = rt.entropy();
    for offset in (0..BYTES).step_by(CHUNK as usize) {
        disk.write(offset, pattern::bytes(seed, offset, CHUNK as usize)).await?;
    }
    disk.flush().await?;
    for offset in (0..BYTES).step_by(CHUNK as usize) {
        let back = disk.read(offset, CHUNK as usize).await?;
        if let Err(difference) = pattern::compare(seed, offset, &back) {
            return Ok(Err(difference));
        }
    }
    Ok(Ok(BYTES))
}
