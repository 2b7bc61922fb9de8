//! What the sources must not say: clocks, sockets, sleeps and threads in the sans-IO crates; `unsafe` outside
//! its places; an unbiased `select!` in protocol code; a file with no head comment; unfinished marks; paths of
//! one machine. Findings name file and line.

use std::path::Path;

use super::{Tracked, lexer};

/// The crates that get time, bytes and entropy handed in (ARCHITECTURE.md, the driving contract).
pub const SANS_IO: &[&str] = &["wire", "transport", "verbs", "fabric", "sim", "nvmeof", "iscsi"];

/// What a sans-IO crate must not call, outside its tests.
const FORBIDDEN: &[&str] = &[
    "UdpSocket",
    "TcpStream",
    "TcpListener",
    "UnixStream",
    "UnixDatagram",
    "Instant::now",
    "SystemTime::now",
    "thread::sleep",
    "thread::spawn",
    "thread::Builder",
    "tokio::time",
    "tokio::spawn",
    "thread_rng",
    "OsRng",
];

/// Where a forbidden call is right after all: file, call, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    // Virtual time is an offset from one base: the type has no other constructor.
    ("crates/sim/src/", "Instant::now", "the base of virtual time"),
    ("crates/fabric/src/clock.rs", "Instant::now", "the base of virtual time"),
];

/// Where `unsafe` may stand, each block with its reason (clippy checks the reason).
const UNSAFE: &[&str] =
    &["crates/verbs/src/memory", "crates/net/", "crates/block/src/file", "crates/block/src/buffer"];

/// Whole crates whose root cannot say `forbid(unsafe_code)`, since parts of them may use it.
const UNSAFE_CRATES: &[&str] = &["verbs", "net", "block"];

/// Everything that can be told from the text of the files.
pub fn check(root: &Path, files: &[Tracked]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files {
        findings.extend(machine_paths(root, file));
        findings.extend(unfinished(file));
        if file.path.ends_with(".rs") {
            findings.extend(rust(file));
        }
    }
    findings
}

/// Whether a path holds only tests, examples or benchmarks.
pub fn is_test_path(path: &str) -> bool {
    path.ends_with("/tests.rs")
        || path.ends_with("_tests.rs")
        || ["/tests/", "/examples/", "/benches/", "/fuzz/"].iter().any(|folder| path.contains(folder))
}

fn crate_of(path: &str) -> &str {
    path.strip_prefix("crates/").and_then(|p| p.split('/').next()).unwrap_or_default()
}

fn rust(file: &Tracked) -> Vec<String> {
    let mut findings = Vec::new();
    if !file.text.starts_with("//!") {
        findings
            .push(format!("{}:1: no head comment (`//!`: role, clauses, what it does not do)", file.path));
    }
    let is_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
    let forbids = file.text.contains("forbid(unsafe_code)");
    if is_root && !forbids && !UNSAFE_CRATES.contains(&crate_of(&file.path)) {
        findings.push(format!("{}:1: the crate does not say #![forbid(unsafe_code)]", file.path));
    }
    let blanked = lexer::blank(&file.text);
    let tests = lexer::test_spans(&blanked);
    let in_tests = |at: usize| is_test_path(&file.path) || tests.iter().any(|s| s.contains(&at));
    if !UNSAFE.iter().any(|place| file.path.starts_with(place)) {
        findings.extend(
            words(&blanked, "unsafe").map(|at| {
                format!("{}:{}: `unsafe` outside its places", file.path, lexer::line(&blanked, at))
            }),
        );
    }
    if SANS_IO.contains(&crate_of(&file.path)) {
        for call in FORBIDDEN {
            let excepted =
                EXCEPTIONS.iter().any(|(path, what, _)| file.path.starts_with(path) && what == call);
            for at in words(&blanked, call).filter(|at| !excepted && !in_tests(*at)) {
                let line = lexer::line(&blanked, at);
                findings.push(format!("{}:{line}: `{call}` in a sans-IO crate", file.path));
            }
        }
        for at in words(&blanked, "select!").filter(|at| !in_tests(*at)) {
            let body = blanked[at..].trim_start_matches("select!").trim_start_matches([' ', '{', '\n']);
            if !body.starts_with("biased") {
                let line = lexer::line(&blanked, at);
                findings.push(format!("{}:{line}: `select!` without `biased;` does not replay", file.path));
            }
        }
    }
    findings
}

/// The offsets at which `word` stands as a whole word.
fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).map(|(at, _)| at).filter(move |at| {
        !part(text[..*at].chars().next_back()) && !part(text[at + word.len()..].chars().next())
    })
}

fn unfinished(file: &Tracked) -> Vec<String> {
    if file.path.starts_with("xtask/src/tidy/") || !is_prose_or_code(&file.path) {
        return Vec::new();
    }
    let marks = ["TODO", "FIXME", "XXX", "todo!(", "unimplemented!("];
    let found = |line: &str| marks.iter().find(|m| words(line, m).next().is_some()).copied();
    let lines = file.text.lines().enumerate();
    lines.filter_map(|(n, l)| found(l).map(|m| format!("{}:{}: unfinished: {m}", file.path, n + 1))).collect()
}

fn is_prose_or_code(path: &str) -> bool {
    [".rs", ".md", ".sh", ".toml", ".py"].iter().any(|end| path.ends_with(end)) || path.starts_with(".ci/")
}

/// A path below this checkout, or below somebody's home folder.
fn machine_paths(root: &Path, file: &Tracked) -> Vec<String> {
    let mut bad: Vec<String> = ["/home/", "/Users/", "/root/."].map(String::from).to_vec();
    let above = root.parent().filter(|p| p.components().count() > 2).unwrap_or(root);
    bad.push(format!("{}/", above.display()));
    if file.path.starts_with("xtask/src/tidy/") || file.path == "Cargo.lock" {
        return Vec::new();
    }
    let lines = file.text.lines().enumerate();
    lines
        .filter_map(|(n, l)| bad.iter().find(|b| l.contains(*b)).map(|b| (n, b)))
        .map(|(n, b)| format!("{}:{}: a path of one machine: {b}", file.path, n + 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(path: &str, text: &str) -> Vec<String> {
        let file = Tracked { path: path.into(), text: text.into() };
        check(Path::new("/a/b/c"), &[file])
    }

    #[test]
    fn sans_io_crates_have_no_clock() {
        let text = "//! Head.\nfn f() { std::time::Instant::now(); }\n";
        assert_eq!(find("crates/verbs/src/x.rs", text).len(), 1);
        assert!(find("crates/net/src/x.rs", text).is_empty());
        assert!(find("crates/verbs/src/x/tests.rs", text).is_empty());
        let in_tests = "//! Head.\n#[cfg(test)]\nmod tests {\n fn f() { Instant::now(); }\n}\n";
        assert!(find("crates/verbs/src/x.rs", in_tests).is_empty());
        assert!(find("crates/verbs/src/x.rs", "//! Head: no Instant::now here.\n").is_empty());
    }

    #[test]
    fn unsafe_head_comments_and_marks() {
        assert_eq!(find("crates/wire/src/x.rs", "//! H.\nunsafe fn f() {}\n").len(), 1);
        assert!(find("crates/verbs/src/memory/raw.rs", "//! H.\nunsafe fn f() {}\n").is_empty());
        assert_eq!(find("crates/wire/src/x.rs", "fn f() {}\n").len(), 1);
        assert_eq!(find("README.md", "TODO: write\n").len(), 1);
        assert_eq!(find("crates/wire/src/lib.rs", "//! H.\n").len(), 1);
    }

    #[test]
    fn select_is_biased() {
        let text = "//! H.\nfn f() { tokio::select! { biased; a = b => {} } }\n";
        assert!(find("crates/nvmeof/src/x.rs", text).is_empty());
        let text = "//! H.\nfn f() { tokio::select! { a = b => {} } }\n";
        assert_eq!(find("crates/nvmeof/src/x.rs", text).len(), 1);
    }

    #[test]
    fn paths_of_a_machine() {
        assert_eq!(find("x.md", "see /a/b/other\n").len(), 1);
        assert_eq!(find("x.sh", "cd /home/me\n").len(), 1);
    }
}
