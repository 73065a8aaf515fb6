"""Platforms: one file each. A platform makes an instance out of a host, an image and limits."""
