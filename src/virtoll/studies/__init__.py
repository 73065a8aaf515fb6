"""The ready-made studies, and the papers' published figures as data."""
