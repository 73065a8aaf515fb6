//! Memory: bandwidth by block size, STREAM, latency, and what first touching a page costs.
//!
//! All four map their memory themselves, with the page size they were asked for, touch it before the clock starts
//! (first-touch excepted: that is what it measures), and say which page size the system gave.

mod bandwidth;
mod chase;
mod first_touch;
mod isa;
pub mod mapping;
pub mod room;
mod stream;
mod stream_kernels;
mod sweeps;
mod team;

#[cfg(test)]
mod tests;

pub use bandwidth::PROBE as BANDWIDTH;
pub use chase::PROBE as LATENCY;
pub use first_touch::PROBE as FIRST_TOUCH;
pub use stream::PROBE as STREAM;
