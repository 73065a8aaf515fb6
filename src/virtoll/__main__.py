"""Where the command begins: `virtoll`, and `python -m virtoll`."""

import gc
from typing import NoReturn


def main() -> NoReturn:
    """The command line. It is imported only here: a helper process (`virtoll.helpers`) loads the module that was
    started as well, and needs nothing of it.

    What is imported stays: to look through it for garbage, again and again, takes a tenth of the time.
    """
    gc.disable()
    from virtoll import cli

    try:
        cli.main()
    finally:
        gc.freeze()  # Python looks once more before it ends


if __name__ == "__main__":
    main()
