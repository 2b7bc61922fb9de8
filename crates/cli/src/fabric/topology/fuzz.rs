//! Fuzz target of topologies: any text is refused with a reason, or is a plan that holds its own rules and can be drawn.

use everywire_fuzz::target;
use everywire_net::fabric_host::snapshot::Snapshot;

use super::*;
use crate::fabric::draw;

fn files() -> Vec<Vec<u8>> {
    ["fat-tree-16", "ring", "torus", "written-out", "three-subnets"]
        .map(|name| {
            let path = format!("{}/../../examples/{name}.toml", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).expect("an example");
            // Without the comments, which are most of it.
            let lines = text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n"));
            lines.collect::<String>().into_bytes()
        })
        .into()
}

/// Pictures of more nodes than this take longer than a fuzzer's input should.
const DRAWN: usize = 64;

target!(fabric_topology, files(), |bytes| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        match parse(text, "fuzz", "fuzz") {
            Ok(plan) => {
                assert_eq!(plan.check(), Ok(()));
                let snapshot = Snapshot::of_plan(&plan);
                if snapshot.nodes.len() <= DRAWN {
                    for picture in [draw::text(&snapshot), draw::dot(&snapshot), draw::svg(&snapshot)] {
                        assert!(picture.contains(&plan.name));
                    }
                }
            }
            Err(error) => assert!(error.to_string().starts_with("fuzz: "), "{error}"),
        }
    }
});
