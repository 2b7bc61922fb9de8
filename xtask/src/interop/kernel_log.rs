//! Guests' kernel logs: which of their lines a case must not cause.
//!
//! A line above "info" is a finding, but for those named here, each with what says it and why it is no fault of ours.

use super::scenarios::Case;
use super::wire::Wire;

/// What nvme and nvme_rdma say above "info" while a target is away and until it is back, after their "nvme nvme0: ". 0x370
/// and 880 are Command Aborted By Host: the host's own end of what was under way; -111 is what siw says of a target that is not
/// there yet.
const RECONNECT_LINES: &[&str] = &[
    "starting error recovery",
    "failed nvme_keep_alive_end_io error=",
    "long keepalive RTT (",
    "Connect rejected: status ",
    "rdma_connect_locked failed (-111).",
    "Identify NS List failed (status=0x370)",
    "Property Set error: 880, offset 0x14",
];

/// The same of a timed-out command, "I/O 7 QID 1 timeout", and of the multipath disk, "block nvme0n1: ", with the kernel's
/// own count of how often that was said.
const TIMEOUT_LINE: (&str, &str) = ("I/O ", " timeout");
const NO_PATH_LINE: &str = "no usable path - requeuing I/O";
const NO_PATH_COUNT: (&str, &str) = ("nvme_ns_head_submit_bio", " callbacks suppressed");

/// What nvmet says, after its "nvmet: ctrl 1 ", of a host that it no longer hears.
const UNHEARD_LINES: &[&str] = &["keep-alive timer (5 seconds) expired!", "fatal error occurred!"];

/// What ib_srp says above "info", after its "scsi host0: ", of a target that refuses it, or is away: commands without an answer are
/// aborted one by one, and the logical unit and then the host reset, before it connects again.
const SRP_LINES: &[&str] = &[
    "SRP abort called",
    "Sending SRP abort for tag ",
    "SRP reset_device called",
    "ib_srp: SRP reset_host called",
    "ib_srp: SRP LOGIN REJECTED, reason ",
    "ib_srp: Connection ",
];

/// What LIO says, at "err", of a login that it refuses.
const REFUSAL_LINES: &[&str] = &[
    "Security negotiation failed.",
    "iSCSI Login negotiation failed.",
    "Proposer's value list \"None\" contains no valid values from Acceptor's value list \"CHAP\".",
    " is not authorized to access iSCSI target portal group: 1.",
];

/// The same of an initiator that looks for it while it is away.
const AWAY_LINES: &[&str] = &["Unable to locate Target Portal Group on ", "iSCSI Login negotiation failed."];

/// What open-iscsi's kernel part says, after its " connection1:0: ", of a target that is silent.
const PING_LINE: &str = ": ping timeout of ";

/// Harmless, whatever the case does: what a kernel under emulation says of a busy machine, nvme_rdma of its parameter
/// `register_always=N`, nbd of being told to detach, and sd of the unit attentions of a new nexus (SAM-5 §5.14) and of reservations (SPC-4 §5.13). ib_srpt knows
/// no logout (interop/README.md), LIO not all of iSER's keys, which it answers with NotUnderstood, as it must.
const HARMLESS_LINES: &[&str] = &[
    "hrtimer: interrupt took",
    "clocksource:",
    "perf: interrupt took too long",
    "enabling unsafe global rkey",
    "block nbd0: shutting down sockets",
    ": Power-on or device reset occurred",
    ": Parameters changed",
    "ib_srpt Not yet implemented: SRP_I_LOGOUT",
    "Unable to locate key \"TaggedBufferForSolicitedDataOnly\".",
    "Unable to locate key \"MaxOutstandingUnexpectedPDUs\".",
];

/// What ib_srpt says, at "info", of every receive that the end of a channel flushes (5 is IB_WC_WR_FLUSH_ERR), and, at "warn", how
/// many of those it kept back, behind the function's name. Of a receive that failed otherwise it says the same with another
/// number, which no case may cause.
const FLUSHED: (&str, &str) = ("ib_srpt receiving failed for ioctx ", " with status 5");
const FLUSHED_COUNT: (&str, &str) = ("srpt_recv_done: ", " callbacks suppressed");

/// What soft-RoCE says of itself when it must send again (interop/README.md): it goes back over a fast registration that
/// it has already done, and takes the queue pair down.
const REGISTRATION_LINE: &str = "rxe_reg_fast_mr: mr->lkey";

/// What nvmet says over siw when a host has left: it answers the Asynchronous Event Requests that were open, and siw refuses
/// what is posted on a queue pair that has ended, where soft-RoCE takes it and flushes it.
const LATE_ANSWER_LINES: &[&str] =
    &["nvmet_rdma: post_recv cmd failed", "nvmet_rdma: sending cmd response failed"];

/// What nvmet says over siw of a queue that was lost while it sent: events of siw's that it has no use for.
const LOST_QUEUE_LINES: &[&str] = &[
    "nvmet_rdma: received IB QP event: send queue drained (5)",
    "nvmet_rdma: received IB QP event: QP fatal error (1)",
];

/// Kernel messages that no case may cause, whatever their level. Of these "I/O error" has many forms: the block layer's,
/// the page cache's, nvme's own.
const NEVER: &[&str] = &[
    "WARNING:",
    "BUG:",
    "kernel BUG",
    "Oops",
    "hung task",
    "blocked for more than",
    "general protection",
    "rcu_sched",
    "Call Trace",
    "I/O error",
    "I/O Error",
    "failing I/O",
    "lost async page write",
    "EXT4-fs error",
];

/// Whether a line of a guest's kernel log, `facility:level : [time] text`, is one that the case must not cause.
pub fn bad(line: &str, case: &Case) -> bool {
    let says = |known: &[&str]| known.iter().any(|k| line.contains(k));
    if says(NEVER) || case.proof {
        return says(NEVER);
    }
    if line.contains(FLUSHED.0) {
        return !line.ends_with(FLUSHED.1);
    }
    let level = line.split(':').nth(1).unwrap_or_default().trim();
    if !["emerg", "alert", "crit", "err", "warn"].contains(&level) {
        return false;
    }
    let siw = matches!(case.wire, Wire::Iwarp(_));
    let own = (case.reconnects && reconnects(line))
        || ((case.reconnects || case.registers && case.lossy) && line.contains(REGISTRATION_LINE))
        || (case.refuses && says(REFUSAL_LINES))
        || (siw && (says(LATE_ANSWER_LINES) || case.reconnects && says(LOST_QUEUE_LINES)));
    !says(HARMLESS_LINES) && !flushed_count(line) && !own
}

/// Whether it is the count of flushed receives, and nothing else.
fn flushed_count(line: &str) -> bool {
    let text = line.split_once("] ").map_or(line, |(_, text)| text);
    let count = text.strip_prefix(FLUSHED_COUNT.0).and_then(|said| said.strip_suffix(FLUSHED_COUNT.1));
    count.is_some_and(|count| !count.is_empty() && count.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Whether it is one of the lines of nvme, nvme_rdma, nvmet and ib_srp that belong to the other side going away and coming back.
fn reconnects(line: &str) -> bool {
    let text = line.split_once("] ").map_or(line, |(_, text)| text);
    if text.trim_start().starts_with("connection") && text.contains(PING_LINE) {
        return true;
    }
    if AWAY_LINES.iter().any(|known| text.starts_with(known)) {
        return true;
    }
    let Some((device, said)) = text.split_once(": ") else { return false };
    if device.starts_with("scsi host") {
        return SRP_LINES.iter().any(|known| said.starts_with(known));
    }
    if device.starts_with("block nvme") {
        return said == NO_PATH_LINE;
    }
    if device == NO_PATH_COUNT.0 {
        return said.ends_with(NO_PATH_COUNT.1);
    }
    if device == "nvmet" {
        let after = said.strip_prefix("ctrl ").and_then(|said| said.split_once(' '));
        return after.is_some_and(|(_, said)| UNHEARD_LINES.contains(&said));
    }
    device.starts_with("nvme nvme")
        && (RECONNECT_LINES.iter().any(|known| said.starts_with(known))
            || (said.starts_with(TIMEOUT_LINE.0) && said.ends_with(TIMEOUT_LINE.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_words_belong_to_a_reconnect() {
        for line in [
            "kern  :warn  : [  223.261736] nvme nvme0: I/O 1 QID 0 timeout",
            "kern  :warn  : [  223.261899] nvme nvme0: starting error recovery",
            "kern  :err   : [  229.410872] nvme nvme0: failed nvme_keep_alive_end_io error=10",
            "kern  :warn  : [  229.449685] block nvme0n1: no usable path - requeuing I/O",
            "kern  :warn  : [  278.321652] nvme_ns_head_submit_bio: 5 callbacks suppressed",
            "kern  :err   : [  107.492699] nvmet: ctrl 1 keep-alive timer (5 seconds) expired!",
            "kern  :err   : [   95.167126] scsi host0: SRP reset_device called",
        ] {
            assert!(reconnects(line), "{line}");
        }
        for line in [
            "kern  :warn  : [  229.449685] block nvme0n1: no available path - failing I/O",
            "kern  :err   : [  305.961517] nvme0c0n1: I/O Cmd(0x2) @ LBA 523616, 80 blocks, I/O Error (sct 0x3 / sc 0x71)",
            "kern  :err   : [  305.963242] Buffer I/O error on dev nvme0n1, logical block 0, async page read",
            "kern  :warn  : [  305.963242] nvme nvme0: Identify namespace failed (status=0x4002)",
        ] {
            assert!(!reconnects(line), "{line}");
        }
    }

    #[test]
    fn of_ib_srpts_receives_only_flushed_ones_may_fail() {
        let case = Case::new("case", "", |_| Ok(()));
        for line in [
            "kern  :info  : [  41.2] ib_srpt receiving failed for ioctx 00000000001edc9e with status 5",
            "kern  :warn  : [  46.2] srpt_recv_done: 121 callbacks suppressed",
        ] {
            assert!(!bad(line, &case), "{line}");
        }
        for line in [
            "kern  :info  : [  41.2] ib_srpt receiving failed for ioctx 00000000001edc9e with status 4",
            "kern  :err   : [  41.2] ib_srpt srpt_recv_done: req_lim = -1 < 0",
            "kern  :warn  : [  41.2] srpt_recv_done: something else",
            "kern  :warn  : [  41.2] srpt_send_done: 3 callbacks suppressed",
        ] {
            assert!(bad(line, &case), "{line}");
        }
    }
}
