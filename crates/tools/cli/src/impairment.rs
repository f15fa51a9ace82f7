//! `--impair`: a bad network on the command line, as `name=value` pairs.

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_impair::{EcnMarking, Loss, LossTrace, Profile};
use longhaul_units::{QuantityError, bytes, duration, number, rate, share};

/// What can be said; also the help.
pub(crate) const HELP: &str = "\
A bad network: name=value pairs, separated by commas.
  delay=5ms           one way (ns, us, ms, s)
  jitter=1ms          up to this much more; packets overtake each other
  rate=10gbit         of the wire (kbit, mbit, gbit), with queue=1MiB or queue=5ms before it
  loss=1%             of packets (also 0.01), with burst=4: in bursts of four packets on average
  trace=FILE          loses what the file says: 0 (arrives) or 1 (lost) for each packet, again and again
  reorder=1%          of packets are held back, for hold=1ms
  duplicate=0.1%      of packets are duplicated
  corrupt=0.01%       of packets get a bit error
  ecn=100KiB          mark packets that find more than this in the queue";

/// Parses what was given to `--impair`.
pub(crate) fn parse(text: &str) -> Result<Profile, String> {
    let mut profile = Profile::default();
    let (mut loss, mut burst, mut reorder, mut hold, mut queue, mut trace) = (None, None, None, None, None, None);
    let mut names = BTreeSet::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(format!("\"{pair}\" is not a name=value pair, such as loss=1%"));
        };
        let in_context = |error: QuantityError| format!("{name}: {error}");
        if !names.insert(name.trim()) {
            return Err(format!("{} is set twice", name.trim()));
        }
        match name.trim() {
            "delay" => profile.propagation_delay = duration(value).map_err(in_context)?,
            "jitter" => profile = profile.with_jitter(duration(value).map_err(in_context)?, false),
            "rate" => profile.rate_bits_per_second = Some(rate(value).map_err(in_context)?),
            "queue" => queue = Some(value),
            "loss" => loss = Some(share(value).map_err(in_context)?),
            "trace" => trace = Some(read_trace(value.trim())?),
            "burst" => burst = Some(number(value).map_err(in_context)?),
            "reorder" => reorder = Some(share(value).map_err(in_context)?),
            "hold" => hold = Some(duration(value).map_err(in_context)?),
            "duplicate" => profile.duplication_probability = share(value).map_err(in_context)?,
            "corrupt" => profile.corruption.probability = share(value).map_err(in_context)?,
            "ecn" => profile.ecn = EcnMarking::Step { threshold_bytes: bytes(value).map_err(in_context)? },
            _ => return Err(format!("unknown setting \"{name}\"\n{HELP}")),
        }
    }
    if let Some(text) = queue {
        let Some(rate) = profile.rate_bits_per_second else {
            return Err("queue needs a rate, as in rate=1gbit,queue=5ms: without one nothing waits".to_owned());
        };
        // Bytes, or the time that they take at the rate.
        profile.queue_limit_bytes = match (bytes(text), duration(text)) {
            (Ok(bytes), _) => bytes,
            (Err(_), Ok(time)) => (time.as_secs_f64() * rate as f64 / 8.0).ceil() as u64,
            (Err(_), Err(_)) => {
                return Err(format!("queue: \"{text}\" is neither bytes, such as 1MiB, nor a time, such as 5ms"));
            }
        };
    }
    if trace.is_some() && (loss.is_some() || burst.is_some()) {
        return Err("trace has its own losses: leave loss and burst out".to_owned());
    }
    profile.loss = match (loss, burst) {
        (Some(loss), Some(burst)) => Loss::bursts(loss, burst),
        (Some(probability), None) => Loss::Independent { probability },
        (None, Some(_)) => return Err("burst needs a loss, as in loss=1%,burst=4".to_owned()),
        (None, None) => trace.map_or(Loss::None, Loss::Replayed),
    };
    profile = match (reorder, hold) {
        (Some(probability), hold) => profile.with_reordering(probability, hold.unwrap_or(Duration::from_millis(1))),
        (None, Some(_)) => return Err("hold needs a share of packets to reorder, as in reorder=1%,hold=1ms".to_owned()),
        (None, None) => profile,
    };
    profile.check().map_err(|error| error.to_string())?;
    Ok(profile)
}

/// Reads a trace of losses; white space is left out.
fn read_trace(path: &str) -> Result<LossTrace, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("trace: {path} cannot be read: {error}"))?;
    let mut lost = Vec::new();
    for character in text.chars().filter(|character| !character.is_whitespace()) {
        match character {
            '0' => lost.push(false),
            '1' => lost.push(true),
            other => return Err(format!("trace: {path} has \"{other}\"; use 0 (arrives) and 1 (lost)")),
        }
    }
    match lost.is_empty() {
        true => Err(format!("trace: {path} is empty")),
        false => Ok(LossTrace::from_lost_flags(lost)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reaches_the_profile() {
        let text = "delay=5ms, jitter=20us,rate=2.5gbit,queue=1MiB,loss=1%,reorder=0.5%,hold=2ms,duplicate=0.001,corrupt=2%,ecn=64KiB";
        let expected = Profile::default()
            .with_propagation_delay(Duration::from_millis(5))
            .with_jitter(Duration::from_micros(20), false)
            .with_rate_bits_per_second(2_500_000_000)
            .with_queue_limit_bytes(1 << 20)
            .with_loss(Loss::Independent { probability: 0.01 })
            .with_reordering(0.005, Duration::from_millis(2))
            .with_duplication(0.001)
            .with_corruption(0.02, 1)
            .with_ecn(EcnMarking::Step { threshold_bytes: 64 << 10 });
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse("loss=1%,burst=4").unwrap().loss, Loss::bursts(0.01, 4.0));
        assert_eq!(parse(""), Ok(Profile::default()));
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (text, word) in [
            ("los=1%", "los"),
            ("loss", "name=value"),
            ("loss=1ms", "share"),
            ("loss=101%", "between 0 and 1"),
            ("delay=5", "ns, us, ms or s"),
            ("rate=5", "gbit"),
            ("burst=3", "loss"),
            ("hold=3ms", "reorder"),
            ("ecn=1KiB", "rate"),
            ("rate=1gbit,queue=many", "neither"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_queue_is_bytes_or_time_and_needs_a_rate() {
        let limit = |text| parse(text).map(|profile| profile.queue_limit_bytes);
        assert_eq!(limit("rate=1gbit,queue=5ms"), Ok(625_000));
        assert_eq!(limit("queue=1MiB,rate=8mbit"), Ok(1 << 20));
        for (text, expected) in
            [("queue=1MiB", "needs a rate"), ("rate=1gbit,queue=many", "neither"), ("delay=1ms,delay=2ms", "twice")]
        {
            let error = parse(text).expect_err("a mistake");
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_trace_is_read_from_a_file() {
        let path = std::env::temp_dir().join(format!("longhaul-trace-{}", std::process::id()));
        let parse_trace = |contents: &str| {
            std::fs::write(&path, contents).expect("a file");
            parse(&format!("trace={}", path.display()))
        };
        let replayed = Loss::Replayed(LossTrace::from_lost_flags([false, true, true, false]));
        assert_eq!(parse_trace("01 1\n0\n").map(|profile| profile.loss), Ok(replayed));
        for contents in ["", "012"] {
            assert!(parse_trace(contents).is_err(), "{contents}");
        }
        std::fs::remove_file(&path).expect("it is there");
        assert!(parse(&format!("trace={}", path.display())).expect_err("no file").contains("cannot be read"));
        assert!(parse("trace=x,loss=1%").is_err());
    }
}
