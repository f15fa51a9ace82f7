//! What a report must not show: the host's name, IP and MAC addresses, GUIDs. Each address gets a label, the same
//! wherever it stands, so that a reader still sees which ones are equal. Loopback addresses stay.

use std::cell::RefCell;
use std::fs;
use std::net::IpAddr;

use serde_json::Value;

/// Shorter names of hosts are words too often.
const HOST_NAME_LENGTH_MIN: usize = 3;
/// Keys whose values are identities in a form of their own.
const IDENTITIES: [&str; 2] = ["node_guid", "system_image_guid"];

/// Replaces what identifies a host.
pub(super) struct Mask {
    host_name: Option<String>,
    /// Addresses in the order in which they were met; their place is their label.
    addresses: RefCell<Vec<IpAddr>>,
}

impl Mask {
    pub(super) fn of_this_host() -> Mask {
        Mask::new(fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim())
    }

    fn new(host_name: &str) -> Mask {
        let is_name = host_name.len() >= HOST_NAME_LENGTH_MIN && host_name != "localhost";
        Mask { host_name: is_name.then(|| host_name.to_owned()), addresses: RefCell::default() }
    }

    /// The same without what identifies the host.
    pub(super) fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(values) => values.into_iter().map(|value| self.value(value)).collect(),
            Value::Object(fields) => {
                let masked = |(key, value): (String, Value)| match IDENTITIES.contains(&key.as_str()) {
                    true => (key, Value::String("masked".to_owned())),
                    // A key may be an address as well.
                    false => (self.text(&key), self.value(value)),
                };
                fields.into_iter().map(masked).collect()
            }
            other => other,
        }
    }

    fn text(&self, text: &str) -> String {
        let mut masked = String::new();
        let mut rest = text;
        while !rest.is_empty() {
            let length = rest.find(|c: char| !is_address_part(c)).unwrap_or(rest.len());
            let (token, after) = rest.split_at(length);
            // `c` is the end of `softnic:…`, not the beginning of an address.
            let is_in_word = masked.ends_with(char::is_alphanumeric);
            masked += &self.token(token, is_in_word);
            let between = after.find(is_address_part).unwrap_or(after.len());
            masked += &after[..between];
            rest = &after[between..];
        }
        match &self.host_name {
            Some(name) => without_word(&masked, name),
            None => masked,
        }
    }

    /// Digits, letters of hexadecimal numbers, dots and colons: an address may stand at its end, as in `softnic:::1`.
    fn token(&self, token: &str, is_in_word: bool) -> String {
        let body = token.trim_end_matches('.');
        let starts = (!is_in_word).then_some(0).into_iter().chain(body.match_indices(':').map(|(at, _)| at + 1));
        for start in starts {
            let tail = body[start..].trim_end_matches(':');
            let found = match tail.parse::<IpAddr>() {
                Ok(address) => Some(self.label(address.to_canonical())),
                Err(_) if is_mac(tail) => Some(Some("mac-address".to_owned())),
                Err(_) => None,
            };
            if let Some(label) = found {
                return match label {
                    Some(label) => format!("{}{label}{}", &token[..start], &token[start + tail.len()..]),
                    None => token.to_owned(),
                };
            }
        }
        token.to_owned()
    }

    /// `None` for an address that every host has.
    fn label(&self, address: IpAddr) -> Option<String> {
        if address.is_loopback() || address.is_unspecified() {
            return None;
        }
        let mut addresses = self.addresses.borrow_mut();
        let place = addresses.iter().position(|known| *known == address).unwrap_or_else(|| {
            addresses.push(address);
            addresses.len() - 1
        });
        Some(format!("address-{}", place + 1))
    }
}

fn is_address_part(c: char) -> bool {
    c.is_ascii_hexdigit() || matches!(c, ':' | '.')
}

fn is_mac(text: &str) -> bool {
    let groups: Vec<&str> = text.split(':').collect();
    groups.len() == 6 && groups.iter().all(|group| group.len() == 2)
}

/// A text in which a word is replaced where it stands alone.
fn without_word(text: &str, word: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    let mut result = String::new();
    let mut at = 0;
    for (begin, _) in text.match_indices(word) {
        let end = begin + word.len();
        let is_alone = !text[..begin].ends_with(is_part) && !text[end..].starts_with(is_part);
        if is_alone && begin >= at {
            result += &text[at..begin];
            result += "host-name";
            at = end;
        }
    }
    result + &text[at..]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_and_names_are_replaced() {
        let mask = Mask::new("secret-7");
        for (text, expected) in [
            ("softnic:192.0.2.7 (UDP port 4791)", "softnic:address-1 (UDP port 4791)"),
            ("softnic:2001:db8::7", "softnic:address-2"),
            ("::ffff:192.0.2.7", "address-1"),
            ("GID fe80::1%eth0, then 192.0.2.7.", "GID address-3%eth0, then address-1."),
            ("at 127.0.0.1:18515 and [::1]:7, softnic:::1", "at 127.0.0.1:18515 and [::1]:7, softnic:::1"),
            ("de:ad:be:ef:00:01", "mac-address"),
            ("on secret-7, not on secret-77", "on host-name, not on secret-77"),
            ("6.1.0-18-amd64, 12:34, ec:mds:32,8, added", "6.1.0-18-amd64, 12:34, ec:mds:32,8, added"),
        ] {
            assert_eq!(mask.text(text), expected);
        }
        let value = mask.value(json!({ "node_guid": "0102030405060708", "gids": ["192.0.2.7"], "n": 3 }));
        assert_eq!(value, json!({ "node_guid": "masked", "gids": ["address-1"], "n": 3 }));
    }
}
