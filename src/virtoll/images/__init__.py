"""One root filesystem per service set, exported as each platform needs it, cached by content."""
