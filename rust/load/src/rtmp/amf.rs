//! AMF0 (Action Message Format, 2007): the values in commands. What is read may be anything, and may be cut off.

/// Values within values: no server needs more.
const DEPTH_MAX: u32 = 8;

const NUMBER: u8 = 0;
const BOOLEAN: u8 = 1;
const STRING: u8 = 2;
const OBJECT: u8 = 3;
const NULL: u8 = 5;
const UNDEFINED: u8 = 6;
const REFERENCE: u8 = 7;
const MAP: u8 = 8;
const END: u8 = 9;
const ARRAY: u8 = 10;
const DATE: u8 = 11;
const LONG_STRING: u8 = 12;
const UNSUPPORTED: u8 = 13;
const XML: u8 = 15;
const TYPED_OBJECT: u8 = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Number(f64),
    Text(&'a [u8]),
    /// Its fields, as `field` finds them.
    Object(&'a [u8]),
    /// Anything else: nobody asks what it is.
    Other,
}

/// Take the next value off `input`; None: there is none, or it is none.
pub fn value<'a>(input: &mut &'a [u8]) -> Option<Value<'a>> {
    nested(input, 0)
}

/// The text of a field of an object.
pub fn field<'a>(mut fields: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    loop {
        let key = text(&mut fields)?;
        match value(&mut fields)? {
            Value::Text(told) if key == name => return Some(told),
            _ => {}
        }
    }
}

fn nested<'a>(input: &mut &'a [u8], depth: u32) -> Option<Value<'a>> {
    let marker = bytes(input, 1)?[0];
    Some(match marker {
        NUMBER => Value::Number(f64::from_be_bytes(bytes(input, 8)?.try_into().ok()?)),
        STRING => Value::Text(text(input)?),
        LONG_STRING | XML => {
            let length = length(input)?;
            Value::Text(bytes(input, length)?)
        }
        OBJECT => Value::Object(fields(input, depth)?),
        MAP => {
            length(input)?; // only a hint
            Value::Object(fields(input, depth)?)
        }
        TYPED_OBJECT => {
            text(input)?;
            Value::Object(fields(input, depth)?)
        }
        ARRAY => {
            for _ in 0..length(input)? {
                deeper(input, depth)?;
            }
            Value::Other
        }
        BOOLEAN => skipped(input, 1)?,
        REFERENCE => skipped(input, 2)?,
        DATE => skipped(input, 10)?,
        NULL | UNDEFINED | UNSUPPORTED => Value::Other,
        _ => return None,
    })
}

fn deeper<'a>(input: &mut &'a [u8], depth: u32) -> Option<Value<'a>> {
    match depth < DEPTH_MAX {
        true => nested(input, depth + 1),
        false => None,
    }
}

/// The bytes of all fields, without the end of the object.
fn fields<'a>(input: &mut &'a [u8], depth: u32) -> Option<&'a [u8]> {
    let all = *input;
    loop {
        let before = input.len();
        if text(input)?.is_empty() && input.first() == Some(&END) {
            *input = &input[1..];
            return Some(&all[..all.len() - before]);
        }
        deeper(input, depth)?;
    }
}

fn text<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = bytes(input, 2)?;
    bytes(
        input,
        usize::from(u16::from_be_bytes([length[0], length[1]])),
    )
}

fn length(input: &mut &[u8]) -> Option<usize> {
    let length = bytes(input, 4)?;
    usize::try_from(u32::from_be_bytes(length.try_into().ok()?)).ok()
}

fn skipped<'a>(input: &mut &'a [u8], count: usize) -> Option<Value<'a>> {
    bytes(input, count).map(|_| Value::Other)
}

fn bytes<'a>(input: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (found, rest) = input.split_at_checked(count)?;
    *input = rest;
    Some(found)
}

/// What is said: values one after another.
#[derive(Debug, Default)]
pub struct Said(pub Vec<u8>);

impl Said {
    /// A command: its name and its transaction (7.2).
    pub fn command(name: &str, transaction: f64) -> Self {
        Said::default().text(name).number(transaction)
    }

    pub fn number(mut self, value: f64) -> Self {
        self.0.push(NUMBER);
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// At most 65,535 bytes: specifications are checked for it (`session.rs`).
    pub fn text(mut self, value: &str) -> Self {
        self.0.push(STRING);
        self.key(value)
    }

    pub fn null(mut self) -> Self {
        self.0.push(NULL);
        self
    }

    pub fn object(mut self, fields: &[(&str, &str)]) -> Self {
        self.0.push(OBJECT);
        for (name, told) in fields {
            self = self.key(name).text(told);
        }
        self = self.key("");
        self.0.push(END);
        self
    }

    fn key(mut self, name: &str) -> Self {
        let bytes = &name.as_bytes()[..name.len().min(usize::from(u16::MAX))];
        self.0
            .extend_from_slice(&(bytes.len() as u16).to_be_bytes());
        self.0.extend_from_slice(bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_said_is_read_again() {
        let said = Said::command("onStatus", 0.0).null();
        let said = said.object(&[
            ("level", "error"),
            ("code", "NetStream.Play.StreamNotFound"),
        ]);
        let mut input = &said.0[..];
        assert_eq!(value(&mut input), Some(Value::Text(b"onStatus")));
        assert_eq!(value(&mut input), Some(Value::Number(0.0)));
        assert_eq!(value(&mut input), Some(Value::Other));
        let Some(Value::Object(fields)) = value(&mut input) else {
            panic!("an object")
        };
        assert_eq!(
            field(fields, b"code"),
            Some(&b"NetStream.Play.StreamNotFound"[..])
        );
        assert_eq!(field(fields, b"description"), None);
        assert_eq!((input.len(), value(&mut input)), (0, None));
    }

    #[test]
    fn values_of_all_kinds_are_passed_over() {
        let number = [&[NUMBER][..], &[0; 8]].concat();
        let nested = [&[OBJECT, 0, 1, b'x'][..], &number, &[0, 0, END]].concat();
        let kinds = [
            vec![BOOLEAN, 1],
            vec![UNDEFINED],
            vec![REFERENCE, 0, 1],
            [&[MAP, 0, 0, 0, 9, 0, 1, b'y'][..], &nested, &[0, 0, END]].concat(),
            [&[ARRAY, 0, 0, 0, 2][..], &number, &nested].concat(),
            [&[DATE][..], &[0; 10]].concat(),
            vec![LONG_STRING, 0, 0, 0, 1, b'z'],
            vec![TYPED_OBJECT, 0, 1, b'c', 0, 0, END],
        ];
        for kind in kinds {
            let with = [&kind[..], &[STRING, 0, 1, b'!']].concat();
            let mut input = &with[..];
            assert!(value(&mut input).is_some(), "{kind:?}");
            assert_eq!(value(&mut input), Some(Value::Text(b"!")), "{kind:?}");
        }
    }

    #[test]
    fn what_is_nested_without_end_is_no_value() {
        let deep = [&[OBJECT, 0, 1, b'x'][..]].concat().repeat(100_000);
        assert_eq!(value(&mut &deep[..]), None);
        let many = [ARRAY, 0xff, 0xff, 0xff, 0xff].repeat(1000);
        assert_eq!(value(&mut &many[..]), None);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_without_a_panic_and_to_an_end(input in prop::collection::vec(0u8..20, 0..300)) {
            let mut rest = &input[..];
            while let Some(told) = value(&mut rest) {
                if let Value::Object(fields) = told {
                    prop_assert_eq!(field(fields, b"no such field"), None);
                }
            }
        }
    }
}
