//! The real agent over pipes, as every test of its protocol starts it.

use std::io::BufReader;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub fn serve() -> (Child, ChildStdin, BufReader<ChildStdout>) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_virtoll-agent"))
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = process.stdin.take().unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    (process, input, output)
}
