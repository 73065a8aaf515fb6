//! A small HTTP/1.1 server, as somebody's own service might be: static, told its port by the environment and the rest
//! by a file, with a log on its standard output. It is what tests and documents deploy as "bring your own".
//!
//!     SHOP_PORT=8080 shop /etc/shop.toml
//!
//! `GET /health` answers "ok" and the greeting, `GET /o/N` the object of N bytes as src/virtoll/services/objects.py
//! defines it. A configuration that cannot be used ends it with exit code 2 and one line on standard error.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::exit;
use std::thread;

const FIRST_LINE: u64 = 100_000_000_000_000;
const LINE_BYTES: u64 = 16;
const MOST_HEAD_BYTES: u64 = 16 * 1024;

#[derive(Debug)]
struct Config {
    greeting: String,
    most_object_bytes: u64,
}

fn main() {
    let path = env::args().nth(1).unwrap_or_default();
    let (port, config) = match configured(&path, env::var("SHOP_PORT").ok().as_deref()) {
        Ok(found) => found,
        Err(why) => fail(&why),
    };
    let listener = TcpListener::bind(("0.0.0.0", port))
        .unwrap_or_else(|error| fail(&format!("port {port}: {error}")));
    println!("listening on port {port}");
    let config: &'static Config = Box::leak(Box::new(config));
    for stream in listener.incoming().flatten() {
        let begun = thread::Builder::new().spawn(move || serve(&stream, config));
        if let Err(error) = begun {
            println!("connection refused: {error}"); // the stream is closed with the closure that held it
        }
    }
}

fn fail(why: &str) -> ! {
    eprintln!("shop: {why}");
    exit(2)
}

/// Port and configuration. The file has lines `greeting = "..."` and `most_object_bytes = N`, both needed.
fn configured(path: &str, port: Option<&str>) -> Result<(u16, Config), String> {
    let port = port.ok_or("SHOP_PORT is not set")?;
    let port = port
        .parse()
        .map_err(|_| format!("SHOP_PORT={port} is no port"))?;
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let config = parsed(&text).map_err(|why| format!("{path}: {why}"))?;
    Ok((port, config))
}

fn parsed(text: &str) -> Result<Config, String> {
    let (mut greeting, mut most) = (None, None);
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once('=').ok_or(format!("no '=' in {line:?}"))?;
        let value = value.trim();
        match key.trim() {
            "greeting" => greeting = Some(value.trim_matches('"').to_string()),
            "most_object_bytes" => {
                most = Some(
                    value
                        .parse()
                        .map_err(|_| format!("{value:?} is no number of bytes"))?,
                )
            }
            other => return Err(format!("unknown key {other:?}")),
        }
    }
    Ok(Config {
        greeting: greeting.ok_or("greeting is missing")?,
        most_object_bytes: most.ok_or("most_object_bytes is missing")?,
    })
}

/// Answer one connection's requests until it ends, or asks for something that is no request.
fn serve(stream: &TcpStream, config: &Config) {
    let mut input = BufReader::new(stream);
    let mut output = BufWriter::with_capacity(64 * 1024, stream);
    while let Ok(Some(request)) = request(&mut input) {
        let answered = answer(&request, config, &mut output).and_then(|status| {
            println!("{} {status}", request.path);
            output.flush()
        });
        if answered.is_err() || request.last {
            return;
        }
    }
}

struct Request {
    path: String,
    last: bool, // the client closes after it
}

/// The next request without a body; None at the end of the connection.
fn request(input: &mut impl BufRead) -> io::Result<Option<Request>> {
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

fn answer(request: &Request, config: &Config, output: &mut impl Write) -> io::Result<u16> {
    if request.path == "/health" {
        let text = format!("ok {}\n", config.greeting);
        head(200, text.len() as u64, output)?;
        output.write_all(text.as_bytes())?;
        return Ok(200);
    }
    let asked = request
        .path
        .strip_prefix("/o/")
        .and_then(|digits| digits.parse().ok());
    match asked {
        Some(length) if length <= config.most_object_bytes => {
            head(200, length, output)?;
            object(length, output)?;
            Ok(200)
        }
        _ => head(404, 0, output).map(|()| 404),
    }
}

fn head(status: u16, length: u64, output: &mut impl Write) -> io::Result<()> {
    let reason = if status == 200 { "OK" } else { "Not Found" };
    write!(
        output,
        "HTTP/1.1 {status} {reason}\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// The first `length` bytes of the text whose lines count up.
fn object(length: u64, output: &mut impl Write) -> io::Result<()> {
    for line in 0..length.div_ceil(LINE_BYTES) {
        let text = format!("{}\n", FIRST_LINE + line);
        let rest = (length - line * LINE_BYTES).min(LINE_BYTES);
        output.write_all(&text.as_bytes()[..rest as usize])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
