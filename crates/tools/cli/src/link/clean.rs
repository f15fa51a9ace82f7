//! `longhaul link clean`: ends links, and removes what they have left.

use longhaul_link::control;
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
    let names = arguments.name.clone().map_or_else(control::names, |name| vec![name]);
    let mut ended = Vec::new();
    for name in names {
        let was_running = control::clean(&name)?;
        ended.push((name, was_running));
    }
    let text = || match ended.is_empty() {
        true => "no link of this user runs, and none has left anything\n".to_owned(),
        false => {
            let line = |(name, was_running): &(String, bool)| match was_running {
                true => format!("link \"{name}\" ended\n"),
                false => format!("link \"{name}\" was not running; removed what it had left\n"),
            };
            ended.iter().map(line).collect()
        }
    };
    let links: Vec<_> = ended.iter().map(|(name, running)| json!({ "name": name, "was_running": running })).collect();
    stop::tell(arguments.json, || json!({ "schema": 1, "links": links }), text, None)
}
