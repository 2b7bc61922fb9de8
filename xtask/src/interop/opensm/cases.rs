//! The cases with OpenSM. In each a fabric of ours runs from a file of examples/.

use std::path::Path;
use std::time::{Duration, Instant};

use super::agree;
use super::fabric::Fabric;
use super::lanes;
use super::managers;
use super::parse;
use super::routes;
use super::shown::Shown;
use super::tools::Tools;

/// One case.
pub struct Case {
    pub name: String,
    pub about: String,
    /// Whether `cargo xtask test` runs it.
    pub sample: bool,
    what: What,
}

enum What {
    /// OpenSM brings the topology up, and every tool says of it what `fabric show` says.
    Agree { topology: &'static str, engine: &'static str },
    /// The same tools where our own subnet manager is at work.
    Own { topology: &'static str, engine: &'static str },
    /// A cable is pulled under traffic.
    Reroute,
    /// Ours is master; OpenSM, which is better, takes over and answers the same; ours takes over again when it ends.
    Managers,
    /// Service levels' lanes and lanes' weights are as the topology says.
    Lanes,
    /// OpenSM's ways are as long as our subnet manager's, between all hosts.
    Paths { topology: &'static str, engine: &'static str },
}

impl Case {
    fn new(name: &str, about: &str, what: What) -> Case {
        Case { name: format!("opensm-{name}"), about: about.into(), sample: false, what }
    }

    fn in_sample(self) -> Case {
        Case { sample: true, ..self }
    }

    /// Runs it, with the logs in `folder`.
    pub fn run(&self, program: &Path, folder: &Path) -> Result<(), String> {
        match self.what {
            What::Agree { topology, engine } => agree_on(program, folder, topology, engine),
            What::Own { topology, engine } => own(program, folder, topology, engine),
            What::Reroute => reroute(program, folder),
            What::Managers => managers::take_turns(program, folder),
            What::Lanes => lanes::as_written(program, folder),
            What::Paths { topology, engine } => paths(program, folder, topology, engine),
        }
    }
}

/// Topologies and the engines that can route them. OpenSM's fat-tree engine refuses what is none.
const PATHS: [(&str, &str); 7] = [
    ("ring", "minhop"),
    ("ring", "updn"),
    ("torus", "minhop"),
    ("torus", "updn"),
    ("fat-tree-16", "minhop"),
    ("fat-tree-16", "updn"),
    ("fat-tree-16", "ftree"),
];

/// Every case, in the order they run.
pub fn all() -> Vec<Case> {
    let mut cases = vec![
        Case::new(
            "fat-tree",
            "OpenSM brings up 16 hosts; ten tools and ibdiagnet agree with fabric show",
            What::Agree { topology: "fat-tree-16", engine: "ftree" },
        )
        .in_sample(),
        Case::new("reroute", "a cable is pulled under traffic; OpenSM finds another way", What::Reroute)
            .in_sample(),
        Case::new(
            "managers",
            "OpenSM takes over from ours, with the same records for saquery, and ours takes over again",
            What::Managers,
        )
        .in_sample(),
        Case::new("lanes", "smpquery's sl2vl and vlarb say what [qos] says", What::Lanes).in_sample(),
        Case::new("torus", "the tools on a torus", What::Agree { topology: "torus", engine: "updn" }),
        Case::new(
            "own",
            "the tools where our subnet manager is",
            What::Own { topology: "fat-tree-16", engine: "ftree" },
        ),
        Case::new(
            "own-in-switch",
            "the tools where our subnet manager is in a switch",
            What::Own { topology: "ring", engine: "updn" },
        )
        .in_sample(),
    ];
    cases.extend(PATHS.map(|(topology, engine)| {
        let about = format!("ways of OpenSM's {engine} on {topology} are as long as ours");
        let case = Case::new(&format!("paths-{topology}-{engine}"), &about, What::Paths { topology, engine });
        if engine == "updn" { case.in_sample() } else { case }
    }));
    cases
}

/// The node where OpenSM is, and the one where the tools are: the first and the second host.
fn seats(shown: &Shown) -> Result<(String, String), String> {
    let mut hosts = shown.hosts().map(|n| n.name.clone());
    hosts.next().zip(hosts.next()).ok_or_else(|| "the fabric has not two hosts".into())
}

fn roots(shown: &Shown) -> Result<Vec<u64>, String> {
    shown.roots.iter().map(|name| Ok(shown.node(name)?.guid())).collect()
}

fn agree_on(program: &Path, folder: &Path, topology: &str, engine: &str) -> Result<(), String> {
    let fabric = Fabric::run(program, folder, topology, &["--no-sm"])?;
    let shown = fabric.show()?;
    let (seat, host) = seats(&shown)?;
    let tools = Tools::new(&fabric.name, folder)?;
    let _opensm = tools.opensm(&seat, engine, &roots(&shown)?)?;
    everything(&fabric, &tools, &seat, &host)
}

fn own(program: &Path, folder: &Path, topology: &str, engine: &str) -> Result<(), String> {
    let fabric = Fabric::run(program, folder, topology, &["--engine", engine])?;
    let shown = fabric.show_active()?;
    let (_, host) = seats(&shown)?;
    let seat = shown.sm.split('/').next().unwrap_or_default().to_owned();
    let tools = Tools::new(&fabric.name, folder)?;
    everything(&fabric, &tools, &seat, &host)
}

/// Every tool on `host`, where the subnet manager is at `seat`.
fn everything(fabric: &Fabric, tools: &Tools, seat: &str, host: &str) -> Result<(), String> {
    let shown = fabric.show_active()?;
    agree::listings(tools, host, &shown)?;
    agree::tables(tools, host, &shown)?;
    agree::smps(tools, host, &shown)?;
    agree::administration(tools, host, seat, &shown)?;
    let last = shown.hosts().last().map_or(seat, |n| n.name.as_str());
    agree::ibping(tools, host, &[last], &shown)?;
    agree::counters(tools, host, &shown)?;
    agree::ibdiagnet(tools, host, &shown)
}

/// Rounds of ping-pong that outlast the pull and the new tables.
const ROUNDS: &str = "20000";
const REROUTE_LIMIT: Duration = Duration::from_secs(60);

/// Two hosts below different leaves talk; the cable between leaf and spine that they use is pulled; OpenSM gives the
/// switches other tables; the talk goes on, and is whole.
fn reroute(program: &Path, folder: &Path) -> Result<(), String> {
    let fabric = Fabric::run(program, folder, "fat-tree-16", &["--no-sm"])?;
    let shown = fabric.show()?;
    let (seat, _) = seats(&shown)?;
    let tools = Tools::new(&fabric.name, folder)?;
    let opensm = tools.opensm(&seat, "updn", &roots(&shown)?)?;
    let shown = fabric.show_active()?;
    let hosts: Vec<_> = shown.hosts().collect();
    let (client, server) = (hosts[1], hosts[hosts.len() - 1]);
    let device = |name: &str| format!("ib:{}/{name}/1", fabric.name);
    let address =
        server.end_ports.iter().find_map(|p| p.ip).ok_or("the server's port has no address")?.to_string();
    let (mine, theirs) = (device(&client.name), device(&server.name));
    let listening = fabric.start("listen", &["ping", "--listen", "--device", &theirs, "--count", ROUNDS])?;
    let mut ping = fabric.start("ping", &["ping", "--device", &mine, "--count", ROUNDS, &address])?;
    std::thread::sleep(Duration::from_secs(2));
    let way = routes::way(&shown.subnet()?, &shown.tables(), client.guid(), server.guid())?;
    // The first cable is the client's own, the second goes up from its leaf.
    let pulled = way.get(1).ok_or("the two hosts are at one switch")?;
    let node = shown.nodes.iter().find(|n| n.guid() == pulled.0.0).ok_or("no such node")?;
    fabric.link("down", &node.name, pulled.0.1)?;
    if ping.wait(Duration::from_millis(50)).is_some() {
        return Err(format!("ping was done before the cable was pulled: {ROUNDS} rounds are too few"));
    }
    let after =
        rerouted(&fabric, &tools, &shown, pulled).map_err(|why| format!("{why}\n{}", opensm.log()))?;
    for (what, process) in [("ping", ping), ("ping --listen", listening)] {
        let (code, output) = process.end(Duration::from_secs(300));
        if code != Some(0) {
            return Err(format!("{what}: exit {code:?} over the pull:\n{output}"));
        }
    }
    agree::listings(&tools, &client.name, &after)
}

/// Waits until the tables lead around a pulled cable between all hosts, by dump_fts.
fn rerouted(fabric: &Fabric, tools: &Tools, before: &Shown, pulled: &parse::Cable) -> Result<Shown, String> {
    let (_, host) = seats(before)?;
    let end = Instant::now() + REROUTE_LIMIT;
    loop {
        let shown = fabric.show()?;
        let subnet = shown.subnet()?;
        if subnet.cables.contains(pulled) {
            return Err(format!("the cable {pulled:x?} was pulled, and is still shown as up"));
        }
        let tables = parse::tables(&tools.run(&host, "dump_fts", &[])?)?;
        match routes::lengths(&subnet, &tables) {
            Ok(_) => return Ok(shown),
            Err(why) if Instant::now() > end => {
                return Err(format!("not rerouted after {REROUTE_LIMIT:?}: {why}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// Our subnet manager first, then OpenSM with the same engine and roots, on the same topology; dump_fts reads both's tables.
fn paths(program: &Path, folder: &Path, topology: &str, engine: &str) -> Result<(), String> {
    let lengths = |fabric: &Fabric, tools: &Tools| {
        let shown = fabric.show_active()?;
        let (_, host) = seats(&shown)?;
        let tables = parse::tables(&tools.run(&host, "dump_fts", &[])?)?;
        routes::lengths(&shown.subnet()?, &tables)
    };
    let below = |name: &str| {
        let below = folder.join(name);
        std::fs::create_dir_all(&below).map(|()| below).map_err(|e| e.to_string())
    };
    let ours = {
        let folder = below("ours")?;
        let fabric = Fabric::run(program, &folder, topology, &["--engine", engine])?;
        lengths(&fabric, &Tools::new(&fabric.name, &folder)?)?
    };
    let folder = below("opensm")?;
    let fabric = Fabric::run(program, &folder, topology, &["--no-sm"])?;
    let tools = Tools::new(&fabric.name, &folder)?;
    let shown = fabric.show()?;
    let (seat, _) = seats(&shown)?;
    let roots = if engine == "minhop" { Vec::new() } else { roots(&shown)? };
    let _opensm = tools.opensm(&seat, engine, &roots)?;
    let theirs = lengths(&fabric, &tools)?;
    let differ = theirs.iter().find(|(pair, length)| ours.get(*pair) != Some(*length));
    match differ {
        None if ours.len() == theirs.len() && !ours.is_empty() => Ok(()),
        None => Err(format!("{} pairs of ours, {} of OpenSM's", ours.len(), theirs.len())),
        Some(((from, to), length)) => {
            let own = ours.get(&(from.clone(), to.clone()));
            Err(format!("from {from} to {to}: OpenSM's way has {length} cables, ours {own:?}"))
        }
    }
}
