//! `--key value` pairs, typed when they are asked for. Keys carry their unit (`--block-bytes 4096`), values are in it.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde_json::Value;

/// The command line of one probe. A wrong or unknown argument is a complaint; it is told before any result.
pub struct Arguments {
    given: BTreeMap<String, String>,
    effective: BTreeMap<String, Value>,
    wrong: Option<String>,
    pub json: bool,
}

impl Arguments {
    /// Pairs of `--key value`, and `--json` alone.
    pub fn parse(words: &[String]) -> Result<Arguments, String> {
        let mut given = BTreeMap::new();
        let mut json = false;
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if word == "--json" {
                json = true;
                continue;
            }
            let key = word
                .strip_prefix("--")
                .ok_or_else(|| format!("{word:?} is no --key"))?;
            let value = rest
                .next()
                .ok_or_else(|| format!("--{key} lacks its value"))?;
            if given.insert(key.to_owned(), value.clone()).is_some() {
                return Err(format!("--{key} is given twice"));
            }
        }
        Ok(Arguments {
            given,
            effective: BTreeMap::new(),
            wrong: None,
            json,
        })
    }

    /// The value of `key`, or `default`. What it came to is part of the report.
    pub fn get<T>(&mut self, key: &str, default: T) -> T
    where
        T: FromStr + Clone + Into<Value>,
    {
        let value = match self.given.remove(key) {
            None => default,
            Some(text) => text.parse().unwrap_or_else(|_| {
                self.complain(format!("--{key} {text:?} cannot be read"));
                default
            }),
        };
        self.effective.insert(key.to_owned(), value.clone().into());
        value
    }

    /// A number that must be at least `least`.
    pub fn at_least(&mut self, key: &str, least: u64, default: u64) -> u64 {
        let value = self.get(key, default);
        if value < least {
            self.complain(format!("--{key} {value} is below {least}"));
        }
        value.max(least)
    }

    /// A number from `least` to `most`.
    pub fn within(&mut self, key: &str, least: u64, most: u64, default: u64) -> u64 {
        let value = self.at_least(key, least, default);
        if value > most {
            self.complain(format!("--{key} {value} is above {most}"));
        }
        value.min(most)
    }

    /// Whether the command line names `key` and nobody has asked for it yet.
    pub fn gives(&self, key: &str) -> bool {
        self.given.contains_key(key)
    }

    /// One of a few words; the first is the default.
    pub fn one_of<'a>(&mut self, key: &str, words: &[&'a str]) -> &'a str {
        let value = self.get(key, words[0].to_owned());
        words
            .iter()
            .find(|word| **word == value)
            .unwrap_or_else(|| {
                self.complain(format!("--{key} {value:?} is none of {}", words.join(", ")));
                &words[0]
            })
    }

    /// The text of `key`; without it a complaint.
    pub fn required(&mut self, key: &str) -> String {
        if !self.given.contains_key(key) {
            self.complain(format!("--{key} is missing"));
        }
        self.get(key, String::new())
    }

    /// Note what is wrong; the first complaint is told.
    pub fn complain(&mut self, why: String) {
        self.wrong.get_or_insert(why);
    }

    /// Whether nothing is wrong so far and nothing is left over: a probe asks before it begins its work.
    pub fn are_right(&self) -> bool {
        self.complaint().is_none()
    }

    /// What is wrong, arguments that no one asked for included.
    pub fn complaint(&self) -> Option<String> {
        let unknown = || {
            self.given
                .keys()
                .next()
                .map(|key| format!("there is no --{key}"))
        };
        self.wrong.clone().or_else(unknown)
    }

    /// Every setting that was asked for, with its value.
    pub fn effective(&self) -> BTreeMap<String, Value> {
        self.effective.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Arguments {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Arguments::parse(&words).unwrap()
    }

    #[test]
    fn a_number_out_of_its_bounds_is_told_and_not_used() {
        for (text, used, told) in [
            ("--order 7", 7, None),
            ("", 5, None),
            ("--order 1", 2, Some("--order 1 is below 2")),
            ("--order 10", 9, Some("--order 10 is above 9")),
        ] {
            let mut arguments = of(text);
            assert_eq!(arguments.within("order", 2, 9, 5), used);
            assert_eq!(arguments.complaint().as_deref(), told);
        }
    }
}
