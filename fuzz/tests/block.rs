//! Targets for what `everywire-block` reads: backends and sizes as a person writes them.

use everywire_block::{BackendSpec, format_size, parse_size};
use everywire_fuzz::target;

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn specs() -> Vec<Vec<u8>> {
    texts(&[
        "ram:256MiB",
        "ram:1GiB,bs=4096",
        "null:16 TiB,bs=512",
        "file:/var/lib/disk,ro,size=1GiB,bs=4096,write-through,buffered,threads",
        "file:disk",
    ])
}

target!(backend_spec, specs(), |bytes| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        match BackendSpec::parse(text) {
            Ok(BackendSpec::Ram { bytes, block_size } | BackendSpec::Null { bytes, block_size }) => {
                assert!(matches!(block_size, 512 | 4096));
                assert!(bytes > 0 && bytes.is_multiple_of(u64::from(block_size)));
            }
            Ok(BackendSpec::File { path, options }) => {
                assert!(!path.as_os_str().is_empty());
                assert!(matches!(options.block_size, 512 | 4096));
                assert!(
                    options
                        .size
                        .is_none_or(|size| size > 0 && size.is_multiple_of(options.block_size.into()))
                );
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});

target!(size, texts(&["4096", "512k", "512KiB", "3 GiB", "1tib", "18446744073709551615"]), |bytes| {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(size) = parse_size(text)
    {
        assert_eq!(parse_size(&format_size(size)), Ok(size));
    }
});
