//! A link of the test's own.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A user's folder for sockets, and the links in it, which end with the test.
pub(crate) struct User {
    pub(crate) folder: PathBuf,
    /// Root's links are all in one folder: names keep tests apart.
    pub(crate) name: String,
}

impl User {
    pub(crate) fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("link-{test}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        User { folder, name: format!("{test}-{}", std::process::id()) }
    }

    pub(crate) fn command(&self, arguments: &str) -> Output {
        let mut command = Command::new("timeout");
        command.args(["60", env!("CARGO_BIN_EXE_longhaul"), "link"]).args(arguments.split_whitespace());
        command.env("XDG_RUNTIME_DIR", &self.folder).output().expect("the command runs")
    }

    /// With the name of this test's link in place of NAME. Standard output, if it succeeds.
    pub(crate) fn run(&self, arguments: &str) -> String {
        let output = self.command(&arguments.replace("NAME", &self.name));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "link {arguments}: {said}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    pub(crate) fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.run(arguments)).expect("one JSON object")
    }

    /// The exit status and what is said.
    pub(crate) fn fail(&self, arguments: &str) -> (i32, String) {
        let output = self.command(&arguments.replace("NAME", &self.name));
        (output.status.code().expect("it exits"), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Starts a link; `None` where that is not allowed.
    pub(crate) fn demo(&self, settings: &str) -> Option<Value> {
        let output = self.command(&format!("demo --json --name {} {settings}", self.name));
        if output.status.code() == Some(3) {
            eprintln!("SKIPPED: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(serde_json::from_slice(&output.stdout).expect("one JSON object"))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.command(&format!("clean --name {}", self.name));
    }
}

/// A program at one end.
pub(crate) fn exec(user: &User, side: &str, program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["link", "exec", "--name", &user.name, side, "--"]).args(program).env("XDG_RUNTIME_DIR", &user.folder);
    command
}
