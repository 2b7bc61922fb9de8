//! Every information unit between Linux's ib_srp and ib_srpt parses, and comes out again bit for bit.

mod capture;

use capture::{From, What, messages};
use everywire_srp::PortId;
use everywire_srp::iu::{Buffer, InitiatorIu, LoginRequest, MultiChannel, RejectReason, TargetIu};

/// GUID of the target's port in the captures, and of the initiator's.
const TARGET: u64 = 0x5054_00ff_fe77_000b;
const INITIATOR: u64 = 0x5054_00ff_fe77_000c;

#[test]
fn everything_comes_out_as_it_went_in() {
    let (mut commands, mut responses, mut immediate, mut failed) = (0, 0, 0, 0);
    for (frame, from, what) in messages("srp") {
        match (from, what) {
            (From::Initiator, What::Request(private)) => {
                let login = LoginRequest::parse_rdma_cm(&private).expect("a login");
                assert_eq!(login.emit_rdma_cm(), private, "frame {frame}");
                assert_eq!(login.initiator, PortId::new(0, INITIATOR));
                assert_eq!(login.target, PortId::new(TARGET, TARGET));
                assert_eq!((login.it_iu_len, login.immediate_offset), (8260, Some(68)));
                assert_eq!(login.multi_channel, MultiChannel::Single);
            }
            (From::Target, What::Reply(private)) => {
                let Ok(TargetIu::Login(login)) = TargetIu::parse(&private) else { panic!("frame {frame}") };
                assert_eq!(login.emit(), private[..52], "frame {frame}");
                assert!(private[52..].iter().all(|&byte| byte == 0));
                assert_eq!((login.request_limit_delta, login.immediate), (128, true));
            }
            (From::Initiator, What::Send(bytes)) => {
                let iu = InitiatorIu::parse(&bytes).unwrap_or_else(|e| panic!("frame {frame}: {e}"));
                let emitted = iu.emit();
                assert_eq!(emitted, bytes[..emitted.len()], "frame {frame}");
                let InitiatorIu::Command(command) = iu else { panic!("frame {frame}: {iu:?}") };
                commands += 1;
                let end = match command.out {
                    Buffer::Immediate { len } => {
                        immediate += 1;
                        68 + len as usize
                    }
                    _ => emitted.len(),
                };
                assert_eq!(bytes.len(), end, "frame {frame}");
            }
            (From::Target, What::Send(bytes)) => {
                let iu = TargetIu::parse(&bytes).unwrap_or_else(|e| panic!("frame {frame}: {e}"));
                assert_eq!(iu.emit(), bytes, "frame {frame}");
                let TargetIu::Response(response) = iu else { panic!("frame {frame}: {iu:?}") };
                responses += 1;
                failed += usize::from(response.status != 0);
            }
            _ => {}
        }
    }
    assert_eq!(commands, responses);
    assert!(commands > 50 && immediate > 0 && failed > 0, "{commands} {immediate} {failed}");
}

/// SR-02.
#[test]
fn a_rejection_says_why() {
    let rejections: Vec<_> = messages("srp_login_rejected")
        .into_iter()
        .filter_map(|(_, _, what)| match what {
            What::Reject(private) => Some(private),
            _ => None,
        })
        .collect();
    let [private] = &rejections[..] else { panic!("{rejections:?}") };
    let Ok(TargetIu::Reject(reject)) = TargetIu::parse(private) else { panic!("no SRP_LOGIN_REJ") };
    assert_eq!(reject.emit(), private[..32]);
    assert_eq!(reject.reason, RejectReason::CHANNEL_LIMIT);
    assert!(reject.reason.to_string().contains("0x00010006"));
}
