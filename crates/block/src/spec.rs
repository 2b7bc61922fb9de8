//! The text form of a backend: `ram:256MiB`, `file:PATH[,ro][,size=1GiB][,bs=4096][,write-through][,buffered]`,
//! `null:1GiB`. Parsing touches nothing, so that a configuration can be checked without opening it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::Backend;
use crate::file::{FileBackend, FileOptions};
use crate::null::NullBackend;
use crate::ram::{MAX_RAM_BYTES, RamBackend};
use crate::size::{SizeError, format_size, parse_size};

/// Why a backend's text is wrong, or could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No kind, or an unknown one.
    #[error("`{0}`: a backend is ram:SIZE, file:PATH or null:SIZE")]
    UnknownKind(String),
    /// Nothing after the colon.
    #[error("`{0}`: {1} is missing after the colon")]
    Missing(String, &'static str),
    /// An option that the kind does not have.
    #[error("`{text}`: unknown option `{option}`; {kind} takes {known}")]
    UnknownOption {
        /// The whole text.
        text: String,
        /// The option in it.
        option: String,
        /// The backend kind.
        kind: &'static str,
        /// What is known.
        known: &'static str,
    },
    /// An option that is given twice.
    #[error("`{text}`: option `{option}` is given twice")]
    OptionTwice {
        /// The whole text.
        text: String,
        /// The option's name.
        option: String,
    },
    /// A bad size.
    #[error("`{text}`: {source}")]
    Size {
        /// The whole text.
        text: String,
        /// What is wrong with it.
        source: SizeError,
    },
    /// A block size other than 512 or 4096.
    #[error("`{0}`: the block size (bs) must be 512 or 4096")]
    BlockSize(String),
    /// The size is no positive multiple of the block size, or over the limit.
    #[error("`{text}`: the size must be a multiple of {block_size} bytes, more than 0 and at most {max}")]
    BadTotal {
        /// The whole text.
        text: String,
        /// The block size.
        block_size: u32,
        /// The largest size.
        max: String,
    },
    /// Opening failed.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
}

/// A backend described but not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendSpec {
    /// Sparse memory.
    Ram {
        /// Size in bytes.
        bytes: u64,
        /// Block size in bytes.
        block_size: u32,
    },
    /// A file or block device.
    File {
        /// Its path.
        path: PathBuf,
        /// How to open it.
        options: FileOptions,
    },
    /// Nothing.
    Null {
        /// Size in bytes.
        bytes: u64,
        /// Block size in bytes.
        block_size: u32,
    },
}

const FILE_OPTIONS: &str = "ro, size=SIZE, bs=512|4096, write-through, buffered, threads";

impl BackendSpec {
    /// Reads a backend's text.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let (kind, rest) = text.split_once(':').ok_or_else(|| SpecError::UnknownKind(text.to_owned()))?;
        let mut parts = rest.split(',');
        let head = parts.next().unwrap_or_default();
        let mut seen = Vec::new();
        for option in parts.clone().map(|part| part.split_once('=').map_or(part, |(name, _)| name)) {
            if seen.contains(&option) {
                return Err(SpecError::OptionTwice { text: text.to_owned(), option: option.to_owned() });
            }
            seen.push(option);
        }
        match kind {
            "ram" | "null" => {
                if head.is_empty() {
                    return Err(SpecError::Missing(text.to_owned(), "the size"));
                }
                let kind = if kind == "ram" { "ram" } else { "null" };
                let bytes = size(text, head)?;
                let mut block_size = 512;
                for option in parts {
                    match option.split_once('=') {
                        Some(("bs", value)) => block_size = parse_block_size(text, value)?,
                        _ => return Err(unknown(text, option, kind, "bs=512|4096")),
                    }
                }
                let max = if kind == "ram" { MAX_RAM_BYTES } else { u64::MAX };
                if bytes == 0 || !bytes.is_multiple_of(u64::from(block_size)) || bytes > max {
                    let max = format_size(max);
                    return Err(SpecError::BadTotal { text: text.to_owned(), block_size, max });
                }
                Ok(if kind == "ram" {
                    Self::Ram { bytes, block_size }
                } else {
                    Self::Null { bytes, block_size }
                })
            }
            "file" => Self::parse_file(text, head, parts),
            _ => Err(SpecError::UnknownKind(text.to_owned())),
        }
    }

    fn parse_file<'a>(
        text: &str,
        path: &str,
        parts: impl Iterator<Item = &'a str>,
    ) -> Result<Self, SpecError> {
        if path.is_empty() {
            return Err(SpecError::Missing(text.to_owned(), "the path"));
        }
        let mut options = FileOptions::default();
        for option in parts {
            match option.split_once('=') {
                None if option == "ro" => options.read_only = true,
                None if option == "write-through" => options.write_through = true,
                None if option == "buffered" => options.buffered = true,
                None if option == "threads" => options.threads = true,
                Some(("size", value)) => options.size = Some(size(text, value)?),
                Some(("bs", value)) => options.block_size = parse_block_size(text, value)?,
                _ => return Err(unknown(text, option, "file", FILE_OPTIONS)),
            }
        }
        if let Some(size) = options.size
            && (size == 0 || !size.is_multiple_of(u64::from(options.block_size)))
        {
            let (block_size, max) = (options.block_size, format_size(1 << 62));
            return Err(SpecError::BadTotal { text: text.to_owned(), block_size, max });
        }
        Ok(Self::File { path: path.into(), options })
    }

    /// Opens it.
    pub fn open(&self) -> Result<Arc<dyn Backend>, SpecError> {
        Ok(match self {
            &Self::Ram { bytes, block_size } => {
                let ram = RamBackend::new(block_size, bytes / u64::from(block_size));
                let ram = ram.map_err(|_| SpecError::BadTotal {
                    text: format!("ram:{}", format_size(bytes)),
                    block_size,
                    max: format_size(MAX_RAM_BYTES),
                })?;
                ram.warm();
                Arc::new(ram)
            }
            &Self::Null { bytes, block_size } => {
                Arc::new(NullBackend::new(block_size, bytes / u64::from(block_size)))
            }
            Self::File { path, options } => {
                let file = FileBackend::open(path, options);
                Arc::new(file.map_err(|source| SpecError::Open { path: path.clone(), source })?)
            }
        })
    }
}

fn size(text: &str, value: &str) -> Result<u64, SpecError> {
    parse_size(value).map_err(|source| SpecError::Size { text: text.to_owned(), source })
}

fn parse_block_size(text: &str, value: &str) -> Result<u32, SpecError> {
    match size(text, value)? {
        512 => Ok(512),
        4096 => Ok(4096),
        _ => Err(SpecError::BlockSize(text.to_owned())),
    }
}

fn unknown(text: &str, option: &str, kind: &'static str, known: &'static str) -> SpecError {
    SpecError::UnknownOption { text: text.to_owned(), option: option.to_owned(), kind, known }
}

/// Reads a backend's text and opens it.
pub fn parse_spec(text: &str) -> Result<Arc<dyn Backend>, SpecError> {
    BackendSpec::parse(text)?.open()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_texts() {
        assert_eq!(
            BackendSpec::parse("ram:256MiB").expect("good"),
            BackendSpec::Ram { bytes: 256 << 20, block_size: 512 }
        );
        assert_eq!(
            BackendSpec::parse("null:1GiB,bs=4096").expect("good"),
            BackendSpec::Null { bytes: 1 << 30, block_size: 4096 }
        );
        let options =
            FileOptions { read_only: true, size: Some(8192), write_through: true, ..Default::default() };
        assert_eq!(
            BackendSpec::parse("file:/tmp/a b,ro,size=8KiB,write-through").expect("good"),
            BackendSpec::File { path: "/tmp/a b".into(), options }
        );
    }

    #[test]
    fn bad_texts_say_what_is_wrong() {
        for (text, part) in [
            ("disk:1GiB", "ram:SIZE, file:PATH or null:SIZE"),
            ("256MiB", "ram:SIZE"),
            ("ram:", "the size is missing"),
            ("ram:12MB", "unknown unit `MB`"),
            ("ram:1000", "multiple of 512"),
            ("ram:0", "more than 0"),
            ("ram:2TiB", "at most 1TiB"),
            ("ram:1MiB,ro", "unknown option `ro`; ram takes bs=512|4096"),
            ("file:", "the path is missing"),
            ("file:/x,rw", "unknown option `rw`; file takes ro"),
            ("file:/x,bs=520", "must be 512 or 4096"),
            ("file:/x,size=100", "multiple of 512"),
        ] {
            let error = BackendSpec::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let Err(error) = parse_spec("file:/nonexistent/disk") else { panic!("opened") };
        assert!(error.to_string().starts_with("cannot open /nonexistent/disk: "), "{error}");
    }
}
