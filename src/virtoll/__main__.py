"""Where the command begins: `virtoll`, and `python -m virtoll`."""

from typing import NoReturn


def main() -> NoReturn:
    """The command line. It is imported only here: a helper process (`virtoll.helpers`) loads the module that was
    started as well, and needs nothing of it.
    """
    from virtoll import cli

    cli.main()


if __name__ == "__main__":
    main()
