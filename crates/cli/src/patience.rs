//! A client's patience with its peer: a server that is being started listens in a moment, a silent peer may answer yet, and one
//! that still has a connection of a killed process refuses that process's queue pair number (REJ 10), which the next one has not.
//!
//! A refusal is an answer, so it is taken for one after a second. Silence is waited for longer, with a word after a second.
//! Whoever loses an established connection is not here.

use std::fmt::Display;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::error::CliError;

/// How long an answer is waited for: a person or a script waits with the client.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How much of that passes without a word.
const SILENCE: Duration = Duration::from_secs(1);
/// How long somebody may take to listen, where it is known that nobody does.
const ABSENCE: Duration = Duration::from_secs(1);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// Queue pairs that are tried.
const QUEUE_PAIRS: u32 = 5;

/// What could help a connection that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cure {
    /// Nothing that is known here.
    None,
    /// Nobody listens there, yet.
    Time,
    /// The peer takes the queue pair for one of a connection that it still has.
    OtherQueuePair,
    /// What had been made so far went away meanwhile, as over a link that was down for a moment.
    StartingOver,
}

/// Makes attempts, each with a queue pair of its own, until one succeeds or no other could. An attempt ends by itself within
/// [`PATIENCE`]; `who` names both ends while it lasts, and `pause` waits between two.
pub async fn connect<T>(
    who: impl Display,
    mut attempt: impl AsyncFnMut() -> Result<T, CliError>,
    pause: impl AsyncFn(Duration),
) -> Result<T, CliError> {
    let start = Instant::now();
    let mut stale = 0;
    loop {
        let waiting = Waiting::begin(&who);
        let outcome = attempt().await;
        drop(waiting);
        let error = match outcome {
            Ok(made) => return Ok(made),
            Err(error) => error,
        };
        match error.cure() {
            Cure::None => return Err(error),
            Cure::Time if start.elapsed() < ABSENCE => pause(PAUSE).await,
            Cure::Time => {
                let seconds = start.elapsed().as_secs_f64();
                return Err(error.and(format_args!("it was tried for {seconds:.1} s")));
            }
            Cure::StartingOver if start.elapsed() < PATIENCE => pause(PAUSE).await,
            Cure::StartingOver => return Err(error),
            Cure::OtherQueuePair => {
                stale += 1;
                if stale == QUEUE_PAIRS {
                    return Err(error.and(format_args!("{QUEUE_PAIRS} queue pairs were tried")));
                }
            }
        }
    }
}

/// Waits on this thread, for programs with nothing else to do on it yet.
pub async fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Tells on standard error that something is waited for, if that takes a second; until it is dropped.
struct Waiting {
    _done: Sender<()>,
}

impl Waiting {
    fn begin(who: impl Display) -> Waiting {
        let text = format!("waiting for an answer: {who} (for {} s at most)", PATIENCE.as_secs());
        let (done, is_done) = channel::<()>();
        let tell = move || {
            if is_done.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("everywire: {text}");
            }
        };
        // Without a thread it waits in silence.
        let _ = std::thread::Builder::new().spawn(tell);
        Waiting { _done: done }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mut outcome: impl FnMut(u32) -> Result<u32, CliError>) -> (Result<u32, CliError>, u32) {
        let mut attempts = 0;
        let attempt = async || {
            attempts += 1;
            outcome(attempts)
        };
        (everywire_net::block_on(connect("here - there", attempt, sleep)), attempts)
    }

    #[test]
    fn whoever_comes_to_listen_is_found() {
        let late = |n| if n < 4 { Err(CliError::peer("refused").with_cure(Cure::Time)) } else { Ok(n) };
        assert!(matches!(run(late), (Ok(4), 4)));
    }

    #[test]
    fn patience_ends_and_says_so() {
        let start = Instant::now();
        let (outcome, attempts) = run(|_| Err(CliError::peer("refused").with_cure(Cure::Time)));
        assert_eq!(outcome.unwrap_err().to_string(), "refused; it was tried for 1.0 s");
        assert!(attempts > 2 && start.elapsed() >= ABSENCE);
    }

    #[test]
    fn an_attempt_that_takes_longer_is_told_as_long() {
        let (outcome, attempts) = run(|_| {
            std::thread::sleep(Duration::from_millis(1310));
            Err(CliError::peer("refused").with_cure(Cure::Time))
        });
        assert_eq!(attempts, 1);
        let text = outcome.unwrap_err().to_string();
        let seconds: f64 =
            text.trim_start_matches("refused; it was tried for ").trim_end_matches(" s").parse().unwrap();
        assert!(seconds >= 1.3, "{text}");
    }

    #[test]
    fn a_stale_number_is_changed_a_few_times() {
        let stale = || CliError::peer("stale").with_cure(Cure::OtherQueuePair);
        assert!(matches!(run(|n| if n < 5 { Err(stale()) } else { Ok(n) }), (Ok(5), 5)));
        let (outcome, attempts) = run(|_| Err(stale()));
        assert_eq!(attempts, QUEUE_PAIRS);
        assert!(outcome.unwrap_err().to_string().contains("5 queue pairs"));
    }

    #[test]
    fn what_went_away_while_it_was_made_is_made_anew() {
        let start = Instant::now();
        let gone = || CliError::peer("gone").with_cure(Cure::StartingOver);
        // For longer than somebody is waited for who does not listen.
        let late = |n| if start.elapsed() < ABSENCE { Err(gone()) } else { Ok(n) };
        assert!(run(late).0.is_ok());
    }

    #[test]
    fn what_time_does_not_cure_is_not_tried_again() {
        assert!(matches!(run(|_| Err(CliError::usage("no"))), (Err(_), 1)));
    }
}
