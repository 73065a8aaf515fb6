"""A load generator on another machine: what both ends share, and the end that is here (docs/GENERATOR.md)."""
