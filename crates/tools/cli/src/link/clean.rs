//! `longhaul link clean`: ends links, and removes what they have left.

use longhaul_link::control::{self, Cleaned, Kind};
use serde_json::json;

use crate::stop::{self, Stop};

/// End links of this user, and remove what killed ones have left
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this link [default: all of this user]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Print one line of JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let names = arguments.name.clone().map_or_else(|| control::names(Kind::Link), |name| vec![name]);
    let (mut ended, mut failed) = (Vec::new(), None);
    for name in names {
        match control::clean(&name) {
            Ok(how) => ended.push((name, how)),
            // The others are ended all the same.
            Err(error) => failed = Some(Stop::from(error)),
        }
    }
    if ended.is_empty()
        && let Some(stop) = failed
    {
        return Err(stop);
    }
    let text = || match ended.is_empty() {
        true => "no link of this user runs, and none has left anything\n".to_owned(),
        false => {
            let line = |(name, how): &(String, Cleaned)| match how {
                Cleaned::Ended => format!("link \"{name}\" ended\n"),
                Cleaned::Killed => format!("link \"{name}\" did not answer, and was killed\n"),
                Cleaned::WasGone => format!("link \"{name}\" was not running; removed what it had left\n"),
            };
            ended.iter().map(line).collect()
        }
    };
    let link = |(name, how): &(String, Cleaned)| json!({ "name": name, "was_running": *how != Cleaned::WasGone, "was_killed": *how == Cleaned::Killed });
    let links: Vec<_> = ended.iter().map(link).collect();
    stop::tell(arguments.json, || json!({ "schema": 1, "links": links }), text, failed)
}
