"""Neighbours that misbehave, one file each (docs/AGGRESSORS.md)."""
