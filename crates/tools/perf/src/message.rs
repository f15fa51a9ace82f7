//! What is said to people, in one form everywhere.

use serde::Serialize;
use serde_json::Value;

/// Which kind of message of an exchange this is, by its name: its contents would fill a screen.
pub(crate) fn kind_of(message: &impl Serialize) -> String {
    match serde_json::to_value(message) {
        Ok(Value::String(name)) => name,
        Ok(Value::Object(fields)) => fields.into_iter().next().map_or_else(String::new, |(name, _)| name),
        _ => "something else".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    enum Said {
        Ready,
        Contact { bytes: Vec<u8> },
    }

    #[test]
    fn messages_are_named_without_their_contents() {
        assert_eq!(kind_of(&Said::Ready), "Ready");
        assert_eq!(kind_of(&Said::Contact { bytes: vec![0; 1000] }), "Contact");
    }
}
