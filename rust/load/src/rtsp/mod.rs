//! RTSP 1.0 as a client speaks it, without input and output of its own (RFC 2326; sections in comments are of it).
//!
//! `message.rs` cuts messages and media out of what comes, `session.rs` is the conversation: requests, and what their
//! answers say of the session. A viewer is in `view/rtsp/`, a publisher in `publish/rtsp.rs`.

pub mod message;
pub mod session;

use virtoll_generator::random::Random;
use virtoll_generator::Failed;

const MOST_URL_BYTES: usize = 2048;
/// RFC 3550, 6.2 and A.7, for two members, whose reports need far less than their share of the bandwidth: the least
/// interval, half of it before the first report; each is drawn from a half to one and a half of it, and divided by
/// e - 3/2.
const INTERVAL_NS: f64 = 5e9;
const COMPENSATION: f64 = std::f64::consts::E - 1.5;

/// The URL, where it is one of a presentation.
pub fn checked_url(url: &str) -> Result<String, Failed> {
    let rest = url.strip_prefix("rtsp://");
    let is_right = is_url(url) && rest.is_some_and(|rest| rest.find('/').is_some_and(|at| at > 0));
    is_right.then(|| url.to_owned()).ok_or_else(|| {
        Failed(format!(
            "{url:?} is not an rtsp URL: write rtsp://HOST[:PORT]/PATH"
        ))
    })
}

/// Whether it can stand in a request.
pub fn is_url(text: &str) -> bool {
    text.len() <= MOST_URL_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// How long until the next report of control (RTCP).
pub fn interval_ns(random: &mut Random, is_first: bool) -> i64 {
    let part = 0.5 + random.below(1 << 32) as f64 / (1u64 << 32) as f64;
    let interval_ns = if is_first {
        INTERVAL_NS / 2.0
    } else {
        INTERVAL_NS
    };
    (interval_ns * part / COMPENSATION) as i64
}
