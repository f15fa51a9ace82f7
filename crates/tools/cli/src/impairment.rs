//! `--impair`: a bad network on the command line, as `name=value` pairs.

use std::time::Duration;

use longhaul_impair::{EcnMarking, Loss, Profile};
use longhaul_units::{QuantityError, bytes, duration, number, rate, share};

/// What can be said; also the help.
pub(crate) const HELP: &str = "\
An emulated bad network in process, in both directions, without root: name=value pairs, separated by commas.
  delay=5ms           one way (ns, us, ms, s)
  jitter=1ms          up to this much more; packets overtake each other
  rate=10gbit         of the wire (kbit, mbit, gbit), with queue=1MiB before it
  loss=1%             of packets (also 0.01), with burst=4: in bursts of four packets on average
  reorder=1%          of packets are held back, for hold=1ms
  duplicate=0.1%      of packets are duplicated
  corrupt=0.01%       of packets get a bit error
  ecn=100KiB          mark packets that find more than this in the queue";

/// Parses what was given to `--impair`.
pub(crate) fn parse(text: &str) -> Result<Profile, String> {
    let mut profile = Profile::default();
    let (mut loss, mut burst, mut reorder, mut hold) = (None, None, None, None);
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(format!("\"{pair}\" is not a name=value pair, such as loss=1%"));
        };
        let in_context = |error: QuantityError| format!("{name}: {error}");
        match name.trim() {
            "delay" => profile.propagation_delay = duration(value).map_err(in_context)?,
            "jitter" => profile = profile.with_jitter(duration(value).map_err(in_context)?, false),
            "rate" => profile.rate_bits_per_second = Some(rate(value).map_err(in_context)?),
            "queue" => profile.queue_limit_bytes = bytes(value).map_err(in_context)?,
            "loss" => loss = Some(share(value).map_err(in_context)?),
            "burst" => burst = Some(number(value).map_err(in_context)?),
            "reorder" => reorder = Some(share(value).map_err(in_context)?),
            "hold" => hold = Some(duration(value).map_err(in_context)?),
            "duplicate" => profile.duplication_probability = share(value).map_err(in_context)?,
            "corrupt" => profile.corruption.probability = share(value).map_err(in_context)?,
            "ecn" => profile.ecn = EcnMarking::Step { threshold_bytes: bytes(value).map_err(in_context)? },
            _ => return Err(format!("unknown setting \"{name}\"\n{HELP}")),
        }
    }
    profile.loss = match (loss, burst) {
        (Some(loss), Some(burst)) => Loss::bursts(loss, burst),
        (Some(probability), None) => Loss::Independent { probability },
        (None, Some(_)) => return Err("burst needs a loss, as in loss=1%,burst=4".to_owned()),
        (None, None) => Loss::None,
    };
    profile = match (reorder, hold) {
        (Some(probability), hold) => profile.with_reordering(probability, hold.unwrap_or(Duration::from_millis(1))),
        (None, Some(_)) => return Err("hold needs a share of packets to reorder, as in reorder=1%,hold=1ms".to_owned()),
        (None, None) => profile,
    };
    profile.check().map_err(|error| error.to_string())?;
    Ok(profile)
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
            ("queue=many", "number"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
