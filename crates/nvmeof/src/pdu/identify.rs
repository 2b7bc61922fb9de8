//! Identify data structures. NVMe Base 2.0 §5.17.2, NVM Command Set 1.0 §4.1.5.
//!
//! Power state descriptors beyond the first, and fields of features that no controller here or in the captures has, are
//! left out of the structures and read as zero.

/// CNS: Identify Namespace.
pub const CNS_NAMESPACE: u8 = 0x00;
/// CNS: Identify Controller.
pub const CNS_CONTROLLER: u8 = 0x01;
/// CNS: active namespace list.
pub const CNS_ACTIVE_NAMESPACES: u8 = 0x02;
/// CNS: namespace identification descriptors.
pub const CNS_NAMESPACE_DESCRIPTORS: u8 = 0x03;
/// CNS: I/O command set specific namespace.
pub const CNS_CSI_NAMESPACE: u8 = 0x05;
/// CNS: I/O command set specific controller.
pub const CNS_CSI_CONTROLLER: u8 = 0x06;
/// CNS: active namespace list of a command set.
pub const CNS_CSI_ACTIVE_NAMESPACES: u8 = 0x07;
/// CNS: I/O command set structure.
pub const CNS_COMMAND_SETS: u8 = 0x1c;
/// CNS: allocated namespace list.
pub const CNS_ALLOCATED_NAMESPACES: u8 = 0x10;
/// CNS: Identify Namespace of an allocated namespace.
pub const CNS_ALLOCATED_NAMESPACE: u8 = 0x11;
/// CNS: controllers attached to a namespace.
pub const CNS_ATTACHED_CONTROLLERS: u8 = 0x12;
/// CNS: controllers of the subsystem.
pub const CNS_CONTROLLERS: u8 = 0x13;

/// Every Identify structure's length in bytes.
pub const IDENTIFY_LEN: usize = 4096;

layout! {
    /// Identify Controller.
    pub struct IdentifyController[4096] {
        /// PCI vendor.
        vid: u16 = 0,
        /// PCI subsystem vendor.
        ssvid: u16 = 2,
        /// Serial number, ASCII, space padded.
        sn: [u8; 20] = 4,
        /// Model number, ASCII, space padded.
        mn: [u8; 40] = 24,
        /// Firmware revision, ASCII, space padded.
        fr: [u8; 8] = 64,
        /// Recommended arbitration burst, a power of two.
        rab: u8 = 72,
        /// IEEE OUI.
        ieee: [u8; 3] = 73,
        /// Multi-path and sharing capabilities: bit 0 ports, bit 1 controllers, bit 3 ANA.
        cmic: u8 = 76,
        /// Maximum data transfer size, a power of two of pages; 0 is no limit.
        mdts: u8 = 77,
        /// Controller identifier.
        cntlid: u16 = 78,
        /// Version.
        ver: u32 = 80,
        /// RTD3 resume latency.
        rtd3r: u32 = 84,
        /// RTD3 entry latency.
        rtd3e: u32 = 88,
        /// Optional asynchronous events supported.
        oaes: u32 = 92,
        /// Controller attributes.
        ctratt: u32 = 96,
        /// Controller type: 1 I/O, 2 discovery.
        cntrltype: u8 = 111,
        /// Optional admin commands supported.
        oacs: u16 = 256,
        /// Abort command limit, 0-based.
        acl: u8 = 258,
        /// Asynchronous event request limit, 0-based.
        aerl: u8 = 259,
        /// Firmware updates.
        frmw: u8 = 260,
        /// Log page attributes.
        lpa: u8 = 261,
        /// Error log page entries, 0-based.
        elpe: u8 = 262,
        /// Number of power states, 0-based.
        npss: u8 = 263,
        /// Keep alive granularity, in 100 ms.
        kas: u16 = 320,
        /// ANA transition time.
        anatt: u8 = 342,
        /// ANA capabilities.
        anacap: u8 = 343,
        /// Largest ANA group identifier.
        anagrpmax: u32 = 344,
        /// Number of ANA groups.
        nanagrpid: u32 = 348,
        /// Submission queue entry sizes.
        sqes: u8 = 512,
        /// Completion queue entry sizes.
        cqes: u8 = 513,
        /// Most outstanding commands.
        maxcmd: u16 = 514,
        /// Largest namespace identifier.
        nn: u32 = 516,
        /// Optional NVM commands supported: bit 0 Compare, 2 Dataset Management, 3 Write Zeroes.
        oncs: u16 = 520,
        /// Fused operations.
        fuses: u16 = 522,
        /// Format NVM attributes.
        fna: u8 = 524,
        /// Volatile write cache: bit 0 present, bits 2:1 Flush to all namespaces.
        vwc: u8 = 525,
        /// Atomic write unit normal, 0-based.
        awun: u16 = 526,
        /// Atomic write unit power fail, 0-based.
        awupf: u16 = 528,
        /// Namespace write protection capabilities.
        nwpc: u8 = 531,
        /// Atomic compare and write unit.
        acwu: u16 = 532,
        /// SGL support: bits 1:0, keyed bit 2, address as offset bit 20.
        sgls: u32 = 536,
        /// Most namespaces allowed.
        mnan: u32 = 540,
        /// Subsystem NQN.
        subnqn: [u8; 256] = 768,
        /// I/O queue command capsule supported size, in 16 bytes.
        ioccsz: u32 = 1792,
        /// I/O queue response capsule supported size, in 16 bytes.
        iorcsz: u32 = 1796,
        /// In-capsule data offset, in 16 bytes.
        icdoff: u16 = 1800,
        /// Fabrics controller attributes: bit 0 static model.
        fcatt: u8 = 1802,
        /// Most SGL data block descriptors in a capsule.
        msdbd: u8 = 1803,
        /// Optional fabrics commands.
        ofcs: u16 = 1804,
        /// Power state 0: maximum power.
        psd0_mp: u16 = 2048,
        /// Power state 0: entry latency in microseconds.
        psd0_enlat: u32 = 2052,
        /// Power state 0: exit latency in microseconds.
        psd0_exlat: u32 = 2056,
    }
}

layout! {
    /// Identify Namespace, NVM command set.
    pub struct IdentifyNamespace[4096] {
        /// Size in logical blocks.
        nsze: u64 = 0,
        /// Capacity in logical blocks.
        ncap: u64 = 8,
        /// Utilisation in logical blocks.
        nuse: u64 = 16,
        /// Features: bit 4 preferred sizes are given.
        nsfeat: u8 = 24,
        /// Number of LBA formats, 0-based.
        nlbaf: u8 = 25,
        /// Formatted LBA size.
        flbas: u8 = 26,
        /// Metadata capabilities.
        mc: u8 = 27,
        /// Protection capabilities.
        dpc: u8 = 28,
        /// Protection settings.
        dps: u8 = 29,
        /// Sharing: bit 0 shared.
        nmic: u8 = 30,
        /// Reservation capabilities.
        rescap: u8 = 31,
        /// Format progress.
        fpi: u8 = 32,
        /// Deallocation: bits 2:0 what is read (1: zeroes), bit 3 Write Zeroes deallocates.
        dlfeat: u8 = 33,
        /// Atomic write unit normal.
        nawun: u16 = 34,
        /// Atomic write unit power fail.
        nawupf: u16 = 36,
        /// Atomic compare and write unit.
        nacwu: u16 = 38,
        /// Optimal I/O boundary in logical blocks.
        noiob: u16 = 46,
        /// Capacity in bytes.
        nvmcap: u128 = 48,
        /// Preferred write granularity, 0-based blocks.
        npwg: u16 = 64,
        /// Preferred write alignment, 0-based blocks.
        npwa: u16 = 66,
        /// Preferred deallocate granularity, 0-based blocks.
        npdg: u16 = 68,
        /// Preferred deallocate alignment, 0-based blocks.
        npda: u16 = 70,
        /// Optimal write size, 0-based blocks.
        nows: u16 = 72,
        /// ANA group.
        anagrpid: u32 = 92,
        /// Attributes: bit 0 write protected.
        nsattr: u8 = 99,
        /// NVM set.
        nvmsetid: u16 = 100,
        /// Endurance group.
        endgid: u16 = 102,
        /// Globally unique identifier.
        nguid: [u8; 16] = 104,
        /// IEEE extended unique identifier.
        eui64: [u8; 8] = 120,
        /// LBA formats: metadata size (15:0), log2 of the data size (23:16), relative performance (25:24).
        lbaf: [u32; 16] = 128,
    }
}

impl IdentifyNamespace {
    /// Bytes in a logical block of the format in use; `None` if the format makes no sense.
    pub fn block_size(&self) -> Option<u32> {
        let format = self.lbaf[usize::from(self.flbas & 0xf)];
        1u32.checked_shl(format >> 16 & 0xff).filter(|size| (512..=1 << 20).contains(size))
    }

    /// Bytes of metadata with each logical block.
    pub fn metadata_size(&self) -> u16 {
        self.lbaf[usize::from(self.flbas & 0xf)] as u16
    }
}

/// Namespace identification descriptor types. NVMe Base 2.0 §5.17.2.3.
pub const NIDT_EUI64: u8 = 1;
/// NGUID.
pub const NIDT_NGUID: u8 = 2;
/// UUID.
pub const NIDT_UUID: u8 = 3;
/// Command set identifier.
pub const NIDT_CSI: u8 = 4;

/// Writes namespace identification descriptors; the rest of the structure is zero.
pub fn emit_descriptors(descriptors: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(IDENTIFY_LEN);
    for (kind, value) in descriptors {
        bytes.extend_from_slice(&[*kind, value.len() as u8, 0, 0]);
        bytes.extend_from_slice(value);
    }
    bytes.resize(IDENTIFY_LEN, 0);
    bytes
}

/// Reads namespace identification descriptors as (type, value), up to the terminating zero or a broken one.
pub fn parse_descriptors(bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while let [kind, len, _, _, tail @ ..] = rest {
        let len = usize::from(*len);
        if *kind == 0 || len == 0 || len > tail.len() {
            break;
        }
        found.push((*kind, &tail[..len]));
        rest = &tail[len..];
    }
    found
}

/// ASCII text, space padded. NVMe Base 2.0 §1.4.2.
pub fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = if from.is_ascii_graphic() { from } else { b' ' };
    }
    field
}
