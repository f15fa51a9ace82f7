//! How another process talks to a link that runs: a socket in the file system, a line of JSON each way.
//!
//! The socket is in a folder that only its user can enter: `/run/longhaul` for root, otherwise `$XDG_RUNTIME_DIR/longhaul`, or
//! a folder in the one for temporary files.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Nobody waits longer for the other process.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the longest line. An answer has a few hundred, and a request less.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Where the sockets of this user's links are.
pub fn folder() -> PathBuf {
    let user = geteuid();
    if user.is_root() {
        return PathBuf::from("/run/longhaul");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir()) {
        Some(folder) => folder.join("longhaul"),
        None => std::env::temp_dir().join(format!("longhaul-{user}")),
    }
}

/// Why a link cannot be talked to.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Not a name.
    #[error("\"{0}\" is no name for a link: use letters, digits, - and _, at most 40")]
    Name(String),
    /// The folder is somebody else's.
    #[error(
        "{0} belongs to another user, or others can write there: remove it, or set XDG_RUNTIME_DIR to a folder of your own"
    )]
    ForeignFolder(String),
    /// The folder or the socket cannot be made.
    #[error("{path} cannot be made")]
    Make {
        /// What.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The name is taken.
    #[error("a link named {0} runs already: choose another --name, or end it with `longhaul link clean --name {0}`")]
    Taken(String),
    /// Nobody is there.
    #[error("no link named {0} runs (of this user); `longhaul link show` lists those that do")]
    NotRunning(String),
    /// It does not answer.
    #[error("the link {name} does not answer")]
    NoAnswer {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// It answered that it could not.
    #[error("{0}")]
    Refused(String),
}

/// What is asked of a link that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Change what happens to frames: from the first end to the second, and back; each as text, if it changes.
    Set {
        /// From the first to the second.
        forth: Option<String>,
        /// From the second to the first.
        back: Option<String>,
    },
    /// Say what it does and what it has counted.
    Show,
    /// End.
    End,
}

/// A line of JSON that answers.
pub type Answer = Result<serde_json::Value, String>;

fn path_of(name: &str) -> Result<PathBuf, ControlError> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match (1..=40).contains(&name.len()) && name.chars().all(is_good) {
        true => Ok(folder().join(format!("{name}.sock"))),
        false => Err(ControlError::Name(name.to_owned())),
    }
}

/// The names of links that run, or that ended without cleaning up.
pub fn names() -> Vec<String> {
    let entries = fs::read_dir(folder()).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".sock")?.to_owned());
    let mut names: Vec<String> = entries.filter_map(name).collect();
    names.sort();
    names
}

/// The socket of a link that runs. Its name is free again when this is dropped.
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// For a link of this name.
    pub fn open(name: &str) -> Result<Self, ControlError> {
        let path = path_of(name)?;
        make_folder()?;
        if UnixStream::connect(&path).is_ok() {
            return Err(ControlError::Taken(name.to_owned()));
        }
        // Left by one that was killed.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .map_err(|source| ControlError::Make { path: path.display().to_string(), source })?;
        Ok(ControlSocket { listener, path })
    }

    /// The socket.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Answers the next request, if there is one, and waits for nobody else than the process that makes it.
    pub fn answer_one(&self, answer: impl FnOnce(Request) -> Answer) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        let _ = converse(stream, answer);
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn converse(mut stream: UnixStream, answer: impl FnOnce(Request) -> Answer) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(LINE_BYTES_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => answer(request),
        Err(error) => Err(format!("a request that cannot be read: {error}")),
    };
    let mut line = serde_json::to_string(&answer).map_err(io::Error::other)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// Asks a link that runs.
pub fn ask(name: &str, request: &Request) -> Result<serde_json::Value, ControlError> {
    let path = path_of(name)?;
    let stream = UnixStream::connect(path).map_err(|_| ControlError::NotRunning(name.to_owned()))?;
    let answer: Answer =
        exchange(stream, request).map_err(|source| ControlError::NoAnswer { name: name.to_owned(), source })?;
    answer.map_err(ControlError::Refused)
}

fn exchange(mut stream: UnixStream, request: &Request) -> io::Result<Answer> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_string(request).map_err(io::Error::other)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut answer)?;
    serde_json::from_str(&answer).map_err(io::Error::other)
}

/// Ends a link, and removes what one that was killed has left. Returns whether it ran.
pub fn clean(name: &str) -> Result<bool, ControlError> {
    let path = path_of(name)?;
    match ask(name, &Request::End) {
        Ok(_) => {
            let begun = std::time::Instant::now();
            while path.exists() && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(true)
        }
        Err(ControlError::NotRunning(_)) => {
            let existed = path.exists();
            let _ = fs::remove_file(&path);
            match existed {
                true => Ok(false),
                false => Err(ControlError::NotRunning(name.to_owned())),
            }
        }
        Err(error) => Err(error),
    }
}

fn make_folder() -> Result<(), ControlError> {
    let folder = folder();
    let shown = || folder.display().to_string();
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|source| ControlError::Make { path: shown(), source })?;
    match is_own(&folder) {
        true => Ok(()),
        false => Err(ControlError::ForeignFolder(shown())),
    }
}

/// Whether a folder is this user's, and nobody else can write there.
fn is_own(folder: &Path) -> bool {
    let own = geteuid().as_raw();
    fs::symlink_metadata(folder).is_ok_and(|is| is.is_dir() && is.uid() == own && is.mode() & 0o022 == 0)
}
