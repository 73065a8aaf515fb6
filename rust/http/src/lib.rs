//! As much of HTTP/1.1 as a small server needs: requests without a body, and the objects that src/virtoll/services/
//! objects.py defines.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::TcpStream;

const FIRST_LINE: u64 = 100_000_000_000_000;
const LINE_BYTES: u64 = 16;
const MOST_HEAD_BYTES: u64 = 16 * 1024;

/// A GET.
pub struct Request {
    pub path: String,
    /// The client closes after it.
    pub last: bool,
}

impl Request {
    /// How long the object is that it asks for (`/o/N`); None where it asks for something else.
    pub fn object_bytes(&self) -> Option<u64> {
        self.path.strip_prefix("/o/")?.parse().ok()
    }
}

/// Answer one connection's requests until it ends, asks for something that is no request, or `answer` fails.
pub fn serve(
    stream: &TcpStream,
    mut answer: impl FnMut(&Request, &mut dyn Write) -> io::Result<()>,
) {
    let mut input = BufReader::new(stream);
    let mut output = BufWriter::with_capacity(64 * 1024, stream);
    while let Ok(Some(request)) = request(&mut input) {
        let answered = answer(&request, &mut output).and_then(|()| output.flush());
        if answered.is_err() || request.last {
            return;
        }
    }
}

/// The next request without a body; None at the end of the connection.
pub fn request(input: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut head = input.take(MOST_HEAD_BYTES);
    let mut line = String::new();
    head.read_line(&mut line)?;
    let mut words = line.split_ascii_whitespace();
    let (Some("GET"), Some(path), Some(version)) = (words.next(), words.next(), words.next())
    else {
        return Ok(None);
    };
    let (path, mut last) = (path.to_string(), version == "HTTP/1.0");
    loop {
        let mut field = String::new();
        if head.read_line(&mut field)? == 0 {
            return Ok(None);
        }
        let field = field.trim_end().to_ascii_lowercase();
        if field.is_empty() {
            return Ok(Some(Request { path, last }));
        }
        last |= field == "connection: close";
    }
}

/// The head of an answer whose body has `length` bytes.
pub fn head(status: u16, length: u64, output: &mut dyn Write) -> io::Result<()> {
    let reason = if status == 200 { "OK" } else { "Not Found" };
    write!(
        output,
        "HTTP/1.1 {status} {reason}\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// The first `length` bytes of the text whose lines count up.
pub fn object(length: u64, output: &mut dyn Write) -> io::Result<()> {
    for line in 0..length.div_ceil(LINE_BYTES) {
        let text = format!("{}\n", FIRST_LINE + line);
        let rest = (length - line * LINE_BYTES).min(LINE_BYTES);
        output.write_all(&text.as_bytes()[..rest as usize])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_end_where_they_should() {
        let mut text = Vec::new();
        object(20, &mut text).unwrap();
        assert_eq!(text, b"100000000000000\n1000");
    }

    #[test]
    fn a_request_is_read_to_its_end_and_no_further() {
        let mut input = &b"GET /o/3 HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.0\r\n\r\n"[..];
        let first = request(&mut input).unwrap().unwrap();
        assert_eq!((first.object_bytes(), first.last), (Some(3), false));
        let second = request(&mut input).unwrap().unwrap();
        assert_eq!((second.object_bytes(), second.last), (None, true));
        assert!(request(&mut input).unwrap().is_none());
    }
}
