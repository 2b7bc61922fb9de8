//! `everywire fabric show`: text for people, DOT for graphviz, SVG for a browser, JSON for programs.

use clap::ValueEnum;

use super::draw;
use crate::error::{CliError, print};

/// Flags of `everywire fabric show`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    everywire fabric show examples/fat-tree-16.toml\n  \
    everywire fabric show examples/torus.toml --format svg > torus.svg\n  \
    everywire fabric show fat-tree-16 --paths      # of a fabric that runs: by its forwarding tables")]
pub struct Args {
    /// A topology file (with a slash or ending in .toml), or the name of a running fabric.
    fabric: String,
    /// What to print.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Print the links on the way between every two hosts: by the forwarding tables where the fabric runs, by the shortest
    /// ways where it does not.
    #[arg(long)]
    paths: bool,
}

/// What to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Switches, their ports, and who is there.
    Text,
    /// A graph for graphviz.
    Dot,
    /// A picture.
    Svg,
    /// Everything.
    Json,
}

/// Prints it.
pub fn run(args: &Args) -> Result<(), CliError> {
    let snapshot = super::snapshot_of(&args.fabric)?;
    let text = match (args.format, args.paths) {
        (Format::Text, false) => draw::text(&snapshot),
        (Format::Text, true) => draw::path_table(&snapshot),
        (Format::Dot, _) => draw::dot(&snapshot),
        (Format::Svg, _) => draw::svg(&snapshot),
        (Format::Json, paths) => {
            let mut value = serde_json::to_value(&snapshot).map_err(CliError::failed)?;
            if paths && let Some(object) = value.as_object_mut() {
                object.insert("paths".to_owned(), draw::path_json(&snapshot));
            }
            serde_json::to_string_pretty(&value).map_err(CliError::failed)?
        }
    };
    print(text.trim_end())
}
