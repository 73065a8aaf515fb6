//! A small HTTP/1.1 server, as somebody's own service might be: static, told its port by the environment and the rest
//! by a file, with a log on its standard output. It is what tests and documents deploy as "bring your own".
//!
//!     SHOP_PORT=8080 shop /etc/shop.toml
//!
//! `GET /health` answers "ok" and the greeting, `GET /o/N` the object of N bytes as src/virtoll/services/objects.py
//! defines it. A configuration that cannot be used ends it with exit code 2 and one line on standard error.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::process::exit;
use std::thread;

use virtoll_http::{head, object, serve, Request};

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
        let begun = thread::Builder::new().spawn(move || served(&stream, config));
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

/// Answer one connection's requests, and log each.
fn served(stream: &TcpStream, config: &Config) {
    serve(stream, |request, output| {
        let status = answer(request, config, output)?;
        println!("{} {status}", request.path);
        Ok(())
    });
}

fn answer(request: &Request, config: &Config, output: &mut dyn Write) -> io::Result<u16> {
    if request.path == "/health" {
        let text = format!("ok {}\n", config.greeting);
        head(200, text.len() as u64, output)?;
        output.write_all(text.as_bytes())?;
        return Ok(200);
    }
    match request.object_bytes() {
        Some(length) if length <= config.most_object_bytes => {
            head(200, length, output)?;
            object(length, output)?;
            Ok(200)
        }
        _ => head(404, 0, output).map(|()| 404),
    }
}

#[cfg(test)]
mod tests;
