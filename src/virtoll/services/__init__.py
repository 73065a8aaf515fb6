"""Services: one file each. The software under test, and the origin behind it."""
