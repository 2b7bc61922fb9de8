//! NVMe over RDMA: `serve` with a RAM disk as the target, our initiator against it.
//!
//! The disk is written, read back and compared, all of it: memory that nobody has written is not memory yet. Then 4 KiB
//! commands are measured.

use std::time::Duration;

use everywire_net::{Host, TokioRt};
use everywire_nvmeof::Nqn;
use everywire_nvmeof::rdma::{Controller, HostIdentity, InitiatorOptions, Namespace};
use everywire_verbs::rt::Rt;
use uuid::Uuid;

use super::{Places, Row, pattern};
use crate::bench::{Load, Pattern};
use crate::error::CliError;
use crate::nvme::bench::measure;
use crate::nvme::nvme;
use crate::second::SecondProcess;
use crate::serve;

/// What is served.
const SUBSYSTEM: &str = "nqn.2026-11.net.everywire:demo";
/// Bytes of the disk.
const VERIFIED: u64 = 64 << 20;
/// Bytes of one call.
const CHUNK: u64 = 4 << 20;
/// Bytes of a measured command.
const BLOCK: u64 = 4096;
/// Commands in flight.
const DEPTH: u16 = 32;

/// Starts a target, writes, reads back, measures.
pub fn rows(wire: &'static str, places: &Places, seconds: Duration) -> Result<Vec<Row>, CliError> {
    let export = format!("{SUBSYSTEM}=ram:{VERIFIED}");
    let second = places.second(wire, |device| serve::arguments(device, &export))?;
    let host = places.open(wire, second.addr())?;
    let runtime = TokioRt::new().map_err(|e| CliError::failed(format_args!("runtime: {e}")))?;
    host.run(&runtime).map_err(CliError::failed)?;
    let rt = runtime.handle();
    runtime.block_on(async {
        let controller = connect(&rt, &host, &second).await?;
        let namespace = controller.namespace(1).map_err(nvme)?;
        let verified = write_and_compare(&rt, &namespace).await?;
        let mut rows = Vec::new();
        for (name, pattern) in [("write", Pattern::RandWrite), ("read", Pattern::RandRead)] {
            let load = Load { pattern, block_size: BLOCK, depth: DEPTH, duration: seconds };
            let measured = measure(load, &rt, &namespace).await?;
            rows.push(Row {
                wire,
                protocol: format!("NVMe {name} 4 KiB, {DEPTH} in flight"),
                verified: verified.clone(),
                gb_per_s: measured.gb_per_s(),
                iops: measured.iops(),
                p50_us: measured.samples.micros(0.5),
                p99_us: measured.samples.micros(0.99),
            });
        }
        controller.disconnect().await.map_err(nvme)?;
        Ok(rows)
    })
}

async fn connect(rt: &Rt, host: &Host, second: &SecondProcess) -> Result<Controller, CliError> {
    let subsystem: Nqn = SUBSYSTEM.parse().map_err(CliError::failed)?;
    let identity = HostIdentity::from_uuid(Uuid::from_u64_pair(rt.entropy(), rt.entropy()));
    let options = InitiatorOptions { loss_timeout: Duration::from_secs(5), ..InitiatorOptions::default() };
    let connected =
        Controller::connect(rt, host.device(), second.addr(), &subsystem, &identity, options).await;
    connected.map_err(nvme)
}

async fn write_and_compare(
    rt: &Rt,
    namespace: &Namespace,
) -> Result<Result<u64, pattern::Difference>, CliError> {
    let seed = rt.entropy();
    for offset in (0..VERIFIED).step_by(CHUNK as usize) {
        let bytes = pattern::bytes(seed, offset, CHUNK as usize);
        namespace.write(offset, &bytes).await.map_err(nvme)?;
    }
    namespace.flush().await.map_err(nvme)?;
    for offset in (0..VERIFIED).step_by(CHUNK as usize) {
        let back = namespace.read(offset, CHUNK as usize).await.map_err(nvme)?;
        if let Err(difference) = pattern::compare(seed, offset, &back) {
            return Ok(Err(difference));
        }
    }
    Ok(Ok(VERIFIED))
}
