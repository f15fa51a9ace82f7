//! Pictures that commands write into a directory (`--svg`).

use std::path::Path;

use crate::stop::Stop;

/// The directory, if it is not there: before the work, because that may take minutes.
pub(crate) fn make(directory: &Path) -> Result<(), Stop> {
    let name = directory.display();
    std::fs::create_dir_all(directory)
        .map_err(|error| Stop::missing(format!("cannot make the directory --svg {name}"), error))
}

/// Names of files without their ending, and what they contain.
pub(crate) fn write(directory: &Path, pictures: Vec<(String, String)>) -> Result<(), Stop> {
    for (name, svg) in pictures {
        let path = directory.join(format!("{name}.svg"));
        std::fs::write(&path, svg).map_err(|error| Stop::failed(format!("cannot write {}", path.display()), error))?;
    }
    Ok(())
}
