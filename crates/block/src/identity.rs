//! Which file a path means, whatever it is called: two spellings, symbolic or hard links of one file are equal, and so are
//! two nodes of one block device. A file that is yet to be made is known by its folder and name.
//!
//! Read stat(2). It opens nothing, and says nothing about who else uses the file; `file/lock.rs` does.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// What a path means now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FileIdentity {
    /// A file that exists.
    Inode {
        /// The device of its file system.
        dev: u64,
        /// Its number there.
        ino: u64,
    },
    /// A block device.
    Device(u64),
    /// A file that does not exist yet.
    Absent {
        /// Device and number of its folder.
        folder: (u64, u64),
        /// Its name there.
        name: OsString,
    },
}

impl FileIdentity {
    /// Looks at `path`, through symbolic links.
    ///
    /// # Errors
    /// Neither the file nor its folder can be looked at.
    pub fn of(path: &Path) -> io::Result<FileIdentity> {
        match std::fs::metadata(path) {
            Ok(meta) if meta.file_type().is_block_device() => Ok(Self::Device(meta.rdev())),
            Ok(meta) => Ok(Self::Inode { dev: meta.dev(), ino: meta.ino() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = match path.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => std::fs::metadata(parent)?,
                    _ => std::fs::metadata(".")?,
                };
                let name = path.file_name().ok_or(error)?.to_owned();
                Ok(Self::Absent { folder: (folder.dev(), folder.ino()), name })
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_by_all_its_names() {
        let dir = std::env::temp_dir().join(format!("everywire-identity-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("sub")).expect("folder");
        let (file, hard, soft) = (dir.join("a"), dir.join("b"), dir.join("sub/c"));
        let of = |path: &Path| FileIdentity::of(path).expect("looked at");
        assert_eq!(of(&file), of(&dir.join("sub/../a")), "before it exists");
        assert_ne!(of(&file), of(&hard));
        std::fs::write(&file, b"x").expect("file");
        std::fs::hard_link(&file, &hard).expect("link");
        std::os::unix::fs::symlink("../a", &soft).expect("link");
        for name in [&hard, &soft, &dir.join("sub/../a")] {
            assert_eq!(of(&file), of(name), "{name:?}");
        }
        assert!(FileIdentity::of(&dir.join("nowhere/a")).is_err());
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
