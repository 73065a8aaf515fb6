"""`python -m virtoll`."""

from virtoll.cli import main

main()
