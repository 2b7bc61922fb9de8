//! Verbs over a reliable connection: WRITE, READ and SEND of 64 KiB, with `perf --listen` as the target.
//!
//! WRITE puts the pattern into the target's memory and READ brings it back. SENDs land in the target's receives, which are
//! memory that may be read, so that READ brings those back too.

use std::time::Duration;

use everywire_net::Host;
use everywire_verbs::{SendOp, SendWr, WcStatus};

use super::{Places, Row, pattern};
use crate::error::CliError;
use crate::perf::client::{self, Link};
use crate::perf::{self, Operation, Plan, throughput};
use crate::second::SecondProcess;

/// Bytes of a message.
const SIZE: u32 = 64 << 10;
/// Messages in flight when measured.
const DEPTH: u32 = 16;
/// How often the target's memory is filled and compared.
const ROUNDS: u64 = 16;

/// Starts a target and does all three.
pub fn rows(wire: &'static str, places: &Places, seconds: Duration) -> Result<Vec<Row>, CliError> {
    let second = places.second(wire, |device| perf::listen_arguments(device, perf::DEFAULT_PORT))?;
    let host = places.open(wire, second.addr())?;
    [Operation::Write, Operation::Read, Operation::Send]
        .into_iter()
        .map(|operation| row(wire, &host, &second, operation, seconds))
        .collect()
}

fn row(
    wire: &'static str,
    host: &Host,
    second: &SecondProcess,
    operation: Operation,
    seconds: Duration,
) -> Result<Row, CliError> {
    let plan = Plan::reliable(operation, SIZE, DEPTH, seconds);
    let links = client::open(host, &plan, second.addr())?;
    let link = &links[0];
    // Each row its own bytes: what an earlier row left behind proves nothing.
    let seed = u64::from(link.qp.qpn().get()) << 32 | operation as u64;
    let mut verified = Ok(0);
    for round in 0..ROUNDS {
        let filled = fill_and_compare(link, operation, seed, round)?;
        verified = verified.and_then(|sum| Ok(sum + filled?));
    }
    let measured = throughput::run(&links, &plan)?;
    client::close(&links);
    Ok(Row {
        wire,
        protocol: format!("RC {} 64 KiB, {DEPTH} in flight", operation.name()),
        verified,
        gb_per_s: measured.gbit_per_s / 8.0,
        iops: measured.msg_per_s,
        p50_us: measured.p50_us,
        p99_us: measured.p99_us,
    })
}

/// Fills every slot of the target, brings them back, compares.
fn fill_and_compare(
    link: &Link,
    operation: Operation,
    seed: u64,
    round: u64,
) -> Result<Result<u64, pattern::Difference>, CliError> {
    let size = SIZE as usize;
    let offset_of = |slot: usize| (round * link.slots as u64 + slot as u64) * u64::from(SIZE);
    for slot in 0..link.slots {
        let at = slot * link.slot_bytes;
        let bytes = pattern::bytes(seed, offset_of(slot), size);
        link.buffer.write_at(at, &bytes).map_err(CliError::failed)?;
        let op = match operation {
            Operation::Send => SendOp::Send,
            _ => SendOp::Write { remote: link.remote_slot(slot) },
        };
        finish(link, SendWr::new(link.index, op).with_sges([link.buffer.sge(at..at + size)]))?;
        // Nothing that is compared may be what is already here.
        link.buffer.write_at(at, &vec![0; size]).map_err(CliError::failed)?;
    }
    for slot in 0..link.slots {
        let at = slot * link.slot_bytes;
        let op = SendOp::Read { remote: link.remote_slot(slot) };
        finish(link, SendWr::new(link.index, op).with_sges([link.buffer.sge(at..at + size)]))?;
        let back = link.buffer.read_vec(at, size).map_err(CliError::failed)?;
        if let Err(difference) = pattern::compare(seed, offset_of(slot), &back) {
            return Ok(Err(difference));
        }
    }
    Ok(Ok(link.slots as u64 * u64::from(SIZE)))
}

/// Posts one and waits for it.
fn finish(link: &Link, wr: SendWr) -> Result<(), CliError> {
    let name = wr.op.name();
    link.qp.post_send(wr).map_err(|e| CliError::failed(format_args!("{}: post {name}: {e}", link.who)))?;
    let mut done = Vec::new();
    everywire_net::block_on(link.cq.wait(&mut done, 1)).map_err(CliError::failed)?;
    match done.first() {
        Some(done) if done.status == WcStatus::Success => Ok(()),
        Some(done) => {
            let (text, code) = (done.status.as_str(), done.status as u8);
            Err(CliError::peer(format_args!("{}: {name} ended with {text} ({code})", link.who)))
        }
        None => Err(CliError::failed(format_args!("{}: no completion of {name}", link.who))),
    }
}
