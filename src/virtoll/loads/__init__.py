"""Loads: one file each. Who uses the service: the native generator, or an outside instrument."""
