//! What agent, load generator and controller agree on: the protocol and the histogram.
