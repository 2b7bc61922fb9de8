//! `everywire iscsi read` and `write`: byte ranges between a logical unit and standard output or input.

use everywire_block::parse_size;
use everywire_iscsi::initiator::Disk;

use super::{Place, failed};
use crate::error::CliError;
use crate::logical_unit::{LogicalUnit, copy_in, copy_out};

/// Flags of `everywire iscsi read`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    everywire iscsi read 192.0.2.1 iqn.2026-11.example:disk --offset 1MiB --length 64KiB > copy")]
pub struct ReadArgs {
    #[command(flatten)]
    place: Place,
    /// First byte: a whole number of blocks, as in 4096 or 1MiB.
    #[arg(long, default_value = "0", value_parser = size)]
    offset: u64,
    /// Bytes to read [default: all after the offset].
    #[arg(long, value_parser = size)]
    length: Option<u64>,
}

/// Flags of `everywire iscsi write`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    everywire iscsi write 192.0.2.1 iqn.2026-11.example:disk --offset 1MiB < image")]
pub struct WriteArgs {
    #[command(flatten)]
    place: Place,
    /// Where the first byte goes: a whole number of blocks, as in 4096 or 1MiB.
    #[arg(long, default_value = "0", value_parser = size)]
    offset: u64,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|e| e.to_string())
}

/// Reads to standard output.
pub fn read(args: &ReadArgs) -> Result<(), CliError> {
    let ground = args.place.open()?;
    ground.block_on(async {
        let session = args.place.login(&ground).await?;
        let disk = args.place.disk(&session).await?;
        let done = copy_out(&disk, args.offset, args.length).await;
        session.logout().await;
        done
    })
}

/// Writes standard input.
pub fn write(args: &WriteArgs) -> Result<(), CliError> {
    let ground = args.place.open()?;
    ground.block_on(async {
        let session = args.place.login(&ground).await?;
        let disk = args.place.disk(&session).await?;
        let done = copy_in(&disk, args.offset, ground.address).await;
        session.logout().await;
        done
    })
}

impl LogicalUnit for Disk {
    fn block_size(&self) -> u64 {
        self.capacity().block_size.into()
    }

    fn bytes(&self) -> u64 {
        self.capacity().bytes()
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, CliError> {
        Disk::read(self, offset, len).await.map_err(failed)
    }

    async fn write(&self, offset: u64, bytes: Vec<u8>) -> Result<(), CliError> {
        Disk::write(self, offset, bytes.into()).await.map_err(failed)
    }

    async fn flush(&self) -> Result<(), CliError> {
        Disk::flush(self).await.map_err(failed)
    }
}
