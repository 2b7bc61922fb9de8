//! NVMe over RDMA: `serve` with a RAM disk as the target, our initiator against it.

use std::net::SocketAddr;
use std::time::Duration;

use everywire_net::Host;
use everywire_nvmeof::Nqn;
use everywire_nvmeof::rdma::{Controller, HostIdentity, InitiatorOptions, Namespace};
use everywire_verbs::rt::Rt;
use uuid::Uuid;

use super::Row;
use super::disk::{BYTES, Disk, Protocol, Work};
use crate::bench::{Load, Measured};
use crate::error::CliError;
use crate::nvme::bench::measure;
use crate::nvme::nvme;

/// What is served.
const SUBSYSTEM: &str = "nqn.2026-11.net.everywire:demo";

/// NVMe over RDMA.
pub struct Nvme;

impl Protocol for Nvme {
    const NAME: &'static str = "NVMe";

    fn export() -> Vec<String> {
        vec!["--nvme".to_owned(), format!("{SUBSYSTEM}=ram:{BYTES}")]
    }

    async fn with_disk(rt: &Rt, host: &Host, target: SocketAddr, work: Work) -> Result<Vec<Row>, CliError> {
        let subsystem: Nqn = SUBSYSTEM.parse().map_err(CliError::failed)?;
        let identity = HostIdentity::from_uuid(Uuid::from_u64_pair(rt.entropy(), rt.entropy()));
        let options =
            InitiatorOptions { loss_timeout: Duration::from_secs(5), ..InitiatorOptions::default() };
        let connected = Controller::connect(rt, host.device(), target, &subsystem, &identity, options).await;
        let controller = connected.map_err(nvme)?;
        let rows = work.rows(rt, &controller.namespace(1).map_err(nvme)?).await?;
        controller.disconnect().await.map_err(nvme)?;
        Ok(rows)
    }
}

impl Disk for Namespace {
    async fn write(&self, offset: u64, bytes: Vec<u8>) -> Result<(), CliError> {
        Namespace::write(self, offset, &bytes).await.map_err(nvme)
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, CliError> {
        Namespace::read(self, offset, len).await.map_err(nvme)
    }

    async fn flush(&self) -> Result<(), CliError> {
        Namespace::flush(self).await.map_err(nvme)
    }

    async fn measure(&self, load: Load, rt: &Rt) -> Result<Measured, CliError> {
        measure(load, rt, self).await
    }
}
