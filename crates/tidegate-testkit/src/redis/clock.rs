//! A clock that can be shifted under a running server.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folder::new_folder;

/// The library that is preloaded between a server and its clock.
const SHIM: &str = include_str!("clock_shim.c");

/// The wall clock of the servers started with it, shifted by a settable offset.
pub struct ShiftedClock {
    folder: PathBuf,
}

impl ShiftedClock {
    /// Compiles the shim, with the C compiler that Rust links with.
    #[must_use]
    pub fn make() -> Self {
        let folder = new_folder();
        std::fs::write(folder.join("shim.c"), SHIM).expect("a temporary file can be written");
        let compiled = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o", "shim.so", "shim.c"])
            .current_dir(&folder)
            .status();
        assert!(
            compiled.is_ok_and(|status| status.success()),
            "cc failed to compile the clock shim"
        );
        let clock = Self { folder };
        clock.shift_micros(0);
        clock
    }

    /// Sets the offset of the clock.
    pub fn shift_micros(&self, micros: i64) {
        // Writes in place, because the server has mapped the file.
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.offset_file())
            .expect("the offset file can be opened");
        std::io::Write::write_all(&mut file, &micros.to_le_bytes())
            .expect("the offset can be written");
    }

    fn offset_file(&self) -> PathBuf {
        self.folder.join("offset")
    }

    pub(super) fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.display().to_string();
        vec![
            ("LD_PRELOAD".to_owned(), text(&self.folder.join("shim.so"))),
            ("CLOCK_SHIM".to_owned(), text(&self.offset_file())),
        ]
    }
}

impl Drop for ShiftedClock {
    fn drop(&mut self) {
        // A failure only leaves the folder behind.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
