//! `everywire decode FILE`: a line or a JSON object a packet.
//!
//! Takes captures of any program, not only ours: pcap and pcapng with Ethernet frames or InfiniBand packets. What is neither RoCE,
//! iWARP nor InfiniBand is counted, not shown (all with `--all`). Exits with 1 when the file can't be read; a packet with a bad ICRC
//! or VCRC, or an FPDU with a wrong CRC, is shown as such and counted.

mod cm;
mod fpdu;
#[cfg(test)]
mod fuzz;
mod infiniband;
mod iwarp;
mod mad;
mod packet;
mod reader;
mod tcp;
mod upper;

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::error::{self, CliError};
use reader::Link;

/// Flags of `everywire decode`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  everywire decode file.pcap\n  \
    tcpdump -w - udp port 4791 | everywire decode -\n  everywire decode --json file.pcapng | jq 'select(.icrc == \"bad\")'")]
pub struct Args {
    /// One JSON object a packet instead of a line.
    #[arg(long)]
    json: bool,
    /// Show frames that are neither RoCE, iWARP nor InfiniBand too.
    #[arg(long)]
    all: bool,
    /// The capture: pcap or pcapng, Ethernet or InfiniBand; `-` is standard input.
    file: PathBuf,
}

/// What was seen, for the closing line.
#[derive(Default)]
struct Totals {
    frames: u64,
    roce: u64,
    infiniband: u64,
    /// MPA start frames and FPDUs.
    iwarp: u64,
    bad_icrc: u64,
    /// CRCs of iWARP's FPDUs.
    bad_crc: u64,
    bad_vcrc: u64,
    malformed: u64,
    cut: u64,
}

/// Prints every packet of the file.
pub fn run(args: &Args) -> Result<(), CliError> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut known = Known::default();
    let mut totals = Totals::default();
    let mut first_ns = None;
    reader::for_each(&args.file, |mut frame| {
        let start = *first_ns.get_or_insert(frame.time_ns);
        let mut object = Map::new();
        object.insert("number".into(), json!(frame.number));
        object.insert("time_s".into(), json!(frame.time_ns.saturating_sub(start) as f64 / 1e9));
        totals.frames += 1;
        let in_words = unwrap_erf(&mut frame);
        object.insert("length".into(), json!(frame.wire_len));
        let shown = if let Err(other) = in_words {
            object.insert("other".into(), json!(other));
            false
        } else if (frame.bytes.len() as u64) < u64::from(frame.wire_len) {
            totals.cut += 1;
            object.insert("error".into(), json!(format!("only {} bytes captured", frame.bytes.len())));
            true
        } else {
            describe(frame.link, &frame.bytes, &mut known, &mut totals, &mut object)
        };
        if !(shown || args.all) {
            return Ok(());
        }
        let written = if args.json {
            writeln!(out, "{}", Value::Object(object))
        } else {
            writeln!(out, "{}", packet::line(&object))
        };
        written.map_err(error::stdout)
    })?;
    out.flush().map_err(error::stdout)?;
    if !args.json {
        eprintln!(
            "{} frames, {} RoCE, {} iWARP, {} with a bad ICRC, {} malformed, {} cut short, {} InfiniBand, {} with a bad VCRC, \
             {} {} with a wrong CRC",
            totals.frames,
            totals.roce,
            totals.iwarp,
            totals.bad_icrc,
            totals.malformed,
            totals.cut,
            totals.infiniband,
            totals.bad_vcrc,
            totals.bad_crc,
            if totals.bad_crc == 1 { "FPDU" } else { "FPDUs" },
        );
    }
    Ok(())
}

/// What earlier frames told.
#[derive(Default)]
struct Known {
    flows: upper::Flows,
    streams: iwarp::Streams,
}

/// Takes the packet out of its ERF record, if it stands in one.
fn unwrap_erf(frame: &mut reader::Frame) -> Result<(), String> {
    if frame.link != Link::Erf {
        return Ok(());
    }
    let (packet, wire_len) = infiniband::of_erf(&frame.bytes)?;
    (frame.bytes, frame.wire_len, frame.link) = (packet.to_vec(), wire_len, Link::InfiniBand);
    Ok(())
}

/// Describes one frame; whether it is RoCE, iWARP or InfiniBand.
fn describe(
    link: Link,
    bytes: &[u8],
    known: &mut Known,
    totals: &mut Totals,
    object: &mut Map<String, Value>,
) -> bool {
    let outcome = if link == Link::Ethernet {
        packet::describe(bytes, &mut known.flows, object)
    } else {
        let found = infiniband::describe(bytes, &mut known.flows, object);
        totals.bad_vcrc += u64::from(found.bad_vcrc);
        found.outcome
    };
    match outcome {
        packet::Outcome::Other if link == Link::Ethernet => {
            let found = known.streams.describe(bytes, object);
            totals.iwarp += found.units;
            totals.bad_crc += found.bad_crc;
            totals.malformed += found.malformed;
            return found.units > 0;
        }
        packet::Outcome::Other | packet::Outcome::Good => {}
        packet::Outcome::BadIcrc => totals.bad_icrc += 1,
        packet::Outcome::Malformed => totals.malformed += 1,
    }
    match link {
        Link::Ethernet => totals.roce += 1,
        Link::Erf | Link::InfiniBand => totals.infiniband += 1,
    }
    true
}
