//! Mode pages: read-write error recovery (01h), caching (08h), control (0Ah), informational exceptions (1Ch).
//! SPC-4 §6.11 to §6.14 and §7.5, SBC-3 §6.4.
//!
//! Values are made from a few flags when they are asked for. Changeable are WCE, D_SENSE, SWP and TAS; a MODE SELECT that
//! changes anything else is refused with the byte where it differs, and one that is refused changes nothing.
//! What this does not do: saved pages (PS is 0 and SP is refused), subpages other than 00h, block descriptors that
//! change the block size.

use crate::bytes::{put, u8_at, u16_at, u32_at, u64_at};
use crate::cdb::Size;
use crate::sense::{Asc, Sense};

const ERROR_RECOVERY: u8 = 0x01;
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const EXCEPTIONS: u8 = 0x1c;
/// All pages.
const ALL: u8 = 0x3f;
const PAGES: [u8; 4] = [ERROR_RECOVERY, CACHING, CONTROL, EXCEPTIONS];

/// Write protected, in the device-specific parameter (SBC-3 table 187).
const WP: u8 = 0x80;
/// DPO and FUA are supported.
const DPOFUA: u8 = 0x10;

const WCE: u8 = 0x04;
const D_SENSE: u8 = 0x04;
const SWP: u8 = 0x08;
const TAS: u8 = 0x40;

/// Which values MODE SENSE asks for. SPC-4 table 181.
const CURRENT: u8 = 0;
const CHANGEABLE: u8 = 1;
const DEFAULT: u8 = 2;

/// What mode pages control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModeFlags {
    /// Write-back cache enabled: completed writes may be lost in a power failure.
    pub(crate) wce: bool,
    /// Sense data in descriptor format.
    pub(crate) d_sense: bool,
    /// Software write protect.
    pub(crate) swp: bool,
    /// TASK ABORTED status for tasks that another nexus aborted.
    pub(crate) tas: bool,
}

/// What the pages say besides the flags.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModeContext {
    pub(crate) flags: ModeFlags,
    /// The values at power on.
    pub(crate) defaults: ModeFlags,
    /// The medium cannot be written.
    pub(crate) write_protected: bool,
    /// There is a write cache that can be turned on and off.
    pub(crate) has_cache: bool,
    pub(crate) blocks: u64,
    pub(crate) block_size: u32,
}

impl ModeContext {
    /// Mode parameters for MODE SENSE, whole.
    pub(crate) fn sense(&self, request: &SenseRequest) -> Result<Vec<u8>, Sense> {
        let SenseRequest { size, llbaa, dbd, control, page, subpage } = *request;
        if control > DEFAULT {
            return Err(Sense::illegal(Asc::SAVING_PARAMETERS_NOT_SUPPORTED).at(true, 2, Some(7)));
        }
        if page != ALL && !PAGES.contains(&page) {
            return Err(Sense::cdb_bit(2, 5));
        }
        if subpage != 0 && !(page == ALL && subpage == 0xff) {
            return Err(Sense::cdb_field(3));
        }
        let descriptor = if dbd { Vec::new() } else { self.block_descriptor(llbaa) };
        let pages = PAGES.into_iter().filter(|&code| page == ALL || page == code);
        let pages: Vec<u8> = pages.flat_map(|code| self.page(code, control)).collect();
        let device = if self.write_protected || self.flags.swp { WP } else { 0 } | DPOFUA;
        let rest = descriptor.len() + pages.len();
        let mut data = if size == Size::Six {
            vec![(3 + rest) as u8, 0, device, descriptor.len() as u8]
        } else {
            let mut head = vec![0; 8];
            put(&mut head, 0, ((6 + rest) as u16).to_be_bytes());
            put(&mut head, 3, [device, llbaa.into()]);
            put(&mut head, 6, (descriptor.len() as u16).to_be_bytes());
            head
        };
        data.extend_from_slice(&descriptor);
        data.extend_from_slice(&pages);
        Ok(data)
    }

    /// SBC-3 §6.4.2: short, or long with LLBAA. A count that does not fit is all ones.
    fn block_descriptor(&self, long: bool) -> Vec<u8> {
        if long {
            let mut descriptor = vec![0; 16];
            put(&mut descriptor, 0, self.blocks.to_be_bytes());
            put(&mut descriptor, 12, self.block_size.to_be_bytes());
            return descriptor;
        }
        let mut descriptor = vec![0; 8];
        put(&mut descriptor, 0, u32::try_from(self.blocks).unwrap_or(u32::MAX).to_be_bytes());
        put(&mut descriptor, 4, (self.block_size & 0xff_ffff).to_be_bytes());
        descriptor
    }

    /// One page with its header.
    fn page(&self, code: u8, control: u8) -> Vec<u8> {
        let flags = if control == DEFAULT { self.defaults } else { self.flags };
        let changeable = control == CHANGEABLE;
        // In the changeable form a bit is 1 if it may be changed, and everything else is 0.
        let flag = |value: bool, mask: u8, may_change: bool| {
            if if changeable { may_change } else { value } { mask } else { 0 }
        };
        let len = if matches!(code, CACHING) { 20 } else { 12 };
        let mut page = vec![0; len];
        put(&mut page, 0, [code, (len - 2) as u8]);
        match code {
            CACHING => page[2] = flag(flags.wce, WCE, self.has_cache),
            CONTROL => {
                page[2] = flag(flags.d_sense, D_SENSE, true);
                page[4] = flag(flags.swp, SWP, true);
                page[5] = flag(flags.tas, TAS, true);
                if !changeable {
                    // Unrestricted reordering; no limit for how long BUSY may last.
                    page[3] = 0x10;
                    put(&mut page, 8, u16::MAX.to_be_bytes());
                }
            }
            _ => {}
        }
        page
    }

    /// Judges a parameter list and gives the flags that it asks for.
    pub(crate) fn select(
        &self,
        size: Size,
        page_format: bool,
        save: bool,
        list: &[u8],
    ) -> Result<ModeFlags, Sense> {
        if save {
            return Err(Sense::cdb_bit(1, 0));
        }
        // SPC-4 §6.9: PF 0 means vendor-specific pages, of which there are none.
        if !page_format && !list.is_empty() {
            return Err(Sense::cdb_bit(1, 4));
        }
        if list.is_empty() {
            return Ok(self.flags);
        }
        let (head, descriptor_len, long) = if size == Size::Six {
            (4, usize::from(u8_at(list, 3)), false)
        } else {
            (8, usize::from(u16_at(list, 6)), u8_at(list, 4) & 1 != 0)
        };
        if list.len() < head + descriptor_len {
            return Err(Sense::list_length());
        }
        self.check_descriptor(&list[head..head + descriptor_len], head, long)?;
        let mut flags = self.flags;
        let mut at = head + descriptor_len;
        while at < list.len() {
            at += self.select_page(list, at, &mut flags)?;
        }
        Ok(flags)
    }

    /// A block descriptor may repeat what is there; a count of 0, or all ones, means the same (SBC-3 §6.4.2.1).
    fn check_descriptor(&self, descriptor: &[u8], head: usize, long: bool) -> Result<(), Sense> {
        let at = |byte: usize| Sense::parameter((head + byte) as u16);
        let (blocks, size, size_at) = match (descriptor.len(), long) {
            (0, _) => return Ok(()),
            (8, false) => {
                let blocks = u32_at(descriptor, 0);
                let blocks = if blocks == u32::MAX { self.blocks } else { blocks.into() };
                (blocks, u32_at(descriptor, 4) & 0xff_ffff, 5)
            }
            (16, true) => (u64_at(descriptor, 0), u32_at(descriptor, 12), 12),
            _ => return Err(Sense::parameter(if head == 4 { 3 } else { 6 })),
        };
        if blocks != 0 && blocks != u64::MAX && blocks != self.blocks {
            return Err(at(0));
        }
        if size != self.block_size { Err(at(size_at)) } else { Ok(()) }
    }

    /// Judges the page at `at`; gives its length.
    fn select_page(&self, list: &[u8], at: usize, flags: &mut ModeFlags) -> Result<usize, Sense> {
        let code = u8_at(list, at) & 0x3f;
        // SPF: subpage format. No page here has subpages.
        if u8_at(list, at) & 0x40 != 0 || !PAGES.contains(&code) {
            return Err(Sense::parameter(at as u16));
        }
        let (current, changeable) = (self.page(code, CURRENT), self.page(code, CHANGEABLE));
        if usize::from(u8_at(list, at + 1)) + 2 != current.len() {
            return Err(Sense::parameter(at as u16 + 1));
        }
        let asked = list.get(at..at + current.len()).ok_or(Sense::list_length())?;
        let differs = |&byte: &usize| (asked[byte] ^ current[byte]) & !changeable[byte] != 0;
        if let Some(byte) = (2..current.len()).find(differs) {
            return Err(Sense::parameter((at + byte) as u16));
        }
        match code {
            CACHING => flags.wce = asked[2] & WCE != 0,
            CONTROL => {
                flags.d_sense = asked[2] & D_SENSE != 0;
                flags.swp = asked[4] & SWP != 0;
                flags.tas = asked[5] & TAS != 0;
            }
            _ => {}
        }
        Ok(current.len())
    }
}

/// What MODE SENSE asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SenseRequest {
    pub(crate) size: Size,
    pub(crate) llbaa: bool,
    pub(crate) dbd: bool,
    pub(crate) control: u8,
    pub(crate) page: u8,
    pub(crate) subpage: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: ModeFlags = ModeFlags { wce: true, d_sense: false, swp: false, tas: false };
    const CONTEXT: ModeContext = ModeContext {
        flags: FLAGS,
        defaults: FLAGS,
        write_protected: false,
        has_cache: true,
        blocks: 0x1_0000,
        block_size: 512,
    };

    fn request(page: u8, control: u8) -> SenseRequest {
        SenseRequest { size: Size::Six, llbaa: false, dbd: true, control, page, subpage: 0 }
    }

    #[test]
    fn layouts_of_the_standards() {
        let data = CONTEXT.sense(&SenseRequest { dbd: false, ..request(CACHING, CURRENT) }).expect("known");
        assert_eq!(data[..4], [31, 0, DPOFUA, 8]);
        assert_eq!(data[4..12], [0, 1, 0, 0, 0, 0, 2, 0]);
        assert_eq!(data[12..15], [8, 18, 4]);
        let ten = SenseRequest { size: Size::Ten, llbaa: true, dbd: false, ..request(ALL, CURRENT) };
        let data = CONTEXT.sense(&ten).expect("known");
        assert_eq!(data.len(), 8 + 16 + 12 + 20 + 12 + 12);
        assert_eq!(data[..8], [0, 78, 0, DPOFUA, 1, 0, 0, 16]);
    }

    #[test]
    fn changeable_values_are_a_mask() {
        let data = CONTEXT.sense(&request(CONTROL, CHANGEABLE)).expect("known");
        assert_eq!(data[4..], [0x0a, 10, D_SENSE, 0, SWP, TAS, 0, 0, 0, 0, 0, 0]);
        let fixed = ModeContext { has_cache: false, ..CONTEXT };
        assert_eq!(fixed.sense(&request(CACHING, CHANGEABLE)).expect("known")[6], 0);
    }

    #[test]
    fn unknown_pages_and_saved_values_are_refused() {
        assert_eq!(CONTEXT.sense(&request(0x02, CURRENT)), Err(Sense::cdb_bit(2, 5)));
        let saved = CONTEXT.sense(&request(CONTROL, 3)).expect_err("none are saved");
        assert_eq!(saved.asc, Asc::SAVING_PARAMETERS_NOT_SUPPORTED);
        assert_eq!(
            CONTEXT.sense(&SenseRequest { subpage: 1, ..request(CONTROL, CURRENT) }),
            Err(Sense::cdb_field(3))
        );
    }

    #[test]
    fn select_changes_what_may_change_and_nothing_else() {
        let mut list = CONTEXT.sense(&request(CONTROL, CURRENT)).expect("known");
        (list[0], list[2]) = (0, 0);
        list[8] |= SWP;
        let flags = CONTEXT.select(Size::Six, true, false, &list).expect("changeable");
        assert_eq!(flags, ModeFlags { swp: true, ..FLAGS });
        list[7] = 0;
        assert_eq!(CONTEXT.select(Size::Six, true, false, &list), Err(Sense::parameter(7)));
        assert_eq!(CONTEXT.select(Size::Six, true, true, &list), Err(Sense::cdb_bit(1, 0)));
        assert_eq!(CONTEXT.select(Size::Six, false, false, &list), Err(Sense::cdb_bit(1, 4)));
        assert_eq!(CONTEXT.select(Size::Six, true, false, &[]), Ok(FLAGS));
        assert_eq!(CONTEXT.select(Size::Six, true, false, &list[..9]), Err(Sense::list_length()));
        assert_eq!(
            CONTEXT.select(Size::Six, true, false, &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 16, 0]),
            Err(Sense::parameter(9))
        );
    }
}
