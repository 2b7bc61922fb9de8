//! Widths and speeds of links, by the names that InfiniBand people call them.
//!
//! Read IBTA vol. 1 §14.2.5.6 (LinkWidthActive, LinkSpeedActive) and vol. 2 §5 (line codings) first. A rate says what a link
//! may carry, not whether the ports at its ends can.

use std::fmt;

pub use everywire_fabric::ib::{Speed, Width};
use serde::{Deserialize, Serialize};

/// Width and speed, written `4xQDR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LinkRate {
    /// Lanes.
    pub width: Width,
    /// Signalling.
    pub speed: Speed,
}

impl LinkRate {
    /// Four lanes of QDR.
    pub const X4_QDR: LinkRate = LinkRate { width: Width::X4, speed: Speed::Qdr };

    const WIDTHS: [(&str, Width); 4] =
        [("1x", Width::X1), ("4x", Width::X4), ("8x", Width::X8), ("12x", Width::X12)];

    const SPEEDS: [(&str, Speed); 6] = [
        ("SDR", Speed::Sdr),
        ("DDR", Speed::Ddr),
        ("QDR", Speed::Qdr),
        ("FDR", Speed::Fdr),
        ("EDR", Speed::Edr),
        ("HDR", Speed::Hdr),
    ];

    /// Data bits a second, after line coding.
    pub fn bits_per_second(self) -> u64 {
        self.width.lanes() * self.speed.data_bits()
    }

    /// Reads `4xQDR`, whatever the case.
    ///
    /// # Errors
    /// What forms there are.
    pub fn parse(text: &str) -> Result<LinkRate, String> {
        let lower = text.trim().to_ascii_lowercase();
        let found = LinkRate::WIDTHS.iter().find_map(|(prefix, width)| {
            let name = lower.strip_prefix(prefix)?.trim();
            let row = LinkRate::SPEEDS.iter().find(|row| row.0.eq_ignore_ascii_case(name))?;
            Some(LinkRate { width: *width, speed: row.1 })
        });
        found.ok_or_else(|| {
            format!(
                "{text:?} is no link rate: 1x, 4x, 8x or 12x of SDR, DDR, QDR, FDR, EDR or HDR, as in \"4xQDR\""
            )
        })
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = LinkRate::WIDTHS.iter().find(|row| row.1 == self.width).map_or("", |row| row.0);
        let speed = LinkRate::SPEEDS.iter().find(|row| row.1 == self.speed).map_or("", |row| row.0);
        write!(f, "{width}{speed}")
    }
}

impl From<LinkRate> for String {
    fn from(rate: LinkRate) -> String {
        rate.to_string()
    }
}

impl TryFrom<String> for LinkRate {
    type Error = String;

    fn try_from(text: String) -> Result<LinkRate, String> {
        LinkRate::parse(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_by_name() {
        for (text, bits) in
            [("1xSDR", 2_000_000_000), ("4xQDR", 32_000_000_000), ("12x EDR", 300_000_000_000)]
        {
            let rate = LinkRate::parse(text).unwrap();
            assert_eq!(rate.bits_per_second(), bits, "{text}");
            assert_eq!(LinkRate::parse(&rate.to_string()), Ok(rate));
        }
        assert_eq!(LinkRate::parse("4xqdr"), Ok(LinkRate::X4_QDR));
        assert!(LinkRate::parse("2xQDR").unwrap_err().contains("4xQDR"));
    }
}
