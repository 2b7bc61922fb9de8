//! A topology file as written: the keys that there are, before anything refers to anything.
//!
//! Numbers are as wide as TOML has them, so that what is out of range is refused by its key and range, not by a type.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use everywire_net::fabric_host::plan::{Engine, Layout};
use serde::Deserialize;
use toml::Spanned;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The fabric's name; the file's own without its ending if left out.
    pub name: Option<String>,
    /// The host's port or the switch where the subnet manager is.
    pub sm: Option<String>,
    /// Its SM_Key.
    pub sm_key: Option<String>,
    /// Its priority.
    pub sm_priority: Option<i64>,
    /// High half of GIDs.
    pub gid_prefix: Option<String>,
    /// Further subnets.
    #[serde(default)]
    pub subnet: Vec<SubnetFile>,
    /// Routers between subnets.
    #[serde(default)]
    pub router: Vec<SwitchFile>,
    /// How routes are made.
    pub engine: Option<Engine>,
    /// Root switches.
    pub roots: Option<Vec<String>>,
    /// LID mask control.
    pub lmc: Option<i64>,
    /// Service level of paths in the default partition.
    pub sl: Option<i64>,
    /// How service levels share links.
    pub qos: Option<QosFile>,
    /// How `fabric show` draws it.
    pub layout: Option<LayoutFile>,
    /// What links are like that do not say.
    #[serde(default)]
    pub defaults: ShapeFile,
    /// A shape to make.
    pub generate: Option<Generate>,
    /// Hosts.
    #[serde(default)]
    pub host: Vec<HostFile>,
    /// Switches.
    #[serde(default)]
    pub switch: Vec<SwitchFile>,
    /// `a/1 - b/2`.
    #[serde(default)]
    pub links: Vec<String>,
    /// Links that are unlike the others.
    #[serde(default)]
    pub link: Vec<LinkFile>,
    /// Partitions besides the default one.
    #[serde(default)]
    pub partition: Vec<PartitionFile>,
}

/// One of the shapes.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Generate {
    /// Folded Clos of switches with this radix.
    FatTree { hosts: i64, radix: i64 },
    /// Switches in a ring.
    Ring {
        switches: i64,
        #[serde(default = "one")]
        hosts_per_switch: i64,
    },
    /// Switches in a torus of two dimensions.
    Torus {
        columns: i64,
        rows: i64,
        #[serde(default = "one")]
        hosts_per_switch: i64,
    },
}

fn one() -> i64 {
    1
}

/// A number of the file in its range, which is within that of `T`.
pub fn within<T: TryFrom<i64>>(key: &str, value: i64, range: RangeInclusive<i64>) -> Result<T, String> {
    let found = T::try_from(value).ok().filter(|_| range.contains(&value));
    found.ok_or_else(|| format!("{key}: {value} is not {} to {}", range.start(), range.end()))
}

/// One thing or a list.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore<T> {
    /// One.
    One(T),
    /// A list.
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    /// Always a list.
    pub fn into_vec(self) -> Vec<T> {
        match self {
            OneOrMore::One(one) => vec![one],
            OneOrMore::More(list) => list,
        }
    }
}

/// A host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFile {
    pub name: Spanned<String>,
    pub ports: Option<i64>,
    pub guid: Option<String>,
    /// One address a port.
    pub ip: Option<OneOrMore<IpAddr>>,
}

/// A switch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchFile {
    pub name: Spanned<String>,
    pub ports: i64,
    pub guid: Option<String>,
}

/// How service levels share links.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QosFile {
    /// The lane of each service level.
    pub sl2vl: Vec<i64>,
    /// `LANE:WEIGHT,…`, as OpenSM writes it.
    pub vlarb_high: Option<String>,
    pub vlarb_low: Option<String>,
    pub high_limit: Option<i64>,
}

/// A subnet beyond a router.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubnetFile {
    pub sm: String,
    pub gid_prefix: String,
}

/// What a link is like.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShapeFile {
    pub rate: Option<String>,
    pub delay_us: Option<f64>,
    pub mtu: Option<i64>,
    pub vls: Option<i64>,
    /// Link-level retry.
    pub retry: Option<bool>,
    /// Packets in a million of which the wire flips a bit.
    pub bit_errors_ppm: Option<i64>,
}

/// A link with its own properties. (`flatten` and unknown keys do not go together, so they stand here once more.)
#[derive(Debug, Deserialize)]
#[serde(from = "LinkKeys")]
pub struct LinkFile {
    pub ends: [String; 2],
    pub shape: ShapeFile,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkKeys {
    ends: [String; 2],
    rate: Option<String>,
    delay_us: Option<f64>,
    mtu: Option<i64>,
    vls: Option<i64>,
    retry: Option<bool>,
    bit_errors_ppm: Option<i64>,
}

impl From<LinkKeys> for LinkFile {
    fn from(keys: LinkKeys) -> LinkFile {
        let LinkKeys { ends, rate, delay_us, mtu, vls, retry, bit_errors_ppm } = keys;
        LinkFile { ends, shape: ShapeFile { rate, delay_us, mtu, vls, retry, bit_errors_ppm } }
    }
}

/// A partition.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionFile {
    /// Without the membership bit.
    pub pkey: i64,
    #[serde(default)]
    pub full: Vec<String>,
    #[serde(default)]
    pub limited: Vec<String>,
    /// Service level of paths in it.
    #[serde(default)]
    pub sl: i64,
}

/// How it is drawn.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LayoutFile {
    Levels,
    Circle,
    Grid { columns: i64 },
}

impl LayoutFile {
    /// Checked against the switches there are.
    pub fn into_layout(self, switches: usize) -> Result<Layout, String> {
        match self {
            LayoutFile::Levels => Ok(Layout::Levels),
            LayoutFile::Circle => Ok(Layout::Circle),
            LayoutFile::Grid { columns } => match usize::try_from(columns) {
                Ok(columns) if (1..=switches.max(1)).contains(&columns) => Ok(Layout::Grid(columns)),
                _ => Err(format!(
                    "layout.grid.columns: {columns} is not 1 to {switches}, the switches that stand in them"
                )),
            },
        }
    }
}
