//! A guest's kernel that hangs: seen by its console, so that nobody waits for it till the end of a job's time; and the one hang
//! that is known to be Linux's own, told by its stack (interop/README.md).
//!
//! It decides nothing: a case whose guest hung has failed, and passes only by a run of its own on a fresh guest.

/// What the console says of a kernel that will not go on: a task that sleeps for longer than `TASK_LIMIT`, and a kernel that
/// fell over its own check.
const STUCK: [&str; 2] = ["blocked for more than", "kernel BUG"];

/// For the guest's kernel command line: after how many seconds a sleeping task is one that hangs, and how often it looks.
/// By default both are 120.
pub const TASK_LIMIT: &str =
    "sysctl.kernel.hung_task_timeout_secs=60 sysctl.kernel.hung_task_check_interval_secs=10";

/// The line of a guest's console that says that its kernel hangs.
pub fn stuck(console: &str) -> Option<&str> {
    console.lines().find(|line| STUCK.iter().any(|words| line.contains(words)))
}

/// The functions, from the innermost, of nvmet waiting for a command of a queue that it lets go of.
const NVMET_STACK: [&str; 4] =
    ["__wait_for_common+", "nvmet_sq_destroy+", "nvmet_rdma_free_queue+", "nvmet_rdma_release_queue_work+"];

/// Whether a guest's kernel log shows nvmet waiting for ever for a command that siw never ended: one task blocked in exactly
/// that stack.
pub fn nvmet_keeps_a_command(log: &str) -> bool {
    log.contains(STUCK[0]) && log.split("Call Trace:").skip(1).any(is_nvmet_stack)
}

fn is_nvmet_stack(trace: &str) -> bool {
    let stack = trace.split("</TASK>").next().unwrap_or_default();
    // What has a question mark is what happened to lie on the stack. The scheduler's own functions come first.
    let mut calls = stack
        .lines()
        .filter_map(|line| line.rsplit_once("] ").map(|(_, call)| call.trim()))
        .filter(|call| !call.starts_with('?') && call.contains("+0x"))
        .skip_while(|call| call.contains("schedule"));
    NVMET_STACK.iter().all(|function| calls.next().is_some_and(|call| call.starts_with(function)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest's log of 6.1.0-57-amd64, shortened.
    const LOG: &str = "\
kern  :err   : [  726.211570] INFO: task kworker/1:0:22 blocked for more than 483 seconds.
kern  :info  : [  726.212093] Workqueue: nvmet-wq nvmet_rdma_release_queue_work [nvmet_rdma]
kern  :info  : [  726.212173] Call Trace:
kern  :info  : [  726.212193]  <TASK>
kern  :info  : [  726.212234]  __schedule+0x34d/0xa00
kern  :info  : [  726.212282]  schedule+0x5a/0xd0
kern  :info  : [  726.212290]  schedule_timeout+0x11a/0x150
kern  :info  : [  726.212302]  __wait_for_common+0x91/0x1e0
kern  :info  : [  726.212310]  ? usleep_range_state+0x90/0x90
kern  :info  : [  726.212324]  nvmet_sq_destroy+0x4f/0x140 [nvmet]
kern  :info  : [  726.212352]  nvmet_rdma_free_queue+0x34/0x240 [nvmet_rdma]
kern  :info  : [  726.212366]  ? finish_task_switch.isra.0+0x90/0x2d0
kern  :info  : [  726.212381]  nvmet_rdma_release_queue_work+0x19/0x50 [nvmet_rdma]
kern  :info  : [  726.212395]  process_one_work+0x1c4/0x380
kern  :info  : [  726.212457]  </TASK>
";

    #[test]
    fn only_that_stack_is_linux_s_own() {
        assert!(nvmet_keeps_a_command(LOG));
        assert!(!nvmet_keeps_a_command(&LOG.replace("nvmet_sq_destroy", "nvmet_sq_create")));
        assert!(!nvmet_keeps_a_command(&LOG.replace("nvmet_rdma_free_queue+", "? nvmet_rdma_free_queue+")));
        let (_, without_the_complaint) = LOG.split_once('\n').unwrap();
        assert!(!nvmet_keeps_a_command(without_the_complaint));
    }

    #[test]
    fn a_console_tells_of_a_hang() {
        assert_eq!(stuck("[    3.1] Bridge firewalling registered\n"), None);
        let line = "[  121.2] INFO: task rmdir:674 blocked for more than 60 seconds.";
        assert_eq!(stuck(&format!("a\n{line}\nb")), Some(line));
    }
}
