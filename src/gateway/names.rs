//! The ids of the gateway's own subscriptions on a client's connection to the relay. Pure.

/// Ids that a client has no way to know, because it is never shown one.
#[derive(Debug)]
pub struct Names {
    prefix: String,
    issued: u64,
}

impl Names {
    /// Ids that begin with what `chance` makes: 96 bits of it, in 24 digits.
    #[must_use]
    pub fn new(chance: u128) -> Self {
        Self { prefix: format!("{:024x}", chance & ((1 << 96) - 1)), issued: 0 }
    }

    /// One more: 26 to 44 characters, where NIP-01 allows 64.
    pub fn issue(&mut self) -> String {
        self.issued += 1;
        format!("{}-{}", self.prefix, self.issued)
    }

    /// Whether a client says what only an id of these can hold. Passed on, such a frame could
    /// give a subscription of the client's the name of one of these.
    #[must_use]
    pub fn collide(&self, frame: &str) -> bool {
        frame.contains(&self.prefix)
    }

    /// Whether a frame from the relay is about one of these, of old ones too: a relay may go on
    /// for a while after CLOSE.
    #[must_use]
    pub fn own(&self, frame: &str) -> bool {
        self.issued > 0
            && subscription(frame).is_some_and(|(verb, id)| {
                matches!(verb, "EVENT" | "EOSE" | "CLOSED") && id.strip_prefix(&self.prefix).is_some_and(is_rest)
            })
    }
}

fn is_rest(rest: &str) -> bool {
    rest.starts_with('-')
}

/// Verb and subscription id of a frame, read no further than they reach; `None` where they are
/// written otherwise than plainly. No relay escapes letters and digits.
fn subscription(frame: &str) -> Option<(&str, &str)> {
    let rest = frame.trim_ascii_start().strip_prefix('[')?;
    let (verb, rest) = word(rest)?;
    let (id, _) = word(rest.trim_ascii_start().strip_prefix(',')?)?;
    Some((verb, id))
}

/// The text that stands first, and what follows it.
pub(super) fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_ascii_start().strip_prefix('"')?;
    text.split_once('"').filter(|(word, _)| !word.contains('\\'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_frames_are_told_from_others() {
        let mut names = Names::new(u128::MAX);
        let prefix = "f".repeat(24);
        let early = format!(r#"["EOSE","{prefix}-1"]"#);
        assert!(!names.own(&early), "nothing was asked yet");
        let id = names.issue();
        assert_eq!(id, format!("{prefix}-1"));
        for frame in [
            format!(r#"["EVENT","{id}",{{}}]"#),
            format!("\n[ \"EOSE\"\t, \"{id}\" ]"),
            format!(r#"["CLOSED","{id}","error: x"]"#),
        ] {
            assert!(names.own(&frame), "{frame}");
        }
        for frame in [
            format!(r#"["NOTICE","{id}"]"#),
            format!(r#"["EVENT","{prefix}",{{}}]"#),
            format!(r#"["EVENT","a",{{"content":"{id}"}}]"#),
            format!(r#"["EVENT","a\"{id}",{{}}]"#),
            format!(r#"["OK","{id}",true,""]"#),
            "[]".to_owned(),
            String::new(),
        ] {
            assert!(!names.own(&frame), "{frame}");
        }
        assert!(names.collide(&format!(r#"["REQ","{prefix}",{{}}]"#)));
        assert!(!names.collide(r#"["REQ","a",{}]"#));
    }
}
