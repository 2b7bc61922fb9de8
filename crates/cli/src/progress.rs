//! Progress of long work: a bar on a terminal, nothing in a pipe.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often a bar that goes on by itself is drawn.
const TICK: Duration = Duration::from_millis(200);

/// A bar on standard error that vanishes with this value; none if standard error is no terminal.
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// Of bytes; 0 if it is not known how many.
    pub fn bytes(total: u64) -> Progress {
        let template = match total {
            0 => "{spinner} {bytes} {bytes_per_sec}",
            _ => "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        };
        Progress::new(total, template)
    }

    /// Of a measurement that takes this long; it goes on by itself.
    pub fn time(text: &str, duration: Duration) -> Progress {
        let progress = Progress::new(duration.as_secs(), "{spinner} {msg} {elapsed}/{len} s");
        if let Some(bar) = &progress.0 {
            bar.set_message(text.to_owned());
            bar.enable_steady_tick(TICK);
        }
        progress
    }

    /// Of steps that tell nothing of themselves.
    pub fn steps(text: &str) -> Progress {
        let progress = Progress::new(0, "{spinner} {msg}");
        if let Some(bar) = &progress.0 {
            bar.set_message(text.to_owned());
            bar.enable_steady_tick(TICK);
        }
        progress
    }

    fn new(total: u64, template: &str) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress(None);
        }
        let bar = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress(Some(bar))
    }

    /// So much is done.
    pub fn at(&self, done: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(done);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
