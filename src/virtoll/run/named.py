"""What a word on the command line names: a ready-made study, or a study file of the user's own."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

from virtoll.errors import Problem, StudyError
from virtoll.record.store import is_run_directory
from virtoll.study.file import read_file


def available_studies() -> dict[str, str]:
    """The ready-made studies and their questions."""
    found = {}
    for file in sorted(files("virtoll.studies").iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".toml"):
            told = tomllib.loads(file.read_text(encoding="utf-8"))
            found[told["name"]] = told["question"]
    return found


def is_ready_made(word: str) -> bool:
    """Whether a ready-made study is called so. A path is no name: ``./proxy`` is what lies there."""
    return f"{word}.toml" in (file.name for file in files("virtoll.studies").iterdir())


def expect_one_meaning(word: str) -> None:
    """StudyError where a name is that of a ready-made study and of a study file or a run here."""
    path = Path(word)
    if is_ready_made(word) and (path.is_file() or is_run_directory(path)):
        what = f"{word!r} is a ready-made study, and a {'file' if path.is_file() else 'run directory'} here"
        remedy = f"write ./{word} for what is here; for the ready-made study, start virtoll in another directory"
        raise StudyError([Problem(what, str(path.absolute()), remedy)])


def text_of(word: str) -> tuple[str, str]:
    """The text of the study that is named, and its file's name. StudyError where there is none, or there are two."""
    expect_one_meaning(word)
    if is_ready_made(word):
        name = f"{word}.toml"
        return (files("virtoll.studies") / name).read_text(encoding="utf-8"), name
    path = Path(word)
    if not path.is_file():
        known = ", ".join(available_studies())
        remedy = f"ready-made studies: {known}; else give a study file (or, to `virtoll run`, a run directory)"
        raise StudyError([Problem("no such study", word, remedy)])
    return read_file(path), str(path)
