//! The picture: switches by level, on a circle or on a grid, hosts beside theirs; a line a cable, colour by state.
//!
//! Plain SVG 1.1 without scripts or fonts of its own. Hovering over a node or cable shows what it is.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::fmt::Write;

use everywire_net::fabric_host::plan::Layout;
use everywire_net::fabric_host::snapshot::{Link, Node, Snapshot, State};

use super::levels;

/// Size of a switch's box, and of a host's.
const SWITCH: (f64, f64) = (72.0, 26.0);
const HOST: (f64, f64) = (44.0, 20.0);
/// Between neighbours on a level, and between levels.
const GAP: f64 = 12.0;
const RISE: f64 = 110.0;
/// Around everything.
const MARGIN: f64 = 40.0;

/// Where a node's middle is.
type Place = (f64, f64);

/// Draws it.
pub fn svg(snapshot: &Snapshot) -> String {
    let mut places = match snapshot.layout {
        Layout::Levels => by_level(snapshot),
        Layout::Circle => on_circle(snapshot),
        Layout::Grid(columns) => on_grid(snapshot, columns),
    };
    let least = places.iter().fold((f64::MAX, f64::MAX), |m, p| (m.0.min(p.0), m.1.min(p.1)));
    for place in &mut places {
        *place = (place.0 - least.0 + MARGIN + SWITCH.0 / 2.0, place.1 - least.1 + 2.0 * MARGIN);
    }
    let most = places.iter().fold((0.0f64, 0.0f64), |m, p| (m.0.max(p.0), m.1.max(p.1)));
    let (width, height) = (most.0 + MARGIN + SWITCH.0 / 2.0, most.1 + 2.0 * MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let title = format!("{}: {}", snapshot.name, snapshot.engine.name());
    let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"24\" font-size=\"14\">{title}</text>");
    cables(&mut out, snapshot, &places);
    for (node, place) in snapshot.nodes.iter().zip(&places) {
        draw_node(&mut out, node, *place);
    }
    out.push_str("</svg>\n");
    out
}

/// Each level a row, hosts at the bottom, every row over the same middle.
fn by_level(snapshot: &Snapshot) -> Vec<Place> {
    let levels = levels(snapshot);
    let top = levels.iter().copied().max().unwrap_or(0);
    let mut rows: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    levels.iter().enumerate().for_each(|(index, level)| rows.entry(*level).or_default().push(index));
    let step = |level: usize| if level == 0 { HOST.0 + GAP } else { SWITCH.0 + GAP };
    let width = rows.iter().map(|(level, row)| row.len() as f64 * step(*level)).fold(0.0, f64::max);
    let mut places = vec![(0.0, 0.0); levels.len()];
    for (level, row) in rows {
        let step = width / row.len() as f64;
        for (at, index) in row.into_iter().enumerate() {
            places[index] = ((at as f64 + 0.5) * step, (top - level) as f64 * RISE);
        }
    }
    places
}

/// Switches on a circle; hosts further out, spread over their switch's share of it.
fn on_circle(snapshot: &Snapshot) -> Vec<Place> {
    let switches: Vec<usize> = (0..snapshot.nodes.len()).filter(|&n| snapshot.nodes[n].switch).collect();
    let count = switches.len().max(1) as f64;
    let radius = (count * (SWITCH.0 + 4.0 * GAP) / TAU).max(80.0);
    let at = |radius: f64, turn: f64| {
        let angle = (turn - 0.25) * TAU;
        (radius * angle.cos(), radius * angle.sin())
    };
    let mut places = vec![(0.0, 0.0); snapshot.nodes.len()];
    let hosts = hosts_of(snapshot);
    for (number, index) in switches.into_iter().enumerate() {
        places[index] = at(radius, number as f64 / count);
        let own = hosts.get(&index).map_or(&[][..], Vec::as_slice);
        for (place, host) in own.iter().enumerate() {
            let share = (place as f64 + 0.5) / own.len() as f64 - 0.5;
            places[*host] = at(radius + 90.0, (number as f64 + share * 0.8) / count);
        }
    }
    places
}

/// Switches on a grid, hosts below and right of theirs.
fn on_grid(snapshot: &Snapshot, columns: usize) -> Vec<Place> {
    let mut places = vec![(0.0, 0.0); snapshot.nodes.len()];
    let hosts = hosts_of(snapshot);
    let widest = hosts.values().map(Vec::len).max().unwrap_or(0) as f64;
    let step = (SWITCH.0 + 60.0).max(SWITCH.0 + widest * (HOST.0 + GAP));
    let switches = (0..snapshot.nodes.len()).filter(|&n| snapshot.nodes[n].switch);
    for (number, index) in switches.enumerate() {
        let columns = columns.max(1);
        let (x, y) = ((number % columns) as f64 * step, (number / columns) as f64 * RISE);
        places[index] = (x, y);
        for (place, host) in hosts.get(&index).into_iter().flatten().enumerate() {
            places[*host] = (x + SWITCH.0 * 0.6 + place as f64 * (HOST.0 + GAP), y + 38.0);
        }
    }
    places
}

/// Hosts by the switch of their first link.
fn hosts_of(snapshot: &Snapshot) -> BTreeMap<usize, Vec<usize>> {
    let index = snapshot.index();
    let mut out: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (host, node) in snapshot.nodes.iter().enumerate().filter(|(_, node)| !node.switch) {
        let link = snapshot.links.iter().find(|link| link.ends.iter().any(|end| end.node == node.name));
        let other = link.and_then(|link| link.ends.iter().find(|end| end.node != node.name));
        if let Some(switch) = other.and_then(|end| index.get(end.node.as_str())) {
            out.entry(*switch).or_default().push(host);
        }
    }
    out
}

/// Cables between the same two nodes bow out, so that each is seen.
fn cables(out: &mut String, snapshot: &Snapshot, places: &[Place]) {
    let index = snapshot.index();
    let mut drawn: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    for link in &snapshot.links {
        let [Some(&a), Some(&b)] = link.ends.each_ref().map(|end| index.get(end.node.as_str())) else {
            continue;
        };
        let times = drawn.entry((a.min(b), a.max(b))).or_default();
        let (from, to) = (places[a], places[b]);
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy).max(1.0);
        let bow = f64::from((*times).div_ceil(2)) * if times.is_multiple_of(2) { 18.0 } else { -18.0 };
        *times += 1;
        let (mx, my) = ((from.0 + to.0) / 2.0 - dy / length * bow, (from.1 + to.1) / 2.0 + dx / length * bow);
        let (colour, dash) = look(link);
        let ends = link.ends.each_ref().map(|end| format!("{}/{} {}", end.node, end.port, end.state.name()));
        let _ = writeln!(
            out,
            "<path d=\"M{:.1} {:.1} Q{mx:.1} {my:.1} {:.1} {:.1}\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"1.5\"{dash}><title>{} - {}, {}, MTU {}</title></path>",
            from.0, from.1, to.0, to.1, ends[0], ends[1], link.rate, link.mtu
        );
    }
}

fn look(link: &Link) -> (&'static str, &'static str) {
    let [a, b] = &link.ends;
    match (a.state, b.state) {
        (State::Down, _) | (_, State::Down) => ("#cc3311", " stroke-dasharray=\"2 4\""),
        (State::Active, State::Active) => ("#117733", ""),
        (State::Planned, _) | (_, State::Planned) => ("#888888", ""),
        _ => ("#ddaa33", " stroke-dasharray=\"6 3\""),
    }
}

fn draw_node(out: &mut String, node: &Node, (x, y): Place) {
    let ((w, h), fill, corner) = if node.switch { (SWITCH, "#dde8f6", 3) } else { (HOST, "#f7f0dd", 10) };
    let fill = if node.router { "#e4d8f0" } else { fill };
    let lids: Vec<String> =
        node.end_ports.iter().filter(|port| port.lid != 0).map(|port| format!("LID {}", port.lid)).collect();
    let _ = writeln!(
        out,
        "<g><title>{} {} {}</title><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{w}\" height=\"{h}\" rx=\"{corner}\" \
         fill=\"{fill}\" stroke=\"#445566\"/><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text></g>",
        node.name,
        node.guid,
        lids.join(", "),
        x - w / 2.0,
        y - h / 2.0,
        y + 4.0,
        node.name
    );
}
