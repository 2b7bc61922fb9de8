//! Lengths that lie, and fields at the places that the standard gives them.

use super::*;
use everywire_scsi::target::Residual;

#[test]
fn lengths_are_held_against_the_bytes() {
    let response = Response { sense: vec![1; 18], code: Some(ResponseCode::FAILED), ..Response::default() };
    let bytes = response.emit();
    assert_eq!(Response::parse(&bytes), Ok(response));
    assert!(matches!(Response::parse(&bytes[..bytes.len() - 1]), Err(IuError::Short { .. })));
    let mut lies = bytes;
    lies[28..36].copy_from_slice(&[0xff; 8]);
    assert!(matches!(Response::parse(&lies), Err(IuError::Short { .. })));
    let mut command = Command {
        tag: 1,
        solicited: 0,
        lun: 0,
        attribute: 0,
        cdb: vec![0; 16],
        out: Buffer::None,
        into: Buffer::Indirect(Indirect {
            table: Descriptor { addr: 0, key: 0, len: 16 * (MAX_DESCRIPTORS as u32 + 1) },
            len: 0,
            inline: Vec::new(),
        }),
    };
    assert!(matches!(Command::parse(&command.emit()), Err(IuError::Table(_))));
    let inline = vec![Descriptor::default(); 3];
    command.into =
        Buffer::Indirect(Indirect { table: Descriptor { addr: 0, key: 0, len: 32 }, len: 0, inline });
    assert_eq!(Command::parse(&command.emit()), Err(IuError::Inline { inline: 3, all: 2 }));
    let mut bytes = Command { into: Buffer::None, ..command }.emit();
    bytes[5] = 0x03;
    bytes.resize(64, 0);
    assert_eq!(Command::parse(&bytes), Err(IuError::DataInFormat(3)), "immediate data only go to the target");
    bytes[5] = 0x70;
    assert_eq!(Command::parse(&bytes), Err(IuError::DataOutFormat(7)));
    assert_eq!(InitiatorIu::parse(&[0xc1; 64]), Err(IuError::Type(0xc1)), "a target's");
    assert_eq!(TargetIu::parse(&[]), Err(IuError::Short { iu: "IU", needed: 1, given: 0 }));
}

/// SRP_AER_REQ has 36 bytes before its sense data, packed (SR-01); SRP_RSP's flags are of table 23.
#[test]
fn where_fields_are() {
    let event =
        AsyncEvent { solicited: true, request_limit_delta: 2, tag: 3, lun: 4 << 48, sense: vec![9; 2] };
    let bytes = event.emit();
    assert_eq!(bytes.len(), 38);
    assert_eq!((bytes[0], bytes[7], bytes[15], bytes[21], bytes[31]), (0x82, 2, 3, 4, 2));
    let both = Response {
        out_residual: Residual::Over(1),
        in_residual: Residual::Under(2),
        sense: vec![0],
        ..Response::default()
    };
    assert_eq!(both.emit()[18], 0x02 | 0x04 | 0x20);
}

#[test]
fn both_forms_of_a_login() {
    let login = LoginRequest {
        tag: 1,
        it_iu_len: 300,
        formats: BufferFormats::OURS,
        multi_channel: MultiChannel::Multi,
        immediate_offset: Some(68),
        initiator: crate::PortId::new(2, 3),
        target: crate::PortId::new(4, 5),
    };
    let (standard, packed) = (login.emit(), login.emit_rdma_cm());
    assert_eq!((standard.len(), packed.len()), (64, RDMA_CM_LOGIN_LEN));
    assert_eq!(InitiatorIu::parse(&standard), Ok(InitiatorIu::Login(login)));
    assert_eq!(LoginRequest::parse_rdma_cm(&packed), Ok(login));
    assert_eq!((standard[26], packed[10]), (0x81, 0x81));
}
