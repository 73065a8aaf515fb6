"""What a run directory holds, as types, and the store that writes it once."""
