//! `longhaul plan`: which scheme for this link, and why. The modules are in the order in which an answer comes about.

mod options;

mod answered;
mod coding_speed;

mod export;
mod notes;
mod plot;
mod table;

mod figures;
mod looks;
mod validate;

use answered::Answered;
use longhaul_plan::question::CodingSpeed;
use options::Options;

use crate::stop::Stop;

/// Recommend a reliability scheme for a link and a message, and explain why
///
/// From a model of completion times: nothing is sent, and no RDMA device is needed. Times are from the beginning of
/// sending until the sender knows that all has arrived. A slowdown is the mean divided by the least possible on this
/// link without loss (bytes/rate + round trip). Extra bandwidth is parity and repetitions, as a share of the message.
/// Cores are those that code at the link's rate. The window is what the sender must keep until it is known to have
/// arrived. rc (go-back-N, what RDMA NICs do today) and lowar (the same over LoWAR's shim) are there for comparison.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Example: longhaul plan --rate 400G --rtt 25ms --loss 1e-5 --size 128MiB")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    options: Option<Options>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Figures(figures::Arguments),
    Validate(validate::Arguments),
}

/// Answers.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    match (&arguments.command, &arguments.options) {
        (Some(Command::Figures(arguments)), _) => figures::run(arguments),
        (Some(Command::Validate(arguments)), _) => validate::run(arguments),
        (None, Some(options)) => answer(options),
        (None, None) => Err(Stop::Usage("expected a link and a message: see `longhaul plan --help`".to_owned())),
    }
}

fn answer(options: &Options) -> Result<(), Stop> {
    // Mistakes are reported before anything is measured.
    options.questions(CodingSpeed::default())?;
    let coding = match options.coding_speed()? {
        Some(given) => given,
        None => coding_speed::measured()?,
    };
    let mut answered = Vec::new();
    for question in options.questions(coding)? {
        match question.answer() {
            Ok(answer) => answered.push(Answered { question, answer }),
            Err(error) => return Err(Stop::Usage(error.to_string())),
        }
    }
    if let Some(path) = &options.plot {
        let picture = plot::to_svg(&answered)?;
        std::fs::write(path, picture).map_err(|error| {
            Stop::Missing(format!("{} cannot be written: {error}; give another --plot", path.display()))
        })?;
        eprintln!("drawn in {}", path.display());
    }
    if options.json {
        println!("{}", export::to_json(&answered, &options.notes()));
    } else if options.csv {
        print!("{}", export::to_csv(&answered));
    } else {
        print!("{}", table::to_text(&answered, &options.notes()));
    }
    Ok(())
}
