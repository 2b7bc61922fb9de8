//! Both tables as snapshots, and refusals that name what is wrong.

use everywire_wire::{Mtu, PKey, Psn, QKey, Qpn};

use super::*;
use crate::ib::attr::{QpCaps, QpConfig};
use crate::ib::env::CqId;
use crate::ib::path::Path;
use crate::memory::PdId;

const TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

fn row(ty: QpType, state: QpState) -> String {
    let modifies = QpState::ALL.map(|to| (StateEvent::Modify(to), to.name()));
    let errors = [(StateEvent::SendError, "send error"), (StateEvent::ReceiveError, "receive error")];
    let cells: Vec<String> = modifies
        .into_iter()
        .chain(errors)
        .filter_map(|(event, name)| next_state(ty, state, event).map(|to| (name, to)))
        .map(|(name, to)| if name == to.name() { name.to_string() } else { format!("{name}>{}", to.name()) })
        .collect();
    format!("{} {}: {}", ty.name(), state.name(), cells.join(" "))
}

/// IBTA vol. 1 figure 124 and §10.3.1: what a modify may reach, and where errors lead.
#[test]
fn every_state_and_event() {
    let table: Vec<String> = TYPES.iter().flat_map(|ty| QpState::ALL.map(|state| row(*ty, state))).collect();
    assert_eq!(
        table,
        [
            "RC RESET: RESET INIT ERR",
            "RC INIT: RESET INIT RTR ERR",
            "RC RTR: RESET RTS ERR receive error>ERR",
            "RC RTS: RESET RTS SQD ERR send error>ERR receive error>ERR",
            "RC SQD: RESET RTS SQD ERR send error>ERR receive error>ERR",
            "RC SQE: RESET ERR receive error>ERR",
            "RC ERR: RESET ERR",
            "UC RESET: RESET INIT ERR",
            "UC INIT: RESET INIT RTR ERR",
            "UC RTR: RESET RTS ERR receive error>ERR",
            "UC RTS: RESET RTS SQD ERR send error>SQE receive error>ERR",
            "UC SQD: RESET RTS SQD ERR send error>SQE receive error>ERR",
            "UC SQE: RESET RTS ERR receive error>ERR",
            "UC ERR: RESET ERR",
            "UD RESET: RESET INIT ERR",
            "UD INIT: RESET INIT RTR ERR",
            "UD RTR: RESET RTS ERR receive error>ERR",
            "UD RTS: RESET RTS SQD ERR send error>SQE receive error>ERR",
            "UD SQD: RESET RTS SQD ERR send error>SQE receive error>ERR",
            "UD SQE: RESET RTS ERR receive error>ERR",
            "UD ERR: RESET ERR",
        ]
    );
}

/// The masks of Linux's `qp_state_table` (drivers/infiniband/core/verbs.c, observable through ibv_modify_qp), as numbers of
/// `ibv_qp_attr_mask` without IBV_QP_STATE.
#[test]
fn attributes_of_every_transition() {
    use QpState::*;
    type Masks = (u32, u32);
    let expect: [(QpState, QpState, [Masks; 3]); 9] = [
        // RC, UC, UD: (required, optional)
        (Reset, Init, [(0x38, 0), (0x38, 0), (0x70, 0)]),
        (Init, Init, [(0, 0x38), (0, 0x38), (0, 0x70)]),
        (Init, Rtr, [(0x12_9180 | 0x10_0000, 0x4018), (0x10_1180, 0x4018), (0, 0x50)]),
        (Rtr, Rts, [(0x1_2e00, 0x4_c00a), (0x1_0000, 0x4_400a), (0x1_0000, 0x42)]),
        (Rts, Rts, [(0, 0x4_c00a), (0, 0x4_400a), (0, 0x42)]),
        (Rts, Sqd, [(0, 4), (0, 4), (0, 4)]),
        (Sqd, Rts, [(0, 0x4_c00a), (0, 0x4_400a), (0, 0x42)]),
        (Sqd, Sqd, [(0, 0x6_eeb8), (0, 0x4_4098), (0, 0x50)]),
        (Sqe, Rts, [(0, 0x2), (0, 0xa), (0, 0x42)]),
    ];
    for (from, to, masks) in expect {
        for (ty, (required, optional)) in TYPES.into_iter().zip(masks) {
            if from == Sqe && ty == QpType::Rc {
                continue;
            }
            let (r, o) = attributes(ty, from, to);
            assert_eq!(
                (r.bits(), o.bits()),
                (required, optional),
                "{ty:?} {from:?} {to:?}: {} / {}",
                r.names(),
                o.names()
            );
        }
    }
}

fn config(ty: QpType) -> QpConfig {
    QpConfig {
        ty,
        qpn: Qpn::new(5),
        pd: PdId(1),
        send_cq: CqId(0),
        recv_cq: CqId(0),
        srq: None,
        caps: QpCaps::default(),
        sq_sig_all: false,
        pkey: PKey::DEFAULT,
        port_mtu: Mtu::M1024,
    }
}

fn init() -> QpAttr {
    QpAttr { pkey_index: Some(0), port: Some(1), access: Some(Access::empty()), ..QpAttr::to(QpState::Init) }
}

fn rtr() -> QpAttr {
    QpAttr {
        path: Some(Path::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 0xc000)),
        path_mtu: Some(Mtu::M1024),
        dest_qp: Some(Qpn::new(6)),
        rq_psn: Some(Psn::new(1)),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(12),
        ..QpAttr::to(QpState::Rtr)
    }
}

fn refusal(state: QpState, attr: &QpAttr) -> String {
    check_modify(&config(QpType::Rc), state, attr).unwrap_err().to_string()
}

#[test]
fn refusals_name_the_attribute() {
    use QpState::*;
    assert_eq!(check_modify(&config(QpType::Rc), Reset, &init()), Ok(Init));
    assert_eq!(check_modify(&config(QpType::Rc), Init, &rtr()), Ok(Rtr));
    let cases = [
        (
            Reset,
            QpAttr { port: None, pkey_index: None, ..init() },
            "RESET to INIT of a RC queue pair needs PKEY_INDEX, PORT",
        ),
        (Init, QpAttr { dest_qp: None, ..rtr() }, "INIT to RTR of a RC queue pair needs DEST_QPN"),
        (Init, QpAttr { path: None, ..rtr() }, "INIT to RTR of a RC queue pair needs AV"),
        (
            Init,
            QpAttr { sq_psn: Some(Psn::new(1)), qkey: Some(QKey(1)), ..rtr() },
            "INIT to RTR of a RC queue pair does not take QKEY, SQ_PSN",
        ),
        (Reset, QpAttr::to(Rtr), "RC queue pairs have no transition from RESET to RTR"),
        (Rts, QpAttr::to(Rtr), "RC queue pairs have no transition from RTS to RTR"),
        (Err, QpAttr::to(Init), "RC queue pairs have no transition from ERR to INIT"),
        (Init, QpAttr { cur_state: Some(Rtr), ..rtr() }, "the queue pair is in INIT, not in RTR"),
        (Reset, QpAttr { port: Some(2), ..init() }, "PORT = 2, but at most 1 is possible"),
        (Reset, QpAttr { pkey_index: Some(1), ..init() }, "PKEY_INDEX = 1, but at most 0 is possible"),
        (
            Init,
            QpAttr { path_mtu: Some(Mtu::M4096), ..rtr() },
            "PATH_MTU = 4096, but at most 1024 is possible",
        ),
        (Init, QpAttr { min_rnr_timer: Some(32), ..rtr() }, "MIN_RNR_TIMER = 32, but at most 31 is possible"),
        (
            Init,
            QpAttr { max_dest_rd_atomic: Some(129), ..rtr() },
            "MAX_DEST_RD_ATOMIC = 129, but at most 128 is possible",
        ),
        (
            Rts,
            QpAttr { path_mig_state: Some(PathMigState::Armed), ..QpAttr::to(Rts) },
            "path migration is not offered by this device",
        ),
    ];
    for (state, attr, text) in cases {
        assert_eq!(refusal(state, &attr), text);
    }
}
