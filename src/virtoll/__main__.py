"""`python -m virtoll`."""

from virtoll.cli import main

if __name__ == "__main__":  # a helper process loads this module as well
    main()
