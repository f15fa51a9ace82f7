//! What the other end told us: command line and file.

use crate::Stop;
use longhaul_wire::packet::Headers;
use longhaul_wire::{Opcode, Psn};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::{env, fs};

/// The numbers of the file under its own names, and the other end's address.
pub(crate) struct Target {
    pub(crate) address: IpAddr,
    numbers: BTreeMap<String, u64>,
}

pub(crate) fn arguments() -> Result<(IpAddr, Target), Stop> {
    let usage = |reason: &str| Stop::Usage(reason.to_owned());
    let (mut address, mut file) = (None, None);
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let place = match word.as_str() {
            "--address" => &mut address,
            "--target" => &mut file,
            _ => return Err(Stop::Usage(format!("{word} is neither --address nor --target"))),
        };
        *place = Some(words.next().ok_or_else(|| Stop::Usage(format!("{word} needs a value")))?);
    }
    let address = address.ok_or_else(|| usage("--address is missing"))?;
    let address = address.parse().map_err(|_| Stop::Usage(format!("{address} is not an IP address")))?;
    let file = file.ok_or_else(|| usage("--target is missing"))?;
    let text = fs::read_to_string(&file).map_err(|error| Stop::Usage(format!("{file}: {error}")))?;
    let target = Target::parse(&text).map_err(|reason| Stop::Usage(format!("{file}: {reason}")))?;
    Ok((address, target))
}

impl Target {
    const KEYS: &[&str] = &[
        "mtu pkey uc_qpn uc_psn uc_rkey uc_address uc_length uc_seed guard_address guard_length",
        "ud_qpn ud_qkey ud_length ud_seed host_uc_qpn host_ud_qpn host_rkey host_address host_qkey",
        "out_uc_psn out_uc_writes out_uc_length out_uc_seed out_immediate out_ud_psn out_ud_length out_ud_seed",
    ];

    fn parse(text: &str) -> Result<Target, String> {
        let mut address = None;
        let mut numbers = BTreeMap::new();
        for line in text.lines() {
            let (key, value) = line.split_once('=').ok_or_else(|| format!("expected key=value, and found {line}"))?;
            if key == "address" {
                address = Some(value.parse().map_err(|_| format!("{value} is not an IP address"))?);
                continue;
            }
            let number = match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => value.parse(),
            };
            numbers.insert(key.to_owned(), number.map_err(|_| format!("{key} is not a number: {value}"))?);
        }
        let missing = Target::KEYS.iter().flat_map(|keys| keys.split(' ')).find(|&key| !numbers.contains_key(key));
        match (address, missing) {
            (Some(address), None) => Ok(Target { address, numbers }),
            (_, missing) => Err(format!("there is no {}", missing.unwrap_or("address"))),
        }
    }

    /// Only keys that `parse` has seen are asked for.
    pub(crate) fn long(&self, key: &str) -> u64 {
        self.numbers[key]
    }

    pub(crate) fn word(&self, key: &str) -> u32 {
        self.long(key) as u32
    }

    pub(crate) fn length(&self, key: &str) -> usize {
        self.long(key) as usize
    }

    pub(crate) fn psn(&self, key: &str) -> Psn {
        Psn::new(self.word(key))
    }

    /// Headers in the other end's partition, for the queue pair under a key.
    pub(crate) fn headers(&self, opcode: Opcode, queue_pair: &str, psn: Psn) -> Headers {
        let mut headers = Headers::new(opcode, self.word(queue_pair), psn);
        headers.bth.partition_key = self.word("pkey") as u16;
        headers
    }

    /// The bytes that both ends know, by the seed `NAME_seed` and the length `NAME_length`.
    pub(crate) fn message(&self, name: &str) -> Vec<u8> {
        let seed = self.length(&format!("{name}_seed"));
        let length = self.length(&format!("{name}_length"));
        (0..length).map(|index| (seed + 31 * index + (index >> 8)) as u8).collect()
    }
}
