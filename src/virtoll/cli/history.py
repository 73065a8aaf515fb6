"""`virtoll history`: every run under a folder, over time."""

from __future__ import annotations

import argparse
import json

from virtoll.plain import print_shown


def history(arguments: argparse.Namespace) -> int:
    """Read a folder's runs, write the page and what else was asked for."""
    from virtoll.report import history as runs  # charts are slow to import; other verbs need none
    from virtoll.report import history_forms as forms
    from virtoll.report.change_forms import write
    from virtoll.report.history_page import write_page

    told = runs.history(arguments.folder, arguments.metrics or ())
    for path, form in (
        (arguments.csv, forms.as_csv),
        (arguments.parquet, forms.as_parquet),
        (arguments.openmetrics, forms.as_openmetrics),
    ):
        if path is not None:
            write(path, form(told))
    page = write_page(told, arguments.out)
    if arguments.json:
        print(json.dumps({**forms.as_json(told), "page": str(page)}, indent=2))
    else:
        print_shown(lambda console: forms.show(told, console))
        print(page)
    return 0
