"""What a shell is told of the command line, made by shtab from its parser when asked for.

At that moment all words are known, those of third parties' plugins too.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import shtab

from virtoll.catalogue import catalogue
from virtoll.cli.parser import TUNABLE, verbs_of
from virtoll.features import FEATURES
from virtoll.manual import topics
from virtoll.run.named import available_studies


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell of `virtoll.cli.parser.SHELLS`."""
    known = catalogue()
    verbs = verbs_of(parser)
    words: dict[tuple[str, str], Any] = {
        **dict.fromkeys([("run", "study"), ("audit", "study"), ("check", "study")], _study(available_studies())),
        **dict.fromkeys([("run", "platforms"), ("audit", "platforms")], _comma_list("platforms", known.platforms)),
        ("advise", "need"): _comma_list("features", FEATURES),
        ("run", "out"): shtab.DIRECTORY,
        ("report", "run"): shtab.DIRECTORY,
        ("compare", "before"): shtab.DIRECTORY,
        ("compare", "after"): shtab.DIRECTORY,
        ("compare", "out"): shtab.DIRECTORY,
        ("history", "folder"): shtab.DIRECTORY,
        ("export", "run"): shtab.DIRECTORY,
        ("keep", "run"): shtab.DIRECTORY,
        ("keep", "to"): shtab.DIRECTORY,
        ("advise", "runs"): shtab.DIRECTORY,
        ("plan", "what"): shtab.DIRECTORY,
        ("plan", "density"): shtab.DIRECTORY,
        ("plan", "out"): shtab.DIRECTORY,
    }
    choices = {
        ("probe", "name"): known.probes,
        ("probe", "platform"): known.platforms,
        ("probe", "network"): known.networks,
        ("tune", "what"): TUNABLE,
        ("untune", "what"): TUNABLE,
        ("new", "like"): available_studies(),
        ("help", "topic"): list(dict.fromkeys([*topics(), *verbs])),
    }
    for name, verb in verbs.items():
        for action in verb._actions:
            if (name, action.dest) in words:
                action.complete = words[name, action.dest]  # type: ignore[attr-defined]
            if (name, action.dest) in choices:
                action.choices = tuple(choices[name, action.dest])  # shtab takes a dict for a parser's verbs
    script: str = shtab.complete(parser, shell)
    return script


def _study(ready_made: Iterable[str]) -> dict[str, Any]:
    """One that is ready-made, a TOML file, or a directory (to go on through, or a run's)."""
    function, said = "_virtoll_study_files", " ".join(ready_made)
    bash = f"""\
{function}() {{
  compgen -W "{said}" -- "$1"
  compgen -f -X '!*.toml' -- "$1"
  compgen -d -- "$1"
}}"""
    zsh = f"""\
{function}() {{
  _alternative 'words:ready-made:({said})' 'files:study file:_files -g "*.toml(-.)"' 'directories:directory:_files -/'
}}"""
    fish = f"""\
function {function}
  printf '%s\\n' {said}
  __fish_complete_path (commandline -ct) | string match -r '.*(?:\\.toml|/)(?:\\t.*)?$'
end"""
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({function})",
        "preamble": {"bash": bash, "zsh": zsh, "fish": fish},
    }


def _comma_list(what: str, words: Iterable[str]) -> dict[str, Any]:
    """Some of ``words``, with commas between them; ``what`` they are, for people and for the function's name."""
    function, said = f"_virtoll_{what}", " ".join(words)
    bash = f"""\
{function}() {{
  local before=""
  [[ $1 == *,* ]] && before="${{1%,*}},"
  compgen -W "$(printf "$before%s " {said})" -- "$1"
}}"""
    zsh = f"""\
{function}() {{
  _values -s , {what} {said}
}}"""
    fish = f"""\
function {function}
  __fish_complete_list , "printf '%s\\n' {said}"
end"""
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({function})",
        "preamble": {"bash": bash, "zsh": zsh, "fish": fish},
    }
