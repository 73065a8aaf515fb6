"""Network modes: one file each. A mode is how an instance is attached to the lab."""
