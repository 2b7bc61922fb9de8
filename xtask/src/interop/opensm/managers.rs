//! Two subnet managers in one subnet, ours and OpenSM (IBTA §14.4.1): priorities, handover, standby, and the records of both.

use std::path::Path;
use std::time::{Duration, Instant};

use super::agree;
use super::fabric::Fabric;
use super::records;
use super::shown::Shown;
use super::tools::Tools;

/// How long it may take until another manager is master: a standby polls every 10 seconds, and three polls have to fail.
const TURN_LIMIT: Duration = Duration::from_secs(90);
/// The node where the second manager is.
const SECOND: &str = "h4";
/// The node of the tools.
const TOOLS: &str = "h2";

/// Ours is master, with a lower priority than OpenSM that comes, takes over, is asked the same, and is killed. Then OpenSM comes
/// with a lower priority, and has to stand by.
pub fn take_turns(program: &Path, folder: &Path) -> Result<(), String> {
    let fabric = Fabric::run(program, folder, "two-managers", &[])?;
    let shown = fabric.show_active()?;
    let tools = Tools::new(&fabric.name, folder)?;
    let ours = shown.hosts().next().ok_or("no host")?.name.clone();
    master_is(&tools, &shown, &ours)?;
    // Both ports are managers in the records only where there are two: OpenSM, which is less, first.
    let second = tools.second_opensm(SECOND, 0, "Entering STANDBY state")?;
    master_is(&tools, &shown, &ours)?;
    let own_answers = records::ask(&tools, TOOLS, &shown)?;
    let managers = &own_answers["-s"];
    if managers.len() != 2 {
        return Err(format!("saquery -s shows {managers:?}, not two managers"));
    }
    drop(second);
    let second = tools.second_opensm(SECOND, 15, "SUBNET UP")?;
    master_is(&tools, &shown, SECOND)?;
    let shown = fabric.show_active()?;
    let their_answers = records::ask(&tools, TOOLS, &shown)?;
    agree::listings(&tools, TOOLS, &shown)?;
    drop(second);
    master_is(&tools, &shown, &ours)?;
    agree::ibping(&tools, TOOLS, &[SECOND, "h3"], &shown)?;
    agree::listings(&tools, TOOLS, &fabric.show_active()?)?;
    records::same(&own_answers, &their_answers)
}

/// Waits until sminfo says that the master is at this node.
fn master_is(tools: &Tools, shown: &Shown, node: &str) -> Result<(), String> {
    let lid = agree::lid(shown.node(node)?)?;
    let end = Instant::now() + TURN_LIMIT;
    loop {
        let said = tools.run(TOOLS, "sminfo", &[]);
        let master =
            |text: &String| text.contains(&format!("sm lid {lid} ")) && text.contains("SMINFO_MASTER");
        if said.as_ref().is_ok_and(master) {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("{node} (LID {lid}) is not master after {TURN_LIMIT:?}: {said:?}"));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}
