//! Checks a value against the schema of the file as written: keys, types and ranges.
//!
//! What does not fit is noted and taken out, so that the rest can still be read.

use serde_json::{Map, Value};

use super::file::{KEY_IN_FILE, REFUSED_KEYS, is_tag_key};
use super::finding::{Findings, Path};

/// Checks a value and what is in it; false when it does not fit and was noted.
pub(super) fn check(value: &mut Value, schema: &Value, at: &Path, findings: &mut Findings<'_>) -> bool {
    if value.as_str().is_some_and(holds_secret) {
        findings.error(at, KEY_IN_FILE);
        return false;
    }
    let mut choices = Vec::new();
    flatten(schema, &mut choices);
    if choices.iter().flat_map(|choice| words(choice)).any(|word| word == value) {
        return true;
    }
    let Some(schema) = choices.iter().find(|schema| words(schema).next().is_none() && takes(schema, value)) else {
        findings.error(at, mismatch(value, &choices));
        return false;
    };
    match value {
        Value::Object(map) => check_keys(map, schema, at, findings),
        Value::Array(list) => {
            for (index, item) in list.iter_mut().enumerate() {
                if !check(item, &schema["items"], &at.index(index), findings) {
                    // Blank, not removed: the numbers of the others must not change.
                    *item = if takes(&schema["items"], &Value::Object(Map::new())) {
                        Value::Object(Map::new())
                    } else {
                        Value::String(String::new())
                    };
                }
            }
        }
        Value::Number(number) => {
            let least = schema["minimum"].as_u64().unwrap_or_default();
            let most = schema["maximum"].as_u64().or((schema["format"] == "uint32").then_some(u32::MAX.into()));
            if number.as_u64().is_none_or(|number| number < least || most.is_some_and(|most| number > most)) {
                let range = most.map_or_else(|| format!("{least} or more"), |most| format!("{least} to {most}"));
                findings.error(at, format!("expected a whole number, {range}"));
                return false;
            }
        }
        _ => {}
    }
    true
}

fn check_keys(map: &mut Map<String, Value>, schema: &Value, at: &Path, findings: &mut Findings<'_>) {
    let empty = Map::new();
    let known = schema["properties"].as_object().unwrap_or(&empty);
    let tags = schema["patternProperties"].as_object().and_then(|patterns| patterns.values().next());
    map.retain(|key, value| {
        let schema = known.get(key).or_else(|| tags.filter(|_| is_tag_key(key)));
        if let Some(schema) = schema {
            return check(value, schema, &at.key(key), findings);
        }
        if holds_secret(key) {
            findings.error(at, KEY_IN_FILE);
        } else if let Some((_, why)) = REFUSED_KEYS.iter().find(|(refused, _)| refused == key) {
            findings.error_in_key(&at.key(key), *why);
        } else if let Some(near) = nearest(key, known.keys()) {
            findings.error_in_key(&at.key(key), format!("unknown key `{key}`, did you mean `{near}`?"));
            findings.excuse(at.key(near));
        } else {
            let known: Vec<_> = known.keys().map(String::as_str).collect();
            findings.error_in_key(&at.key(key), format!("unknown key `{key}`, expected one of {}", known.join(", ")));
        }
        false
    });
    for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !map.contains_key(key) {
            findings.error(&at.key(key), "this key is missing");
        }
    }
}

/// The nearest of some words: at most a third of its letters away.
fn nearest<'w>(text: &str, words: impl Iterator<Item = &'w String>) -> Option<&'w str> {
    words
        .map(|word| (strsim::osa_distance(text, word), word.as_str()))
        .filter(|(distance, word)| distance * 3 <= word.len().max(3))
        .min()
        .map(|(_, word)| word)
}

/// A bech32 secret key, in any place.
fn holds_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("nsec1") || text.contains("ncryptsec1")
}

/// The alternatives of a schema, one level deep or more.
fn flatten<'s>(schema: &'s Value, choices: &mut Vec<&'s Value>) {
    match schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array) {
        Some(parts) => parts.iter().for_each(|part| flatten(part, choices)),
        None => choices.push(schema),
    }
}

/// The words that a schema consists of, if it does.
fn words(schema: &Value) -> impl Iterator<Item = &Value> {
    schema.get("const").into_iter().chain(schema.get("enum").and_then(Value::as_array).into_iter().flatten())
}

fn types(schema: &Value) -> impl Iterator<Item = &str> {
    let (one, list) = (schema["type"].as_str(), schema["type"].as_array());
    one.into_iter().chain(list.into_iter().flatten().filter_map(Value::as_str))
}

fn takes(schema: &Value, value: &Value) -> bool {
    types(schema).any(|name| match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Number(number) => name == "integer" && (number.is_u64() || number.is_i64()),
        Value::String(_) => name == "string",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    })
}

fn mismatch(value: &Value, choices: &[&Value]) -> String {
    let words: Vec<&String> = choices
        .iter()
        .flat_map(|choice| words(choice))
        .filter_map(|word| if let Value::String(word) = word { Some(word) } else { None })
        .collect();
    let mut expected: Vec<&str> = words.iter().map(|word| word.as_str()).collect();
    for name in choices.iter().filter(|choice| self::words(choice).next().is_none()).flat_map(|choice| types(choice)) {
        match name {
            "boolean" => expected.push("true or false"),
            "integer" => expected.push("a whole number"),
            "string" => expected.push("text"),
            "array" => expected.push("a list"),
            "object" => expected.push("a mapping"),
            // An optional key may be left out or left empty.
            _ => {}
        }
    }
    let expected = match expected.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => expected.concat(),
    };
    let found = match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    };
    if let Some(text) = value.as_str().filter(|_| !words.is_empty()) {
        let near = nearest(text, words.iter().copied()).map(|near| format!(", did you mean `{near}`?"));
        return format!("expected {expected}{}", near.unwrap_or_default());
    }
    let hint = if expected == "text" && value.is_number() { ": put it in quotes" } else { "" };
    format!("expected {expected}, found {found}{hint}")
}
