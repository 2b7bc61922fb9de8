//! Runs every row on a pair, and reports: what passed, what failed, what was left out and why.
//!
//! Nothing is left out but by the table of wires, by a harness that says why it cannot do something, and, where packets
//! are lost, the errors of services that would not notice.

use std::collections::BTreeSet;

use everywire_verbs::rt::Rt;
use everywire_verbs::{AtomicCap, NodeType, QpType, WindowType, Wire, WireFeature};

use crate::check::{Verdict, ensure, same};
use crate::connecting::{ENDS, MAKINGS, SERVICES, end, making, multicast, peer_dies, service};
use crate::fault::{DATAGRAM_FAULTS, ROWS, Wrong, datagram_fault, fault};
use crate::link::{Bench, Ctx, REGION};
use crate::memory::{self, ENDINGS, REFUSED};
use crate::pair::{Pair, Plan};
use crate::posting::{POSTINGS, posting};
use crate::queues::{SCRIPTS, script};
use crate::report::{Group, Report};
use crate::transfer::{Kind, Lane, cases, pipeline, reads_beyond_depth};
use crate::wire::{Family, Row};

/// Failures of a group after which the rest of it is not run: each may cost all the patience there is.
const MOST_FAILURES: usize = 10;

const LOSSY: &str = "packets are lost on purpose, and this service would not notice (IBTA §9.8)";

/// Runs the suite once over a pair. The runtime must run on the thread that polls this future.
pub async fn run(pair: Pair, rt: Rt, plan: Plan) -> Report {
    let mut suite = Suite { report: Report::default() };
    let benches = Bench::new(&pair.a).and_then(|a| Bench::new(&pair.b).map(|b| (a, b)));
    let (a, b) = match benches {
        Ok(benches) => benches,
        Err(why) => {
            suite.report.failed(Group::Attributes, "the two ends", &why);
            return suite.report;
        }
    };
    let wire = Row::of(pair.wire());
    let ctx = Ctx { pair, rt, plan, wire, a, b };
    suite.all(&ctx).await;
    suite.report
}

struct Suite {
    report: Report,
}

impl Suite {
    async fn all(&mut self, ctx: &Ctx) {
        self.take(Group::Attributes, "device", attributes(ctx));
        for srq in [false, true] {
            self.operations(ctx, Group::Rc, QpType::Rc, srq).await;
            self.operations(ctx, Group::Uc, QpType::Uc, srq).await;
            self.operations(ctx, Group::Ud, QpType::Ud, srq).await;
            self.pipelines(ctx, srq).await;
        }
        self.memory(ctx).await;
        self.posting(ctx).await;
        self.errors(ctx).await;
        self.queues(ctx).await;
        self.connecting(ctx).await;
        self.last(ctx).await;
    }

    fn take(&mut self, group: Group, case: impl std::fmt::Display, verdict: Verdict) {
        match verdict {
            Ok(()) => self.report.passed(group),
            Err(why) => self.report.failed(group, case, &why),
        }
    }

    /// Whether so much of a group has failed that the rest would say nothing new.
    fn hopeless(&self, group: Group) -> bool {
        self.report.failed_in(group) >= MOST_FAILURES
    }

    async fn operations(&mut self, ctx: &Ctx, group: Group, ty: QpType, srq: bool) {
        let absent = service_lacks(ctx, ty);
        let mut lane = Lane::new(ty, srq);
        let mtu = match absent {
            Some(_) => ctx.wire.segment,
            None => match lane.mtu(ctx).await {
                Ok(mtu) => mtu,
                Err(why) => return self.report.failed(group, "the first link", &why),
            },
        };
        for (seed, case) in cases(ty, srq, mtu, ctx.plan.thin).into_iter().enumerate() {
            let segments = ctx.wire.one_read_segment.filter(|_| case.kind == Kind::Read && case.many());
            match absent.or_else(|| lacks(ctx, case.kind)).or(segments) {
                Some(why) => self.report.excluded(group, why),
                None if self.hopeless(group) => return,
                None => {
                    let verdict = lane.run(ctx, &case, seed as u64 + 1).await;
                    self.take(group, case, verdict);
                }
            }
        }
    }

    async fn pipelines(&mut self, ctx: &Ctx, srq: bool) {
        let sets: [&[Kind]; 5] = [
            &[Kind::WriteImm, Kind::Write, Kind::Send, Kind::Add],
            &[Kind::Send, Kind::Write, Kind::Read],
            &[Kind::Write, Kind::Read, Kind::Read, Kind::Send, Kind::Send],
            &[Kind::Send, Kind::SendImm, Kind::WriteImm, Kind::Write],
            &[Kind::Add, Kind::Write, Kind::Swap, Kind::Read, Kind::SendImm, Kind::NoSwap],
        ];
        for set in sets {
            let name = format!("{set:?}{}", if srq { " into an SRQ" } else { "" });
            match set.iter().find_map(|kind| lacks(ctx, *kind)) {
                Some(why) => self.report.excluded(Group::Pipeline, why),
                None => {
                    let verdict = pipeline(ctx, srq, set).await;
                    self.take(Group::Pipeline, name, verdict);
                }
            }
        }
        for depth in [1, 4, 16] {
            let verdict = reads_beyond_depth(ctx, depth).await;
            self.take(Group::Pipeline, format!("40 READs with {depth} in flight"), verdict);
        }
    }

    async fn memory(&mut self, ctx: &Ctx) {
        let group = Group::Memory;
        for row in memory::access_rows() {
            match lacks(ctx, row.kind) {
                Some(why) => self.report.excluded(group, why),
                None if self.hopeless(group) => return,
                None => {
                    let verdict = memory::access(ctx, &row).await;
                    self.take(group, row, verdict);
                }
            }
        }
        for &(via, ending) in ENDINGS {
            let verdict = memory::ending(ctx, via, ending).await;
            self.take(group, format!("{via:?} ends: {ending:?}"), verdict);
        }
        for &(what, clause) in REFUSED {
            let verdict = memory::refused(ctx, what).await;
            self.take(group, format!("{what:?} ({clause})"), verdict);
        }
        for ty in [WindowType::Type1, WindowType::Type2] {
            let verdict = memory::another_queue_pair(ctx, ty).await;
            self.take(group, format!("another queue pair's window, {ty:?}"), verdict);
        }
        for window in [false, true] {
            let verdict = memory::zero_based(ctx, window).await;
            self.take(group, format!("zero-based, window {window}"), verdict);
        }
        self.take(group, "a busy region", memory::busy_region(ctx).await);
        self.take(group, "order of invalidation", memory::invalidation_keeps_order(ctx).await);
    }

    async fn posting(&mut self, ctx: &Ctx) {
        for row in POSTINGS {
            match service_lacks(ctx, row.service()) {
                Some(why) => self.report.excluded(Group::Posting, why),
                None => {
                    let verdict = posting(ctx, row).await;
                    self.take(Group::Posting, format!("{row:?}"), verdict);
                }
            }
        }
    }

    async fn errors(&mut self, ctx: &Ctx) {
        for (group, ty) in [(Group::RcErrors, QpType::Rc), (Group::UcErrors, QpType::Uc)] {
            let unnoticed = (ctx.plan.lossy && ty != QpType::Rc).then_some(LOSSY);
            for row in ROWS {
                for kind in row.kinds_on(ty) {
                    let many = row.wrong == Wrong::SecondLocalKey && kind == Kind::Read;
                    let segments = ctx.wire.one_read_segment.filter(|_| many);
                    match service_lacks(ctx, ty).or_else(|| lacks(ctx, kind)).or(segments).or(unnoticed) {
                        Some(why) => self.report.excluded(group, why),
                        None if self.hopeless(group) => return,
                        None => {
                            let verdict = fault(ctx, row, kind, ty).await;
                            self.take(
                                group,
                                format!("{:?} with {kind:?} ({})", row.wrong, row.clause),
                                verdict,
                            );
                        }
                    }
                }
            }
        }
        for row in DATAGRAM_FAULTS {
            let unnoticed = ctx.plan.lossy.then_some(LOSSY);
            match service_lacks(ctx, QpType::Ud).or(unnoticed) {
                Some(why) => self.report.excluded(Group::UdErrors, why),
                None => {
                    let verdict = datagram_fault(ctx, row).await;
                    self.take(Group::UdErrors, format!("{row:?}"), verdict);
                }
            }
        }
    }

    async fn queues(&mut self, ctx: &Ctx) {
        for row in SCRIPTS {
            let verdict = script(ctx, row).await;
            self.take(Group::Queues, format!("{row:?}"), verdict);
        }
    }

    async fn connecting(&mut self, ctx: &Ctx) {
        for row in MAKINGS {
            let verdict = making(ctx, row).await;
            self.take(Group::Connecting, format!("{row:?}"), verdict);
        }
        for row in ENDS {
            let verdict = end(ctx, row).await;
            self.take(Group::Connecting, format!("end {row:?}"), verdict);
        }
        for row in SERVICES {
            match service_lacks(ctx, QpType::Ud) {
                Some(why) => self.report.excluded(Group::Connecting, why),
                None => {
                    let verdict = service(ctx, row).await;
                    self.take(Group::Connecting, format!("datagram service {row:?}"), verdict);
                }
            }
        }
    }

    /// Multicast, and what leaves nothing to run on.
    async fn last(&mut self, ctx: &Ctx) {
        match (wire_lacks(ctx, WireFeature::Multicast), ctx.pair.group) {
            (Some(why), _) | (None, Err(why)) => self.report.excluded(Group::Multicast, why),
            (None, Ok(group)) => {
                let verdict = multicast(ctx, group).await;
                self.take(Group::Multicast, group, verdict);
            }
        }
        self.take(Group::Attributes, "nothing left behind", left_behind(ctx).await);
        match &ctx.pair.kill {
            Err(why) => self.report.excluded(Group::Death, why),
            Ok(kill) => {
                let verdict = peer_dies(ctx, kill.as_ref()).await;
                self.take(Group::Death, "power off", verdict);
            }
        }
    }
}

fn wire_lacks(ctx: &Ctx, feature: WireFeature) -> Option<&'static str> {
    ctx.wire.lacks(feature, ctx.a.end.device.config().iwarp.rfc7306)
}

fn lacks(ctx: &Ctx, kind: Kind) -> Option<&'static str> {
    let lacks = kind.needs().and_then(|feature| wire_lacks(ctx, feature));
    lacks.or(ctx.wire.no_send_immediate.filter(|_| kind == Kind::SendImm))
}

fn service_lacks(ctx: &Ctx, ty: QpType) -> Option<&'static str> {
    match ty {
        QpType::Rc => None,
        QpType::Uc => wire_lacks(ctx, WireFeature::Uc),
        QpType::Ud => wire_lacks(ctx, WireFeature::Ud),
    }
}

/// What a device says of itself is what the table of wires says of it.
fn attributes(ctx: &Ctx) -> Verdict {
    for bench in [&ctx.a, &ctx.b] {
        let device = &bench.end.device;
        let said = device.attributes();
        same!(said.wire, ctx.wire.wire, "wire of {}", said.name);
        let node = if ctx.wire.family == Family::Iwarp { NodeType::Rnic } else { NodeType::Ca };
        same!(said.node_type, node, "node type");
        let has = |feature| wire_lacks(ctx, feature).is_none();
        let rows = [
            (WireFeature::Uc, said.uc),
            (WireFeature::Ud, said.ud),
            (WireFeature::Multicast, said.multicast),
            (WireFeature::Immediate, said.immediate),
            (WireFeature::Atomics, said.atomic_cap != AtomicCap::None),
        ];
        for (feature, offered) in rows {
            same!(offered, has(feature), "{} offered by {}", feature.name(), said.name);
        }
        ensure!(said.limits.max_mr_size >= REGION as u64, "max_mr_size {}", said.limits.max_mr_size);
        // IBTA §9.7.1.
        same!(device.port().max_msg_sz, 1 << 31, "longest message");
        let named = device.config().ip_names.contains(&bench.end.ip);
        ensure!(
            named || device.gids().iter().any(|gid| gid.ip == bench.end.ip),
            "{} has other addresses",
            said.name
        );
    }
    let wires: BTreeSet<&str> = crate::wire::ROWS.iter().map(|row| row.wire.name()).collect();
    ensure!(wires.len() == crate::wire::ROWS.len(), "a wire stands twice in the table");
    ensure!(wires.contains(Wire::RoceV2.name()), "RoCE v2 is missing");
    Ok(())
}

/// Every object that the cases made is gone: what is left is each end's domain and region.
async fn left_behind(ctx: &Ctx) -> Verdict {
    let ends = if ctx.a.end.device.same(&ctx.b.end.device) { 2 } else { 1 };
    let left = |bench: &Bench| {
        let usage = bench.end.device.usage();
        let left = (usage.pds, usage.mrs, usage.cqs, usage.qps, usage.srqs, usage.mws, usage.ahs);
        let device = bench.end.device.name();
        same!(left, (ends, ends, 0, 0, 0, 0, 0), "domains, regions and all else of {device}");
        Ok(())
    };
    ctx.eventually(|| left(&ctx.a).and_then(|()| left(&ctx.b))).await
}
