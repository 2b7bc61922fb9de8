//! A direction's FPDUs, whole, with their markers.
//!
//! Read RFC 5044 §4.3 and §4.4 first. Markers are part of the FPDU that they stand in, or right before, and of what its CRC sums; so
//! an FPDU is cut out with them before they are taken out. It is put together again, length, pad, CRC and markers, and compared.

use everywire_wire::mpa::{CRC_LEN, Fpdu, LENGTH_LEN, MARKER_INTERVAL, Marker, crc32c, fpdu_len};

/// Bytes between two markers.
const BETWEEN: usize = MARKER_INTERVAL as usize - Marker::LEN;

/// An FPDU as it was in the stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Whole {
    /// Its DDP segment.
    pub ulpdu: Vec<u8>,
    /// Whether its CRC field holds the CRC of what is before it.
    pub good_crc: bool,
    /// Why it does not come out as it was read.
    pub error: Option<String>,
}

/// Bytes of a direction behind its start frame.
#[derive(Debug, Default)]
pub struct Fpdus {
    bytes: Vec<u8>,
    /// Where in the stream these begin; markers stand at multiples of 512.
    position: u64,
}

impl Fpdus {
    /// Takes more of the stream in.
    pub fn push(&mut self, fresh: &[u8]) {
        self.bytes.extend_from_slice(fresh);
    }

    /// The next FPDU, once it is whole.
    pub fn next(&mut self, markers: bool) -> Option<Whole> {
        let first = if markers && self.position.is_multiple_of(MARKER_INTERVAL) { Marker::LEN } else { 0 };
        let length = self.bytes.get(first..first + LENGTH_LEN)?;
        let plain = fpdu_len(usize::from(u16::from_be_bytes([length[0], length[1]])));
        let len = if markers { with_markers(self.position, plain) } else { plain };
        if self.bytes.len() < len {
            return None;
        }
        let rest = self.bytes.split_off(len);
        let raw = std::mem::replace(&mut self.bytes, rest);
        let position = self.position;
        self.position += len as u64;
        let (bytes, reserved) =
            if markers { without_markers(position, &raw) } else { (raw.clone(), Vec::new()) };
        let fpdu = match Fpdu::parse(&bytes) {
            Ok(fpdu) => fpdu,
            Err(e) => return Some(Whole { ulpdu: Vec::new(), good_crc: false, error: Some(e.to_string()) }),
        };
        let mut again = Vec::with_capacity(len);
        fpdu.emit(&mut again);
        if markers {
            again = marked(position, &again, &reserved);
        }
        let error = (again != raw).then(|| "the FPDU does not come out as it was read".to_owned());
        let good_crc = crc32c(&raw[..len - CRC_LEN]) == fpdu.crc;
        Some(Whole { ulpdu: fpdu.ulpdu.to_vec(), good_crc, error })
    }
}

/// Bytes of the stream that an FPDU of `len` takes from `position` on.
fn with_markers(position: u64, len: usize) -> usize {
    let free = (position.next_multiple_of(MARKER_INTERVAL) - position) as usize;
    let markers = if len > free { 1 + (len - free - 1) / BETWEEN } else { 0 };
    len + markers * Marker::LEN
}

/// The markers taken out, and what their reserved fields hold.
fn without_markers(mut position: u64, mut raw: &[u8]) -> (Vec<u8>, Vec<u16>) {
    let (mut bytes, mut reserved) = (Vec::with_capacity(raw.len()), Vec::new());
    while !raw.is_empty() {
        if position.is_multiple_of(MARKER_INTERVAL)
            && let Ok(marker) = Marker::parse(raw)
        {
            reserved.push(marker.reserved);
            raw = &raw[Marker::LEN..];
            position += Marker::LEN as u64;
        }
        let taken = raw.len().min((MARKER_INTERVAL - position % MARKER_INTERVAL) as usize);
        bytes.extend_from_slice(&raw[..taken]);
        raw = &raw[taken..];
        position += taken as u64;
    }
    (bytes, reserved)
}

/// The markers put in, each pointing back at the length field.
fn marked(mut position: u64, mut bytes: &[u8], reserved: &[u16]) -> Vec<u8> {
    let leads = position.is_multiple_of(MARKER_INTERVAL);
    let start = if leads { position + Marker::LEN as u64 } else { position };
    let (mut raw, mut reserved) = (Vec::new(), reserved.iter());
    while !bytes.is_empty() {
        if position.is_multiple_of(MARKER_INTERVAL) {
            let fpdu_ptr = position.saturating_sub(start) as u16;
            let mut marker = [0; Marker::LEN];
            Marker { reserved: reserved.next().copied().unwrap_or(0), fpdu_ptr }.emit(&mut marker);
            raw.extend_from_slice(&marker);
            position += Marker::LEN as u64;
        }
        let taken = bytes.len().min((MARKER_INTERVAL - position % MARKER_INTERVAL) as usize);
        raw.extend_from_slice(&bytes[..taken]);
        bytes = &bytes[taken..];
        position += taken as u64;
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5044 §4.3 by hand: a marker of zero leads; 508 bytes on, the second points 508 back at the length field; the CRC sums both.
    fn stream() -> Vec<u8> {
        let mut raw = vec![0, 0, 0, 0];
        raw.extend(600_u16.to_be_bytes());
        raw.extend((0..506_u32).map(|i| i as u8));
        raw.extend([0, 0, 0x01, 0xfc]);
        raw.extend((506..600_u32).map(|i| i as u8));
        raw.extend([0, 0]);
        let crc = crc32c(&raw);
        raw.extend(crc);
        raw
    }

    fn all(raw: &[u8], markers: bool) -> Vec<Whole> {
        let mut fpdus = Fpdus::default();
        raw.chunks(7)
            .flat_map(|piece| {
                fpdus.push(piece);
                std::iter::from_fn(|| fpdus.next(markers)).collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn markers_are_summed_and_taken_out() {
        let raw = stream();
        assert_eq!(raw.len(), 4 + 2 + 600 + 4 + 2 + 4);
        let ulpdu = (0..600_u32).map(|i| i as u8).collect();
        assert_eq!(all(&raw, true), [Whole { ulpdu, good_crc: true, error: None }]);
    }

    #[test]
    fn a_changed_byte_is_a_wrong_crc_and_a_marker_that_points_elsewhere_an_error() {
        let raw = stream();
        for (at, marker) in [(0, false), (2, true), (40, false), (515, true), (514, true), (560, false)] {
            let mut raw = raw.clone();
            raw[at] ^= 1;
            let found = all(&raw, true);
            assert_eq!(found.len(), 1, "byte {at}");
            assert!(!found[0].good_crc && found[0].error.is_some() == marker, "byte {at}: {found:?}");
        }
    }
}
