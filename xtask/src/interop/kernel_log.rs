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

/// What dm-multipath says, at "warn", behind its "device-mapper: multipath: 253:0: ", of a path that it gives up or has back.
const PATH_EVENTS: [&str; 2] = ["Failing path ", "Reinstating path "];

/// How what a lost path's disk and host say begins: what was under way there fails, and dm-multipath sends it by another. The map's own
/// disk is `dm-`, and stays among those that may never fail. That only the lost path is named is the case's to see.
const LOST_PATH_LINES: [&str; 4] = [
    "I/O error, dev sd",
    "recoverable transport error, dev sd",
    "ib_srp: Resolving address ",
    "ib_srp: QP creation failed for dev ",
];

/// The same of its SCSI device, behind a "sd 0:0:0:0: ", and of ib_srp, behind a "scsi host0: ".
const OFFLINE_LINE: &str = "rejecting I/O to offline device";
const LATE_COMMAND: &str = " timing out command, waited ";
const SRP_ATTEMPT: &str = "reconnect attempt ";

/// Harmless, whatever the case does: what a kernel under emulation says of a busy machine, nvme_rdma of its parameter
/// `register_always=N`, nbd of being told to detach, and sd of the unit attentions of a new nexus (SAM-5 §5.14) and of reservations (SPC-4 §5.13). ib_srpt knows
/// no logout (interop/README.md), device-mapper of its kernel's settings, LIO not all of iSER's keys, which it answers with NotUnderstood, as it must.
const HARMLESS_LINES: &[&str] = &[
    "hrtimer: interrupt took",
    "clocksource:",
    "perf: interrupt took too long",
    "enabling unsafe global rkey",
    "block nbd0: shutting down sockets",
    ": Power-on or device reset occurred",
    ": Parameters changed",
    "ib_srpt Not yet implemented: SRP_I_LOGOUT",
    "device-mapper: core: CONFIG_IMA_DISABLE_HTABLE is disabled.",
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

/// What nvmet and ib_iser say over siw of a queue that was lost while they sent: events of siw's that they have no use for; and ib_iser
/// of a target that is not there yet.
const LOST_QUEUE_LINES: &[&str] = &[
    "nvmet_rdma: received IB QP event: send queue drained (5)",
    "nvmet_rdma: received IB QP event: QP fatal error (1)",
    "iser: iser_qp_event_callback: qp event send queue drained (5)",
    "iser: iser_qp_event_callback: qp event QP fatal error (1)",
    "iser: iser_qp_event_callback: qp event QP request error (2)",
    "iser: iser_route_handler: failure connecting: -111",
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
    if case.loses_paths && of_lost_path(line) {
        return false;
    }
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

/// Whether it is one of the lines that belong to a lost path of several.
fn of_lost_path(line: &str) -> bool {
    let text = line.split_once("] ").map_or(line, |(_, text)| text);
    if LOST_PATH_LINES.iter().any(|known| text.starts_with(known)) {
        return true;
    }
    if let Some(rest) = text.strip_prefix("device-mapper: multipath: ") {
        return rest
            .split_once(": ")
            .is_some_and(|(_, said)| PATH_EVENTS.iter().any(|k| said.starts_with(k)));
    }
    match text.split_once(": ") {
        Some((device, said)) if device.starts_with("sd ") => {
            said == OFFLINE_LINE || said.contains(LATE_COMMAND)
        }
        Some((device, said)) => device.starts_with("scsi host") && said.starts_with(SRP_ATTEMPT),
        None => false,
    }
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
    fn a_lost_path_may_fail_and_the_map_may_not() {
        let case = Case { loses_paths: true, ..Case::new("case", "", |_| Ok(())) };
        let lost = [
            "kern  :warn  : [  150.7] device-mapper: multipath: 253:0: Failing path 8:16.",
            "kern  :err   : [   88.5] I/O error, dev sda, sector 59606 op 0x1:(WRITE) flags 0xca00 phys_seg 3 prio class 2",
            "kern  :err   : [   88.5] sd 0:0:0:0: rejecting I/O to offline device",
            "kern  :err   : [  972.5] sd 0:0:0:0: [sda] tag#51 timing out command, waited 15s",
            "kern  :err   : [  624.6] scsi host0: reconnect attempt 1 failed (-34)",
        ];
        for line in lost {
            assert!(!bad(line, &case), "{line}");
            assert!(bad(line, &Case { loses_paths: false, ..case.clone() }), "{line}");
        }
        for line in [
            "kern  :err   : [   88.5] I/O error, dev dm-0, sector 59606 op 0x1:(WRITE) flags 0xca00 phys_seg 3 prio class 2",
            "kern  :err   : [   88.5] Buffer I/O error on dev dm-0, logical block 7, async page read",
            "kern  :err   : [   88.5] device-mapper: multipath: 253:0: something else",
        ] {
            assert!(bad(line, &case), "{line}");
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
