//! iSCSI over RDMA (iSER): `serve` with a RAM disk as the target, our initiator against it.

use std::net::SocketAddr;
use std::time::Duration;

use everywire_iscsi::initiator::{Disk as Unit, Initiator, Options};
use everywire_iscsi::name::IscsiName;
use everywire_iscsi::rdma::RdmaBinding;
use everywire_net::Host;
use everywire_verbs::rt::Rt;

use super::Row;
use super::disk::{BYTES, Disk, Protocol, Work};
use crate::bench::{Load, Measured};
use crate::error::CliError;
use crate::iscsi::bench::measure;
use crate::iscsi::failed;

/// What is served, and to whom.
const TARGET: &str = "iqn.2026-11.net.everywire:demo";
const INITIATOR: &str = "iqn.2026-11.net.everywire:demo-initiator";

/// iSER.
pub struct Iser;

impl Protocol for Iser {
    const NAME: &'static str = "iSER";

    fn export() -> Vec<String> {
        vec!["--iscsi".to_owned(), format!("{TARGET}=ram:{BYTES}")]
    }

    async fn with_disk(rt: &Rt, host: &Host, target: SocketAddr, work: Work) -> Result<Vec<Row>, CliError> {
        let name = |text: &str| text.parse::<IscsiName>().map_err(CliError::failed);
        let options = Options { loss_timeout: Duration::from_secs(5), ..Options::new(name(INITIATOR)?) };
        let binding = RdmaBinding::new(host.device(), None).map_err(CliError::failed)?;
        let connected = Initiator::connect_rdma(rt, binding, target, &name(TARGET)?, options).await;
        let session = connected.map_err(failed)?;
        let rows = work.rows(rt, &session.disk(0).await.map_err(failed)?).await?;
        session.logout().await;
        Ok(rows)
    }
}

impl Disk for Unit {
    async fn write(&self, offset: u64, bytes: Vec<u8>) -> Result<(), CliError> {
        Unit::write(self, offset, bytes.into()).await.map_err(failed)
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
