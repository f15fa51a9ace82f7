//! `longhaul plan figures`: the SDR-RDMA paper's figures from our model.
//!
//! One file for each of the paper's figures says what is shown and computes it; all of them take their points from
//! [`points`] and are drawn by `longhaul_charts`. docs/figures has what this writes, and a page that compares it with
//! the paper.

mod chunk;
mod detail;
mod distance;
mod figure;
mod impact;
mod points;
mod ring;
mod speedup;

use std::path::{Path, PathBuf};
use std::time::Instant;

use longhaul_plan::link::PlanError;
use serde_json::json;

use self::figure::Figure;
use crate::progress;
use crate::stop::Stop;

/// The SDR-RDMA paper's figures from our model, as SVG and CSV
///
/// Figures 3a to 3c, 9, 10a to 10d, 12, 13 and 15: each as a picture for a slide and as a table of what the picture
/// shows. Times are those of the completion-time model of our own protocols; where the paper's formula gives another
/// mean, it is in the picture as a thin dashed line and in the table. Takes some seconds; the same files every time.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Directory to write to; made if it is not there, and files of the same names are replaced
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// How a figure is made.
type Make = fn() -> Result<Figure, PlanError>;

/// Names of files, and how each is made.
const FIGURES: [(&str, Make); 11] = [
    ("figure-03a", impact::over_sizes),
    ("figure-03b", impact::over_distances),
    ("figure-03c", impact::over_losses),
    ("figure-09", speedup::figure),
    ("figure-10a", detail::over_sizes),
    ("figure-10b", detail::over_losses),
    ("figure-10c", detail::penalties),
    ("figure-10d", detail::splits),
    ("figure-12", distance::figure),
    ("figure-13", ring::figure),
    ("figure-15", chunk::figure),
];

/// Writes them.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let begin = Instant::now();
    prepare(&arguments.out)?;
    let bar = progress::bar(FIGURES.len() as u64, "{bar:30} {pos}/{len} figures, {elapsed}, {msg}");
    let mut rows = Vec::new();
    for (name, make) in FIGURES {
        bar.set_message(name);
        let figure = make().map_err(|error| Stop::failed(name, error))?;
        for (extension, text) in [("svg", &figure.svg), ("csv", &figure.csv)] {
            let path = arguments.out.join(format!("{name}.{extension}"));
            std::fs::write(&path, text).map_err(|error| {
                let path = path.display();
                Stop::Missing(format!(
                    "cannot write {path}: {error}; name a directory that you may write to with --out"
                ))
            })?;
            rows.push((path, figure.title.clone()));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let seconds = begin.elapsed().as_secs_f64();
    match arguments.json {
        true => {
            let files: Vec<String> = rows.iter().map(|(path, _)| path.display().to_string()).collect();
            println!("{}", json!({ "schema": 1, "files": files, "seconds": seconds }));
        }
        false => {
            let width = rows.iter().map(|(path, _)| path.display().to_string().len()).max().unwrap_or(0);
            for (path, title) in &rows {
                println!("{:<width$}  {title}", path.display());
            }
            eprintln!("{} files in {seconds:.1} s", rows.len());
        }
    }
    Ok(())
}

/// Makes the directory, or says what to do.
fn prepare(directory: &Path) -> Result<(), Stop> {
    if directory.exists() && !directory.is_dir() {
        let message = format!(
            "expected a directory to write to, got {}, which is a file: name another with --out",
            directory.display()
        );
        return Err(Stop::Usage(message));
    }
    std::fs::create_dir_all(directory).map_err(|error| {
        let message = format!(
            "cannot make the directory {}: {error}; name one that you may make with --out",
            directory.display()
        );
        Stop::Missing(message)
    })
}
