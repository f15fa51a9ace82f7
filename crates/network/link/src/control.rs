//! How another process talks to a link or a gateway that runs: a socket in the file system, a line of JSON each way.
//!
//! The files of a link are in a folder that only its user can enter: `/run/longhaul` for root, `$XDG_RUNTIME_DIR/longhaul`, or a
//! folder in the one for temporary files, the first of them that can be used. `NAME.lock` is locked for as long as the link runs,
//! however its process ends; only who holds that lock makes or removes the others, `NAME.sock` and `NAME.error`. Those of
//! a gateway are `NAME.gateway.lock` and so on.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{Pid, geteuid};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Nobody waits longer for a link.
const PATIENCE: Duration = Duration::from_secs(5);
/// A link waits no longer for a process that asks it something: meanwhile it answers nobody else.
const REQUEST_PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of the longest line. An answer has a few hundred, and a request less.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What runs under a name. Each kind has names of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A link.
    Link,
    /// A gateway.
    Gateway,
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Kind::Link => "link",
            Kind::Gateway => "gateway",
        })
    }
}

impl Kind {
    /// Between the name and what the file is.
    fn infix(self) -> &'static str {
        match self {
            Kind::Link => "",
            Kind::Gateway => ".gateway",
        }
    }

    /// The command that lists them.
    fn lister(self) -> &'static str {
        match self {
            Kind::Link => "longhaul link show",
            Kind::Gateway => "longhaul gateway status",
        }
    }

    /// What to do about a name that is taken.
    fn remedy(self, name: &str) -> String {
        match self {
            Kind::Link => format!("choose another --name, or end it with `longhaul link clean --name {name}`"),
            Kind::Gateway => "set another name in its configuration, or end the other one".to_owned(),
        }
    }
}

/// Why a link or a gateway cannot be talked to.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Not a name.
    #[error("\"{1}\" is no name for a {0}: use letters, digits, - and _, at most 40")]
    Name(Kind, String),
    /// No folder is this user's.
    #[error("none of these can be used as a folder of this user's own: {0}; set XDG_RUNTIME_DIR to one")]
    NoFolder(String),
    /// A file cannot be made.
    #[error("{path} cannot be made")]
    Make {
        /// What.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The name is taken.
    #[error("a {0} named {1} runs already: {remedy}", remedy = .0.remedy(.1))]
    Taken(Kind, String),
    /// Nobody is there.
    #[error("no {kind} named {name} runs (of this user); `{}` lists those that do{}", .kind.lister(), reason_text(.reason))]
    NotRunning {
        /// What.
        kind: Kind,
        /// The name.
        name: String,
        /// Why the last of this name ended, if it could say so.
        reason: Option<String>,
    },
    /// It does not answer.
    #[error("the {kind} {name} does not answer")]
    NoAnswer {
        /// What.
        kind: Kind,
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// It answered that it could not.
    #[error("{0}")]
    Refused(String),
}

fn reason_text(reason: &Option<String>) -> String {
    reason.as_ref().map_or_else(String::new, |reason| format!(". The last one of this name ended: {reason}"))
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

// --- where the files are --------------------------------------------------------------------------------------------

/// Folders that may be this user's, the best first.
fn candidates() -> Vec<PathBuf> {
    let user = geteuid();
    let of_root = user.is_root().then(|| PathBuf::from("/run/longhaul"));
    let of_session = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| PathBuf::from(folder).join("longhaul"));
    let temporary = std::env::temp_dir().join(format!("longhaul-{user}"));
    of_root.into_iter().chain(of_session).chain([temporary]).collect()
}

/// Whether a folder is this user's, and nobody else can write there.
fn is_own(folder: &Path) -> bool {
    let own = geteuid().as_raw();
    fs::symlink_metadata(folder).is_ok_and(|is| is.is_dir() && is.uid() == own && is.mode() & 0o022 == 0)
}

/// Where this user's links are, if there are any.
fn folder() -> Option<PathBuf> {
    candidates().into_iter().find(|folder| is_own(folder))
}

fn make_folder() -> Result<PathBuf, ControlError> {
    let candidates = candidates();
    let make = |folder: &&PathBuf| {
        // What is there already is judged by whose it is.
        let _ = DirBuilder::new().mode(0o700).create(folder);
        is_own(folder)
    };
    candidates.iter().find(make).cloned().ok_or_else(|| {
        let shown: Vec<String> = candidates.iter().map(|folder| folder.display().to_string()).collect();
        ControlError::NoFolder(shown.join(", "))
    })
}

/// The files of one of them.
struct Files {
    kind: Kind,
    name: String,
    lock: PathBuf,
    socket: PathBuf,
    error: PathBuf,
}

fn is_name(name: &str) -> bool {
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=40).contains(&name.len()) && name.chars().all(is_good)
}

impl Files {
    fn of(kind: Kind, name: &str, folder: &Path) -> Self {
        let file = |ending: &str| folder.join(format!("{name}{}.{ending}", kind.infix()));
        Files { kind, name: name.to_owned(), lock: file("lock"), socket: file("sock"), error: file("error") }
    }

    /// Of one that may run.
    fn find(kind: Kind, name: &str) -> Result<Self, ControlError> {
        match (is_name(name), folder()) {
            (false, _) => Err(ControlError::Name(kind, name.to_owned())),
            (true, Some(folder)) => Ok(Files::of(kind, name, &folder)),
            (true, None) => Err(ControlError::NotRunning { kind, name: name.to_owned(), reason: None }),
        }
    }

    /// The lock of the name; `None` while another process holds it.
    fn try_lock(&self) -> io::Result<Option<Flock<File>>> {
        loop {
            let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&self.lock)?;
            let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => lock,
                Err((_, nix::Error::EWOULDBLOCK)) => return Ok(None),
                Err((_, error)) => return Err(error.into()),
            };
            // Who held it before may have removed the file, and another process made a new one.
            let is_current =
                fs::symlink_metadata(&self.lock).is_ok_and(|is| lock.metadata().is_ok_and(|own| own.ino() == is.ino()));
            if is_current {
                return Ok(Some(lock));
            }
        }
    }

    /// Only for who holds the lock.
    fn remove(&self) {
        for path in [&self.socket, &self.lock] {
            let _ = fs::remove_file(path);
        }
    }

    fn not_running(&self) -> ControlError {
        let reason = fs::read_to_string(&self.error).ok();
        ControlError::NotRunning { kind: self.kind, name: self.name.clone(), reason }
    }
}

/// The names of those that run, or that ended without cleaning up.
pub fn names(kind: Kind) -> Vec<String> {
    let entries = folder().and_then(|folder| fs::read_dir(folder).ok());
    let name = |entry: fs::DirEntry| {
        let file = entry.file_name();
        let name = file.to_str()?.strip_suffix(".lock")?.strip_suffix(kind.infix())?;
        is_name(name).then(|| name.to_owned())
    };
    let mut names: Vec<String> = entries.into_iter().flatten().flatten().filter_map(name).collect();
    names.sort();
    names
}

// --- the link's side ------------------------------------------------------------------------------------------------

/// The socket of a link that runs. Its name is free again when this is dropped, or its process has ended.
pub struct ControlSocket {
    listener: UnixListener,
    files: Files,
    // Dropped last.
    _lock: Flock<File>,
}

impl ControlSocket {
    /// For one of this name.
    pub fn open(kind: Kind, name: &str) -> Result<Self, ControlError> {
        if !is_name(name) {
            return Err(ControlError::Name(kind, name.to_owned()));
        }
        let files = Files::of(kind, name, &make_folder()?);
        let failed = |path: &Path, source| ControlError::Make { path: path.display().to_string(), source };
        let lock = files.try_lock().map_err(|error| failed(&files.lock, error))?;
        let lock = lock.ok_or_else(|| ControlError::Taken(kind, name.to_owned()))?;
        // Left by one that was killed, or has failed.
        let _ = fs::remove_file(&files.socket);
        let _ = fs::remove_file(&files.error);
        let listener = UnixListener::bind(&files.socket).map_err(|error| failed(&files.socket, error))?;
        Ok(ControlSocket { listener, files, _lock: lock })
    }

    /// The socket.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Answers the next request, if there is one.
    pub fn answer_one(&self, answer: impl FnOnce(Request) -> Answer) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        // A process that does not ask in time, or does not listen, gets no answer.
        let _ = converse(stream, answer);
    }

    /// Leave behind why the link has ended, for who looks for it later.
    pub fn leave_reason(&self, reason: &str) {
        let _ = fs::write(&self.files.error, reason);
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.files.remove();
    }
}

fn converse(mut stream: UnixStream, answer: impl FnOnce(Request) -> Answer) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(REQUEST_PATIENCE))?;
    let line = read_line(&mut stream, Instant::now() + REQUEST_PATIENCE)?;
    let answer = match serde_json::from_slice(&line) {
        Ok(request) => answer(request),
        Err(error) => Err(format!("a request that cannot be read: {error}")),
    };
    write_line(&mut stream, &answer)
}

// --- the other side -------------------------------------------------------------------------------------------------

/// Asks one that runs.
pub fn ask(kind: Kind, name: &str, request: &Request) -> Result<serde_json::Value, ControlError> {
    let files = Files::find(kind, name)?;
    let stream = UnixStream::connect(&files.socket).map_err(|_| files.not_running())?;
    let answer =
        exchange(stream, request).map_err(|source| ControlError::NoAnswer { kind, name: name.to_owned(), source })?;
    answer.map_err(ControlError::Refused)
}

/// How a link was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaned {
    /// It ended when it was asked to.
    Ended,
    /// It did not answer, and was killed.
    Killed,
    /// It had ended before, and what it left was removed.
    WasGone,
}

/// Ends a link, and removes what it has left.
pub fn clean(name: &str) -> Result<Cleaned, ControlError> {
    let kind = Kind::Link;
    let files = Files::find(kind, name)?;
    let failed = |source| ControlError::NoAnswer { kind, name: name.to_owned(), source };
    let Ok(stream) = UnixStream::connect(&files.socket) else {
        let is_left = [&files.socket, &files.lock, &files.error].into_iter().any(|path| path.exists());
        if !is_left {
            return Err(files.not_running());
        }
        // One that is just starting holds the lock, and has no socket yet.
        if !has_ended(&files, Duration::ZERO).map_err(failed)? {
            return Err(failed(io::ErrorKind::WouldBlock.into()));
        }
        let _ = fs::remove_file(&files.error);
        return Ok(Cleaned::WasGone);
    };
    let process = getsockopt(&stream, sockopt::PeerCredentials).map_err(|error| failed(error.into()))?.pid();
    // Whether it answers or not shows below.
    let _ = exchange(stream, &Request::End);
    if has_ended(&files, PATIENCE).map_err(failed)? {
        return Ok(Cleaned::Ended);
    }
    kill(Pid::from_raw(process), Signal::SIGKILL).map_err(|error| failed(error.into()))?;
    match has_ended(&files, PATIENCE).map_err(failed)? {
        true => Ok(Cleaned::Killed),
        false => Err(failed(io::ErrorKind::TimedOut.into())),
    }
}

/// Whether the name is free again within a time; then nothing of the link is left.
fn has_ended(files: &Files, patience: Duration) -> io::Result<bool> {
    let begun = Instant::now();
    loop {
        if let Some(lock) = files.try_lock()? {
            files.remove();
            drop(lock);
            return Ok(true);
        }
        if begun.elapsed() >= patience {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn exchange(mut stream: UnixStream, request: &Request) -> io::Result<Answer> {
    stream.set_write_timeout(Some(PATIENCE))?;
    write_line(&mut stream, request)?;
    let line = read_line(&mut stream, Instant::now() + PATIENCE)?;
    serde_json::from_slice(&line).map_err(io::Error::other)
}

// --- lines ----------------------------------------------------------------------------------------------------------

fn write_line(stream: &mut UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value).map_err(io::Error::other)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// All of a line by then, however slowly it comes.
fn read_line(stream: &mut UnixStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut line, mut piece) = (Vec::new(), [0; 1024]);
    while !line.ends_with(b"\n") && line.len() < LINE_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => break,
            count => line.extend_from_slice(&piece[..count]),
        }
    }
    Ok(line)
}
