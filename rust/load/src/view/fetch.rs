//! One GET at a time on a connection: its answer's status, length and bytes are checked as they come.

use super::text::Text;
use crate::dialogue::Progress;
use crate::response::Response;
use crate::tally::Failure;

/// Whom viewers ask.
#[derive(Clone, Debug)]
pub struct Site {
    /// `host:port` of the server, as the URL has it.
    pub authority: String,
    /// Ask with absolute URLs.
    pub proxy: bool,
}

impl Site {
    /// The bytes of one GET.
    pub fn get(&self, path: &str) -> Vec<u8> {
        let authority = &self.authority;
        let before = match self.proxy {
            true => format!("http://{authority}"),
            false => String::new(),
        };
        format!(
            "GET {before}{path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: virtoll-load\r\n\r\n"
        )
        .into_bytes()
    }
}

/// What a right answer is; none: whatever the server says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Right {
    pub length_bytes: Option<u64>,
    /// The piece of the endless text that begins here.
    pub text: Option<u64>,
    /// Or that it is not there: status 404, with whatever body.
    pub may_lack: bool,
}

impl Right {
    /// The piece of the text from `begin` to `end`.
    pub fn piece((begin, end): (u64, u64)) -> Self {
        Right {
            length_bytes: Some(end - begin),
            text: Some(begin),
            may_lack: false,
        }
    }
}

/// An answer on its way in.
#[derive(Debug)]
pub struct Fetch {
    response: Response,
    right: Right,
    text: Option<Text>,
}

impl Fetch {
    pub fn new(right: Right) -> Self {
        Fetch {
            response: Response::default(),
            right,
            text: right.text.map(Text::from),
        }
    }

    /// Bytes of the body so far.
    pub fn body_bytes(&self) -> u64 {
        self.response.body_bytes
    }

    /// The connection can carry another request, once this answer is whole.
    pub fn keep_alive(&self) -> bool {
        self.response.keep_alive
    }

    /// It is not there, and need not be.
    pub fn lacks(&self) -> bool {
        self.right.may_lack && self.response.has_head() && self.response.status == 404
    }

    /// Read what came; true: the answer is whole, and right. Its body is shown to `sink`.
    pub fn take(&mut self, input: &[u8], mut sink: impl FnMut(&[u8])) -> Result<bool, Failure> {
        let (text, mut is_right) = (&mut self.text, true);
        let progress = self.response.feed(input, |body| {
            is_right &= text.as_mut().is_none_or(|text| text.goes_on(body));
            sink(body);
        });
        if let Progress::Broken(_) = progress {
            return Err(Failure::Parse);
        }
        self.judge(progress == Progress::Done, is_right)
    }

    /// The stream has ended; true: that is the end of the answer.
    pub fn closed(&mut self) -> Result<bool, Failure> {
        let is_done = self.response.end_of_stream() == Progress::Done;
        match (is_done, self.response.has_head()) {
            (true, _) => self.judge(true, true),
            (false, true) => Err(Failure::Length),
            (false, false) => Err(Failure::Reset),
        }
    }

    fn judge(&self, is_done: bool, is_right: bool) -> Result<bool, Failure> {
        if self.lacks() {
            return Ok(is_done);
        }
        if self.response.has_head() && self.response.status != 200 {
            return Err(Failure::Status);
        }
        let length = self.right.length_bytes;
        if length.is_some_and(|length| self.response.body_bytes > length) {
            return Err(Failure::Length);
        }
        if !is_right {
            return Err(Failure::Content);
        }
        match length {
            Some(length) if is_done && self.response.body_bytes != length => Err(Failure::Length),
            _ => Ok(is_done),
        }
    }
}
