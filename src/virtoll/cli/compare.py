"""`virtoll compare`: what changed from one run to another."""

from __future__ import annotations

import argparse
import json

from virtoll.errors import Problem, StudyError
from virtoll.plain import print_shown


def compare(arguments: argparse.Namespace) -> int:
    """Compare two runs; 5 or 6 where a threshold was given and B is worse, or none can tell."""
    from virtoll.report import change_forms as forms  # distributions are slow to import; other verbs need none
    from virtoll.report import changes

    if arguments.junit and arguments.fail_over is None:
        what = "a test passes or fails, and without a threshold nothing does"
        raise StudyError([Problem(what, "--junit", "give one: --fail-over 5%")])
    compared = changes.compare(
        arguments.before,
        arguments.after,
        threshold=arguments.fail_over,
        names=arguments.metrics or (),
        by_condition=arguments.by_condition,
    )
    if arguments.markdown:
        forms.write(arguments.markdown, forms.markdown(compared).encode())
    if arguments.junit:
        forms.write(arguments.junit, forms.junit(compared))
    if arguments.json:
        print(json.dumps(forms.as_json(compared), indent=2))
    else:
        print_shown(lambda console: forms.show(compared, console))
    return forms.exit_code(compared)
