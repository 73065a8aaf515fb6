//! What agent, load generator and controller agree on: the protocol and the histogram.

pub mod base64;
pub mod hist;
pub mod protocol;
