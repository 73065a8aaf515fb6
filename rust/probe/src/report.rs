//! What a probe says: windows with values in named units, facts, checks of its own work; or why it could not.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{json, Value};

/// One measured window. Times are CLOCK_MONOTONIC nanoseconds where the probe ran.
#[derive(Clone, Debug, Serialize)]
pub struct Window {
    pub start_ns: u64,
    pub duration_ns: u64,
    /// Units of work done in it; each probe says what a unit is.
    pub work: u64,
    /// By the quantity's key; its unit is in [`Report::units`].
    pub values: BTreeMap<&'static str, f64>,
}

/// What a probe verified of its own work. One that did not pass makes the trial invalid.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub passed: bool,
    pub detail: String,
}

/// A probe's report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub probe: &'static str,
    pub version: &'static str,
    pub settings: BTreeMap<String, Value>,
    pub facts: BTreeMap<&'static str, Value>,
    pub units: BTreeMap<&'static str, &'static str>,
    pub windows: Vec<Window>,
    pub checks: Vec<Check>,
    /// What a reader must know of this run: "the work was enlarged from 1 to 64: one took 2 us".
    pub notes: Vec<String>,
    /// Non-empty buckets (lower_ns, upper_ns, count), ascending, where the probe times single events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Vec<(u64, u64, u64)>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
}

/// A counter over time.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    pub counter: &'static str,
    /// Whose CLOCK_MONOTONIC the times are of: "here", or "peer".
    pub clock: &'static str,
    /// (t_ns, value), ascending in time.
    pub rows: Vec<(u64, u64)>,
}

impl Report {
    /// A report of these quantities: (key, unit).
    pub fn of(units: &[(&'static str, &'static str)]) -> Report {
        Report {
            version: env!("CARGO_PKG_VERSION"),
            units: units.iter().copied().collect(),
            ..Report::default()
        }
    }

    /// Note one proof.
    pub fn check(&mut self, name: &'static str, passed: bool, detail: impl Into<String>) {
        self.checks.push(Check {
            name,
            passed,
            detail: detail.into(),
        });
    }

    /// Note a fact of what ran.
    pub fn fact(&mut self, name: &'static str, value: impl Into<Value>) {
        self.facts.insert(name, value.into());
    }

    /// As text for a person, or as one line of JSON.
    pub fn printed(&self, as_json: bool) -> String {
        if as_json {
            return serde_json::to_string(self).expect("a report is plain data");
        }
        let mut lines = vec![self.probe.to_owned()];
        for (key, unit) in &self.units {
            let values: Vec<String> = self
                .windows
                .iter()
                .filter_map(|window| window.values.get(key))
                .map(|value| format!("{value:.4}"))
                .collect();
            lines.push(format!("  {key:<24} {} {unit}", values.join("  ")));
        }
        lines.extend(
            self.facts
                .iter()
                .map(|(key, value)| format!("  {key:<24} {value}")),
        );
        lines.extend(self.checks.iter().map(|check| {
            let word = if check.passed { "passed" } else { "FAILED" };
            format!("  check {:<18} {word}: {}", check.name, check.detail)
        }));
        lines.extend(self.notes.iter().map(|note| format!("  note: {note}")));
        lines.join("\n")
    }
}

/// Why a probe gives no report.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    /// One word for programs: memory, direct-io, space, peer, system, refused.
    pub kind: &'static str,
    pub what: String,
    pub place: String,
    pub remedy: &'static str,
}

impl Failed {
    /// A failure of this kind: what happened, where, what to do.
    pub fn new(
        kind: &'static str,
        what: impl Into<String>,
        place: impl Into<String>,
        remedy: &'static str,
    ) -> Failed {
        Failed {
            kind,
            what: what.into(),
            place: place.into(),
            remedy,
        }
    }

    /// A system call that failed.
    pub fn system(call: impl Into<String>, error: &std::io::Error) -> Failed {
        Failed::new(
            "system",
            error.to_string(),
            call,
            "see what the system lacks or forbids",
        )
    }

    /// As text for a person, or as one line of JSON.
    pub fn printed(&self, as_json: bool) -> String {
        if as_json {
            let error = json!({"kind": self.kind, "what": self.what, "where": self.place, "remedy": self.remedy});
            return json!({ "error": error }).to_string();
        }
        format!("{}: {}\n    -> {}", self.place, self.what, self.remedy)
    }
}
