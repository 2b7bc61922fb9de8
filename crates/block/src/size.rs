//! Sizes as people write them: `4096`, `512KiB`, `256MiB`, `1GiB`, `2TiB`. Binary units only; a bare number is bytes.
//! Decimal units (`MB`) are refused by name rather than guessed at.

/// Why a size could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeError {
    /// No digits.
    #[error("`{0}` is not a size: write a number and a unit, such as 256MiB")]
    NotANumber(String),
    /// Unknown unit.
    #[error("`{text}`: unknown unit `{unit}`; use KiB, MiB, GiB or TiB, or no unit for bytes")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// The unit in it.
        unit: String,
    },
    /// Over 2^64 - 1 bytes.
    #[error("`{0}` is more than 2^64 - 1 bytes")]
    TooLarge(String),
}

const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// Reads a size in bytes.
///
/// ```
/// assert_eq!(everywire_block::parse_size("256MiB"), Ok(268_435_456));
/// ```
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(SizeError::NotANumber(text.to_owned()));
    }
    let too_large = || SizeError::TooLarge(text.to_owned());
    let number: u64 = number.parse().map_err(|_| too_large())?;
    let unit = unit.trim();
    let shift = match unit {
        "" | "B" => 0,
        _ => UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit) || name[..1].eq_ignore_ascii_case(unit))
            .map(|&(_, shift)| shift)
            .ok_or_else(|| SizeError::UnknownUnit { text: text.to_owned(), unit: unit.to_owned() })?,
    };
    number.checked_mul(1 << shift).ok_or_else(too_large)
}

/// Writes a size with the largest unit that divides it exactly.
pub fn format_size(bytes: u64) -> String {
    for (name, shift) in UNITS.iter().rev() {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{name}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("512KiB"), Ok(512 << 10));
        assert_eq!(parse_size("512k"), Ok(512 << 10));
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size("3 GiB"), Ok(3 << 30));
        assert_eq!(parse_size("1tib"), Ok(1 << 40));
    }

    #[test]
    fn bad_sizes_say_why() {
        assert!(parse_size("MiB").unwrap_err().to_string().contains("256MiB"));
        assert!(parse_size("12MB").unwrap_err().to_string().contains("unknown unit `MB`"));
        assert!(matches!(parse_size("16777216TiB"), Err(SizeError::TooLarge(_))));
        assert!(matches!(parse_size("99999999999999999999"), Err(SizeError::TooLarge(_))));
    }

    #[test]
    fn sizes_print_exactly() {
        assert_eq!(format_size(256 << 20), "256MiB");
        assert_eq!(format_size(512), "512B");
        assert_eq!(format_size(0), "0B");
        assert_eq!(format_size(3 << 30), "3GiB");
    }
}
