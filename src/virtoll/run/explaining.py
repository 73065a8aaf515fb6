"""`virtoll run STUDY --explain`: a short programme of probes beside the service, to see what moves with its toll."""

from __future__ import annotations

import dataclasses
import tomllib
from importlib.resources import files

from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StudyError
from virtoll.study.model import Case, Study
from virtoll.study.programme import programme
from virtoll.study.reader import Reader
from virtoll.trial.treatment import treatments

_OPTION = "--explain"
_FILE = "explaining.toml"


def explained(study: Study) -> Study:
    """The study with the short programme beside its service. StudyError where it has no toll to explain."""
    if not study.is_served:
        what = f"{study.name} is a programme of probes already, and has no service whose toll they could explain"
        raise StudyError([Problem(what, _OPTION, "leave it out, or name a study of a service")])
    if study.servers:
        what = f"{study.name} sets several services beside each other, and the probes would explain none of them alone"
        raise StudyError([Problem(what, _OPTION, "leave it out, or name a study of one service")])
    if any(treatment.neighbour.aggressor for treatment in treatments(study)):
        what = f"{study.name} asks what neighbours do to a service, and not what a platform costs it"
        raise StudyError([Problem(what, _OPTION, "leave it out, or name a study without neighbours")])
    return dataclasses.replace(study, programme=_programme())


def _programme() -> tuple[Case, ...]:
    """The short programme's cases; they are of no line of the study's file."""
    text = (files("virtoll.run") / _FILE).read_text(encoding="utf-8")
    reader = Reader(text, _FILE, catalogue())
    cases = programme(reader, tomllib.loads(text)["probes"])
    if reader.problems:
        raise StudyError(reader.problems)
    return tuple(dataclasses.replace(case, line=0) for case in cases)
