//! `everywire demo`: the main job in one command. Over each wire and protocol that exists, a target and an initiator in
//! separate processes on this machine; real bytes written, read back and compared; then a short measurement.
//!
//! The other process is this program again, as `perf --listen` or `serve`: nothing here that a user could not do by hand.

mod disk;
mod iser;
mod namespaces;
mod nvme;
mod pattern;
mod places;
mod srp;
mod verbs;

use std::time::Duration;

use everywire_block::format_size;
use serde_json::{Value, json};

use crate::error::{CliError, print};
use crate::progress::Progress;
use pattern::Difference;
use places::Places;

/// Flags of `everywire demo`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The table: what was written, read back and compared; then what a short measurement gave.\n\
    GB/s are 10^9 payload bytes a second; p50 and p99 are microseconds of one operation with the others in flight.\n\n\
    Examples:\n  everywire demo\n  everywire demo --json --seconds 0.5\n  everywire demo --device rocev2:192.0.2.7"
)]
pub struct Args {
    /// The target's device [default: a free loopback address].
    #[arg(long, value_name = "WIRE:ADDRESS")]
    device: Option<String>,
    /// Seconds to measure each row.
    #[arg(long, default_value_t = 0.75)]
    seconds: f64,
    /// One JSON object.
    #[arg(long)]
    json: bool,
    /// Be the part of the demo that shows RoCE v1.
    #[arg(long, hide = true)]
    in_namespace: bool,
}

/// A line of the table.
struct Row {
    wire: &'static str,
    protocol: String,
    /// Bytes compared, or where they differ.
    verified: Result<u64, Difference>,
    gb_per_s: f64,
    iops: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Runs everything and prints the table.
pub fn run(args: &Args) -> Result<(), CliError> {
    if !(args.seconds > 0.0 && args.seconds <= 60.0) {
        return Err(CliError::usage(format_args!("--seconds {}: more than 0, at most 60", args.seconds)));
    }
    if args.in_namespace {
        return namespaces::inside(args);
    }
    let seconds = Duration::from_secs_f64(args.seconds);
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    let named = args.device.as_deref().and_then(|device| device.split(':').next());
    if named == Some(IN_NAMESPACES) {
        return Err(CliError::usage(format_args!(
            "--device {}: the demo of RoCE v1 makes network namespaces of its own; `everywire perf` and `everywire ping` take \
             any interface",
            args.device.as_deref().unwrap_or_default()
        )));
    }
    for wire in WIRES.into_iter().filter(|wire| named.is_none_or(|named| named == *wire)) {
        let places = Places::on(wire, args.device.as_deref())?;
        rows.extend(rows_of(wire, &places, seconds)?);
    }
    if named.is_none() {
        let progress = Progress::steps("rocev1, in network namespaces");
        match namespaces::rows(seconds)? {
            Ok(more) => rows.extend(more),
            Err(why) => left_out.push((IN_NAMESPACES, why)),
        }
        drop(progress);
    }
    show(&rows, &left_out, args.json)
}

/// Everything over one wire.
fn rows_of(wire: &'static str, places: &Places, seconds: Duration) -> Result<Vec<Row>, CliError> {
    let mut rows = Vec::new();
    let parts: [(&str, Part); 4] = [
        ("verbs", verbs::rows),
        ("NVMe over RDMA", disk::rows::<nvme::Nvme>),
        ("iSER", disk::rows::<iser::Iser>),
        ("SRP", disk::rows::<srp::Srp>),
    ];
    for (name, part) in parts {
        let progress = Progress::steps(&format!("{wire}, {name}"));
        rows.extend(part(wire, places, seconds)?);
        drop(progress);
    }
    Ok(rows)
}

/// Prints what was seen, and what was left out and why.
fn show(rows: &[Row], left_out: &[(&str, String)], as_json_object: bool) -> Result<(), CliError> {
    if as_json_object {
        let left_out: Vec<_> = left_out.iter().map(|(wire, why)| json!({"wire": wire, "why": why})).collect();
        print(json!({
            "verified": rows.iter().all(|row| row.verified.is_ok()),
            "rows": rows.iter().map(as_json).collect::<Vec<_>>(),
            "left_out": left_out,
        }))?;
    } else {
        table(rows)?;
        for (wire, why) in left_out {
            print(format_args!("{wire:<7} left out: {why}"))?;
        }
    }
    verdict(rows)
}

/// Wires whose devices need nothing but an address, and InfiniBand, on a fabric that the demo runs itself.
const WIRES: [&str; 3] = ["rocev2", "iwarp", "ib"];
/// The wire that needs interfaces of its own.
const IN_NAMESPACES: &str = "rocev1";

type Part = fn(&'static str, &Places, Duration) -> Result<Vec<Row>, CliError>;

fn table(rows: &[Row]) -> Result<(), CliError> {
    print(format_args!(
        "{:<7} {:<31} {:>8} {:>11} {:>10} {:>10} {:>10}",
        "wire", "protocol", "verified", "GB/s", "IOPS", "p50 us", "p99 us"
    ))?;
    for row in rows {
        let verified = match &row.verified {
            Ok(bytes) => format_size(*bytes),
            Err(_) => "MISMATCH".to_owned(),
        };
        print(format_args!(
            "{:<7} {:<31} {verified:>8} {:>11.3} {:>10.0} {:>10.1} {:>10.1}",
            row.wire, row.protocol, row.gb_per_s, row.iops, row.p50_us, row.p99_us
        ))?;
    }
    Ok(())
}

fn as_json(row: &Row) -> Value {
    json!({
        "wire": row.wire, "protocol": row.protocol, "verified": row.verified.is_ok(),
        "bytes_verified": row.verified.as_ref().ok(), "gb_per_s": row.gb_per_s, "iops": row.iops,
        "p50_us": row.p50_us, "p99_us": row.p99_us,
    })
}

/// Wrong bytes are the worst that can be told, so they are told last.
fn verdict(rows: &[Row]) -> Result<(), CliError> {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|row| Some(format!("{} {}: {}", row.wire, row.protocol, row.verified.as_ref().err()?)))
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(CliError::mismatch(wrong.join("; "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_row_fails_the_whole() {
        let row = |verified| Row {
            wire: "rocev2",
            protocol: "WRITE".to_owned(),
            verified,
            gb_per_s: 1.0,
            iops: 1.0,
            p50_us: 1.0,
            p99_us: 1.0,
        };
        assert!(verdict(&[row(Ok(1)), row(Ok(2))]).is_ok());
        let wrong = Difference { at: 4097, got: 1, want: 2 };
        let error = verdict(&[row(Ok(1)), row(Err(wrong))]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("byte 4097") && text.contains("0x01") && text.contains("0x02"), "{text}");
        // ExitCode has no eyes; its text has.
        assert_eq!(format!("{:?}", error.report()), format!("{:?}", std::process::ExitCode::from(4)));
    }
}
