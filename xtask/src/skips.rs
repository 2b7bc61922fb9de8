//! The list of tests that may be left out, and why: docs/skips.md. What a run leaves out beside it fails the run.
//!
//! A section is a heading, prose with the reason, a line `Says: ` with the words that such a skip is told with, and the
//! tests by libtest's names, or a step's name, an item each.

/// The file, as it was when this was built.
const LIST: &str = include_str!("../../docs/skips.md");

/// The lines `name: reason` of a run that the list has not.
pub fn unlisted(lines: &str) -> Vec<&str> {
    let listed =
        |line: &&str| line.split_once(": ").is_some_and(|(name, reason)| is_listed(LIST, name, reason));
    lines.lines().filter(|line| !listed(line)).collect()
}

/// What libtest left out for an attribute `ignore`, as lines `name: reason`.
pub fn ignored(output: &str) -> String {
    let of_line = |line: &str| {
        let (name, reason) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
        Some(format!("{name}: {}\n", reason.trim_start_matches(", ")))
    };
    output.lines().filter_map(of_line).collect()
}

/// Whether a section names the test and has one of the reason's words.
fn is_listed(list: &str, name: &str, reason: &str) -> bool {
    let item = format!("- `{name}`");
    list.split("\n## ").skip(1).any(|section| {
        let says = section.lines().find_map(|line| line.strip_prefix("Says: ")).unwrap_or_default();
        section.lines().any(|line| line == item) && quoted(says).any(|words| reason.contains(words))
    })
}

/// What stands between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_listed_by_name_and_words() {
        let list =
            "# x\n\n## A\n\nWhy.\n\nSays: `no tool`, `old: `\n\n- `a::b`\n\n## B\n\nSays: `late`\n\n- `c`\n";
        assert!(is_listed(list, "a::b", "there is no tool here"));
        assert!(is_listed(list, "a::b", "old: 3"));
        assert!(!is_listed(list, "a::b", "late"), "another section's words");
        assert!(!is_listed(list, "b", "no tool"));
        assert!(!is_listed(list, "a::b", ""));
        assert!(is_listed(list, "c", "late"));
    }

    #[test]
    fn what_a_run_leaves_out_beside_the_list_is_told() {
        let known = "udp::tests::ipv6_too: ::1 is not free here";
        assert_eq!(unlisted(&format!("{known}\na test: no moon\n")), ["a test: no moon"]);
        let out = "test a::b ... ok\ntest c::d ... ignored\ntest e ... ignored, a measurement\n";
        assert_eq!(ignored(out), "c::d: \ne: a measurement\n");
        assert_eq!(unlisted(&ignored(out)).len(), 2, "neither is known by that name");
    }

    /// A test that was renamed or went away leaves no line behind.
    #[test]
    fn every_listed_test_is_there() {
        let sources = sources(&crate::shell::root().join("crates"));
        let items = LIST.lines().filter_map(|line| line.strip_prefix("- `")?.strip_suffix('`'));
        let names: Vec<&str> = items.filter(|name| !["interop", "opensm", "speed"].contains(name)).collect();
        assert!(names.len() > 40, "{names:?}");
        for name in names {
            let function = format!("fn {}()", name.rsplit("::").next().expect("a last part"));
            assert!(sources.contains(&function), "docs/skips.md names {name}, which is not there");
        }
    }

    fn sources(folder: &std::path::Path) -> String {
        let entries =
            std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let text = |path: std::path::PathBuf| match path.extension() {
            Some(ext) if ext == "rs" => std::fs::read_to_string(path).expect("a source"),
            None if path.is_dir() => sources(&path),
            _ => String::new(),
        };
        entries.map(text).collect()
    }
}
