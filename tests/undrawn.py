"""The command as it is, but for the figures of its reports: to draw them takes longer than the studies of the tests.

What makes reports is loaded where a run ends, as the command itself does it: other verbs do not wait for it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from patience import wait_for_boots, wait_for_loads
from turns import take_turns
from virtoll import cli
from virtoll.report import begin

if TYPE_CHECKING:
    from virtoll.report.page import Drawn

ARGV = [sys.executable, __file__]


def no_figures(*_: object) -> Callable[[], dict[str, Drawn]]:
    """In place of `build._draw`."""
    from markupsafe import Markup

    from virtoll.report.page import Drawn

    return lambda: defaultdict(lambda: Drawn(Markup(), Markup()))


def nothing(*_: object) -> None:
    """In place of `build._start`, and of `begin._load`."""


UNDRAWN = {"_draw": no_figures, "_start": nothing}  # of `build`


def run_undrawn() -> None:
    """Have runs end without figures."""
    from virtoll.run import measuring

    finish = measuring.finish

    def finish_undrawn(*arguments: Any, **options: Any) -> int:
        from virtoll.report import build

        vars(build).update(UNDRAWN)
        return finish(*arguments, **options)

    vars(measuring)["finish"] = finish_undrawn
    vars(begin)["_load"] = nothing
    if {"--host", "--generator"}.intersection(sys.argv):
        from virtoll.run import by_generator, by_ssh

        # No clock decides a test: an ssh that is cut off always ends, and says why; and whoever is busy gives a sign of
        # life at last.
        by_ssh._LAST_WORDS_S, by_generator._SILENCE_S = 60.0, 480.0


if __name__ == "__main__":
    take_turns()
    wait_for_boots()
    if "run" in sys.argv:  # other verbs load less
        run_undrawn()
    if {"run", "calibrate", "probe", "worker"}.intersection(sys.argv):
        wait_for_loads()
    cli.main()
