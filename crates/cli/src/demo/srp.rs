//! SRP over RDMA/CM: `serve` with a RAM disk as the target, our initiator against it.

use std::net::SocketAddr;
use std::time::Duration;

use everywire_net::Host;
use everywire_srp::PortId;
use everywire_srp::rdma::initiator::Disk as Unit;
use everywire_srp::rdma::{Initiator, InitiatorOptions};
use everywire_verbs::rt::Rt;

use super::Row;
use super::disk::{BYTES, Disk, Protocol, Work};
use crate::bench::{Load, Measured};
use crate::error::CliError;
use crate::srp::bench::measure;
use crate::srp::failed;

/// The target's port, and this end's: identifiers given out locally.
const TARGET: PortId = PortId::new(0x0200_0000_0000_0001, 0x0200_0000_0000_0002);
const INITIATOR: PortId = PortId::new(0x0200_0000_0000_0003, 0x0200_0000_0000_0004);

/// SRP.
pub struct Srp;

impl Protocol for Srp {
    const NAME: &'static str = "SRP";

    fn export() -> Vec<String> {
        let (ext, guid) = (format!("{:016x}", TARGET.ext), format!("{:016x}", TARGET.guid));
        let disk = format!("demo=ram:{BYTES}");
        ["--srp", &disk, "--srp-id-ext", &ext, "--srp-ioc-guid", &guid].map(str::to_owned).to_vec()
    }

    async fn with_disk(rt: &Rt, host: &Host, target: SocketAddr, work: Work) -> Result<Vec<Row>, CliError> {
        let options = InitiatorOptions {
            initiator: INITIATOR,
            loss_timeout: Some(Duration::from_secs(5)),
            ..InitiatorOptions::default()
        };
        let connected = Initiator::connect(rt, host.device(), target, TARGET, options).await;
        let initiator = connected.map_err(failed)?;
        let rows = work.rows(rt, &initiator.disk(0).await.map_err(failed)?).await?;
        initiator.log_out().await;
        Ok(rows)
    }
}

impl Disk for Unit {
    async fn write(&self, offset: u64, bytes: Vec<u8>) -> Result<(), CliError> {
        Unit::write(self, offset, &bytes).await.map_err(failed)
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, CliError> {
        Unit::read(self, offset, len).await.map_err(failed)
    }

    async fn flush(&self) -> Result<(), CliError> {
        Unit::flush(self).await.map_err(failed)
    }

    async fn measure(&self, load: Load, rt: &Rt) -> Result<Measured, CliError> {
        measure(load, rt, self).await
    }
}
