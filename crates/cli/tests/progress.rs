//! Long work shows its progress on a terminal and is quiet in a pipe.

mod common;

use std::process::{Command, Stdio};

use common::run;

const MEASURE: [&str; 5] = ["perf", "write", "-D", "1", "--json"];

#[test]
fn a_pipe_hears_nothing() {
    let outcome = run(&MEASURE).expect(0);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn a_terminal_sees_what_is_done() {
    // script(1) of util-linux runs it on a terminal of its own and copies what that shows.
    let command = format!("{} {}", env!("CARGO_BIN_EXE_everywire"), MEASURE.join(" "));
    let shown = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .expect("script(1) runs");
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success(), "{text}");
    assert!(text.contains("measuring") && text.contains('\r'), "{text:?}");
    assert!(text.contains("gbit_per_s"), "the result is there all the same: {text:?}");
}
