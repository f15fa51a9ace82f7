//! Names of flags in errors, as people read them.

use std::fmt;

/// Writes names of flags in words: `PATH_MTU` becomes `path MTU`.
pub(crate) fn write_names<'a>(f: &mut fmt::Formatter<'_>, names: impl Iterator<Item = &'a str>) -> fmt::Result {
    for (nth, name) in names.enumerate() {
        if nth > 0 {
            f.write_str(", ")?;
        }
        for (nth, word) in name.replace("RECEIVER_NOT_READY", "RNR").split('_').enumerate() {
            if nth > 0 {
                f.write_str(" ")?;
            }
            match word {
                "RNR" | "PSN" | "MTU" | "UDP" | "DMA" | "READ" | "2A" | "2B" => f.write_str(word)?,
                word => f.write_str(&word.to_ascii_lowercase())?,
            }
        }
    }
    Ok(())
}
