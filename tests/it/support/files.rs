//! What is on the disk.

use std::path::Path;

/// All bytes below a directory.
pub fn bytes_below(directory: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        bytes.extend(if path.is_dir() { bytes_below(&path) } else { std::fs::read(path).unwrap() });
    }
    bytes
}
