"""Micro benchmarks: what the machine itself gives. One file each; docs/PROBES.md defines them."""
