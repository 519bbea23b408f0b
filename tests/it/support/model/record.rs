//! Every frame that a scripted relay got and sent.

use serde_json::Value;

/// Which way a frame went, seen from the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Received,
    Sent,
}

#[derive(Clone, Debug)]
pub struct Frame {
    /// The connection's number, from 1.
    pub connection: usize,
    pub way: Way,
    /// The first word of the message.
    pub verb: String,
    pub text: String,
}

#[derive(Default)]
pub struct Record(Vec<Frame>);

impl Record {
    pub fn add(&mut self, connection: usize, way: Way, verb: &str, text: &str) {
        self.0.push(Frame { connection, way, verb: verb.to_owned(), text: text.to_owned() });
    }

    pub fn frames(&self) -> &[Frame] {
        &self.0
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn count(&self, way: Way, verb: &str) -> usize {
        self.of(way, verb).count()
    }

    /// The ids in the EVENTs that went this way, in order.
    pub fn event_ids(&self, way: Way) -> Vec<String> {
        let id = |frame: &Frame| {
            let message: Value = serde_json::from_str(&frame.text).ok()?;
            message.as_array()?.last()?["id"].as_str().map(str::to_owned)
        };
        self.of(way, "EVENT").filter_map(id).collect()
    }

    fn of(&self, way: Way, verb: &str) -> impl Iterator<Item = &Frame> {
        self.0.iter().filter(move |frame| frame.way == way && frame.verb == verb)
    }
}
