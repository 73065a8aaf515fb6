"""Outside tools that measure what a probe measures, to check the probes against. One file each."""
