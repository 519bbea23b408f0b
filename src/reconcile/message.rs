//! The range lists of NIP-77: a version byte, then ranges.
//!
//! ```text
//! message := 0x61 range*
//! range   := bound mode payload
//! bound   := varint(timestamp) varint(len) id-prefix{len}
//! mode    := 0 (skip) | 1 (fingerprint, 16 bytes) | 2 (count, then 32 bytes each)
//! ```
//!
//! A range starts where the one before it ended, the first at zero. A message that ends short of
//! infinity skips the rest.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::nostr::Timestamp;

/// The version byte.
pub(super) const VERSION: u8 = 0x61;
const ID_LEN: usize = 32;
const FINGERPRINT_LEN: usize = 16;

/// The bytes of an event id.
pub(super) type Id = [u8; ID_LEN];
/// What stands for a set of ids.
pub(super) type Fingerprint = [u8; FINGERPRINT_LEN];

/// A message that does not follow the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Cut off, or with a value that cannot be one.
    #[error("malformed negentropy message: {0}")]
    Malformed(&'static str),
    /// Another protocol version.
    #[error("unsupported negentropy version 0x{0:02x}")]
    Version(u8),
}

/// A point between items in (timestamp, id) order. A prefix on the wire stands for itself padded
/// with zeros, so that is how it is kept, and it is written without trailing zeros.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bound {
    pub timestamp: Timestamp,
    pub id: Id,
}

impl Bound {
    pub const ZERO: Self = Self::at(0);
    pub const INFINITY: Self = Self::at(u64::MAX);

    /// The point before every item of this second.
    pub const fn at(timestamp: Timestamp) -> Self {
        Self { timestamp, id: [0; ID_LEN] }
    }

    fn prefix(&self) -> &[u8] {
        &self.id[..self.id.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)]
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.timestamp)?;
        self.prefix().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What is said of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode<'a> {
    Skip,
    Fingerprint(Fingerprint),
    IdList(&'a [Id]),
}

/// A range up to, not including, `upper`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range<'a> {
    pub upper: Bound,
    pub mode: Mode<'a>,
}

/// Reads a message range by range, without copying its ids.
#[derive(Debug)]
pub(super) struct Decoder<'a> {
    rest: &'a [u8],
    last: Bound,
}

impl<'a> Decoder<'a> {
    pub fn new(message: &'a [u8]) -> Result<Self, MessageError> {
        match message.split_first() {
            Some((&VERSION, rest)) => Ok(Self { rest, last: Bound::ZERO }),
            Some((&other, _)) => Err(MessageError::Version(other)),
            None => Err(MessageError::Malformed("empty")),
        }
    }

    /// The next range, or `None` at the end. Bounds never decrease; equal ones are let through,
    /// because a responder that runs out of room right at its end writes infinity twice.
    pub fn next(&mut self) -> Result<Option<Range<'a>>, MessageError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let upper = self.bound()?;
        let mode = match self.number()? {
            0 => Mode::Skip,
            1 => Mode::Fingerprint(*self.array()?),
            2 => {
                // The count is the sender's word: nothing is taken or reserved for it before the
                // message is known to hold that many.
                let count = usize::try_from(self.number()?)
                    .ok()
                    .filter(|&count| count <= self.rest.len() / ID_LEN)
                    .ok_or(MessageError::Malformed("more ids announced than sent"))?;
                Mode::IdList(self.bytes(count * ID_LEN)?.as_chunks().0)
            }
            _ => return Err(MessageError::Malformed("unknown mode")),
        };
        Ok(Some(Range { upper, mode }))
    }

    fn bound(&mut self) -> Result<Bound, MessageError> {
        let timestamp = match self.number()? {
            0 => u64::MAX,
            // Saturating, as all implementations do: past infinity is infinity.
            delta => self.last.timestamp.saturating_add(delta - 1),
        };
        let len = usize::try_from(self.number()?)
            .ok()
            .filter(|&len| len <= ID_LEN)
            .ok_or(MessageError::Malformed("a prefix longer than an id"))?;
        let mut bound = Bound::at(timestamp);
        bound.id[..len].copy_from_slice(self.bytes(len)?);
        if timestamp == u64::MAX && bound != Bound::INFINITY {
            return Err(MessageError::Malformed("a bound past infinity"));
        }
        if bound < self.last {
            return Err(MessageError::Malformed("bounds out of order"));
        }
        self.last = bound;
        Ok(bound)
    }

    /// Seven bits a byte, the highest first; 64 bits are ten bytes at the most.
    fn number(&mut self) -> Result<u64, MessageError> {
        let mut value = 0_u64;
        for _ in 0..10 {
            let &[byte] = self.array()?;
            if value >> 57 != 0 {
                break;
            }
            value = value << 7 | u64::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(MessageError::Malformed("a number over 64 bits"))
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], MessageError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(MessageError::Malformed("cut short"))?;
        self.rest = rest;
        Ok(head)
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], MessageError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(MessageError::Malformed("cut short"))?;
        self.rest = rest;
        Ok(head)
    }
}

/// Writes a message range by range.
#[derive(Debug)]
pub(super) struct Encoder {
    out: Vec<u8>,
    last: Bound,
}

impl Encoder {
    /// The longest encoding of a skip and a range without ids after it: two bounds (a number, a
    /// length, an id) with a mode each, and a fingerprint.
    pub const MAX_STEP: usize = 2 * (10 + 1 + ID_LEN + 1) + FINGERPRINT_LEN;

    pub fn new() -> Self {
        Self { out: vec![VERSION], last: Bound::ZERO }
    }

    pub const fn len(&self) -> usize {
        self.out.len()
    }

    /// Where the last range ended.
    #[cfg(test)]
    pub const fn end(&self) -> Bound {
        self.last
    }

    /// Appends `mode` for `[lower, upper)`, which must not lie before the end of the last range,
    /// and skips from there to `lower`.
    pub fn push(&mut self, lower: &Bound, upper: &Bound, mode: Mode<'_>) {
        debug_assert!(self.last <= *lower && lower <= upper, "ranges are pushed in order");
        if self.last < *lower {
            self.bound(lower);
            self.out.push(0);
        }
        self.bound(upper);
        match mode {
            Mode::Skip => self.out.push(0),
            Mode::Fingerprint(fingerprint) => {
                self.out.push(1);
                self.out.extend_from_slice(&fingerprint);
            }
            Mode::IdList(ids) => {
                self.out.push(2);
                push_number(&mut self.out, ids.len() as u64);
                self.out.extend_from_slice(ids.as_flattened());
            }
        }
    }

    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    fn bound(&mut self, bound: &Bound) {
        if bound.timestamp == u64::MAX {
            self.out.push(0);
        } else {
            push_number(&mut self.out, bound.timestamp - self.last.timestamp + 1);
        }
        let prefix = bound.prefix();
        push_number(&mut self.out, prefix.len() as u64);
        self.out.extend_from_slice(prefix);
        self.last = *bound;
    }
}

/// The fingerprint of a set: the sum of its ids as 256-bit little-endian numbers, and its size,
/// hashed.
pub(super) fn fingerprint(ids: &[Id]) -> Fingerprint {
    let mut sum = [0_u64; 4];
    for id in ids {
        let mut carry = false;
        for (limb, bytes) in sum.iter_mut().zip(id.as_chunks().0) {
            let (value, over) = limb.overflowing_add(u64::from_le_bytes(*bytes));
            let (value, over_carry) = value.overflowing_add(u64::from(carry));
            *limb = value;
            carry = over | over_carry;
        }
    }
    let mut input: Vec<u8> = sum.iter().flat_map(|limb| limb.to_le_bytes()).collect();
    push_number(&mut input, ids.len() as u64);
    let digest: [u8; 32] = Sha256::digest(&input).into();
    let mut fingerprint = [0; FINGERPRINT_LEN];
    fingerprint.copy_from_slice(&digest[..FINGERPRINT_LEN]);
    fingerprint
}

fn push_number(out: &mut Vec<u8>, value: u64) {
    let digits = (64 - (value | 1).leading_zeros()).div_ceil(7);
    for digit in (0..digits).rev() {
        let more = if digit == 0 { 0 } else { 0x80 };
        out.push((value >> (7 * digit)) as u8 & 0x7f | more);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn decode(message: &[u8]) -> Result<usize, MessageError> {
        let mut decoder = Decoder::new(message)?;
        let mut ranges = 0;
        while decoder.next()?.is_some() {
            ranges += 1;
        }
        Ok(ranges)
    }

    #[test]
    fn what_is_not_the_format_is_refused() {
        let wrong = |what| Err(MessageError::Malformed(what));
        let mut long = vec![VERSION, 5, 0, 2, 2];
        long.extend([7; 63]);
        let table: [(&[u8], _); 13] = [
            (&[], wrong("empty")),
            (&[0x62], Err(MessageError::Version(0x62))),
            (&[VERSION, 5], wrong("cut short")),
            (&[VERSION, 5, 0, 1, 9], wrong("cut short")),
            (&[VERSION, 5, 2, 1], wrong("cut short")),
            (&[VERSION, 5, 33, 1], wrong("a prefix longer than an id")),
            (&[VERSION, 0, 1, 1, 0], wrong("a bound past infinity")),
            (&[VERSION, 5, 1, 9, 0, 1, 1, 8, 0], wrong("bounds out of order")),
            (&[VERSION, 5, 0, 3], wrong("unknown mode")),
            (&[VERSION, 0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], wrong("a number over 64 bits")),
            (&[VERSION, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 5], wrong("a number over 64 bits")),
            // 2^34 ids announced, none sent.
            (&[VERSION, 0, 0, 2, 0xc0, 0x80, 0x80, 0x80, 0], wrong("more ids announced than sent")),
            (&long, wrong("more ids announced than sent")),
        ];
        for (message, error) in table {
            assert_eq!(decode(message), error, "{message:02x?}");
        }
    }

    #[test]
    fn a_remainder_right_at_the_end_is_let_through() {
        let mut message = vec![VERSION, 0, 0, 2, 0, 0, 0, 1];
        message.extend([3; 16]);
        assert_eq!(decode(&message), Ok(2));
    }

    #[test]
    fn fingerprints_are_those_of_the_crate() {
        use negentropy::{Id, NegentropyStorageBase, NegentropyStorageVector};
        let ids: Vec<_> = (1..=200_u8).map(|n| [n.wrapping_mul(91) | 0x80; 32]).collect();
        let mut storage = NegentropyStorageVector::new();
        for (at, id) in (0..).zip(&ids) {
            storage.insert(at, Id::from_byte_array(*id)).unwrap();
        }
        storage.seal().unwrap();
        for n in [0, 1, 17, 200] {
            assert_eq!(fingerprint(&ids[..n]), storage.fingerprint(0, n).unwrap().to_bytes());
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            mut bounds in vec((0..4_u64, vec(0..3_u8, 0..5)), 1..20),
            payload in vec(any::<[u8; 32]>(), 0..4),
        ) {
            bounds.sort();
            let mut encoder = Encoder::new();
            let mut expected = Vec::new();
            let mut last = Bound::ZERO;
            for (n, (timestamp, prefix)) in bounds.iter().enumerate() {
                let mut upper = Bound::at(u64::MAX >> 1 | *timestamp);
                upper.id[..prefix.len()].copy_from_slice(prefix);
                upper = upper.max(last);
                let mode = match n % 3 {
                    0 => Mode::Skip,
                    1 => Mode::Fingerprint([n as u8; 16]),
                    _ => Mode::IdList(&payload),
                };
                encoder.push(&last, &upper, mode);
                expected.push(Range { upper, mode });
                last = upper;
            }
            let message = encoder.finish();
            let mut decoder = Decoder::new(&message).unwrap();
            for range in expected {
                prop_assert_eq!(decoder.next(), Ok(Some(range)));
            }
            prop_assert_eq!(decoder.next(), Ok(None));
        }

        #[test]
        fn no_bytes_break_the_reader(mut message in vec(any::<u8>(), 0..300)) {
            let _ = decode(&message);
            if let Some(first) = message.first_mut() {
                *first = VERSION;
            }
            let _ = decode(&message);
        }
    }
}
