"""What a service has counted by itself is noted before the warm-up and after the window; where it cannot tell, why."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from virtoll.errors import Problem, TrialError
from virtoll.lab.client import Client
from virtoll.offers import Content, Offer, Rtmp
from virtoll.platforms.base import Instance
from virtoll.services.base import Service, Visitor
from virtoll.trial import proofs
from virtoll.trial.notes import Notes
from virtoll.trial.searching import SearchedService
from virtoll.trial.subjects import DrivenService


class Counting(Service):
    """Has moved a hundred bytes more each time somebody verifies or asks."""

    told: dict[str, int] | TrialError

    def start(self, instance: Instance, behind: Offer | None) -> Offer:
        raise AssertionError("it runs")

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:
        if isinstance(self.told, dict) and self.told:
            self.told = {"bytes_out": self.told["bytes_out"] + 100}
        return []

    def counted(self, offer: Offer, visitor: Visitor) -> dict[str, int]:
        if isinstance(self.told, TrialError):
            raise self.told
        return self.told


def facts(told: dict[str, int] | TrialError, monkeypatch: pytest.MonkeyPatch, *, searched: bool = False) -> Any:
    """Those of a trial from its preparation to its proof."""
    service: Any = Counting()
    service.told = told
    window = SimpleNamespace(work=1)
    nothing: Any = SimpleNamespace(content=None, windows=(window,), unit="byte", asked="byte")
    there = (service, nothing, nothing, Rtmp("198.18.3.10", 1935), cast(Client, nothing), nothing, False, nothing)
    subject = SearchedService(*there, search=nothing) if searched else DrivenService(*there)
    notes = Notes(Path("/nowhere"), lambda _name: None)
    monkeypatch.setattr(DrivenService, "prove_ours", lambda *_: None)
    monkeypatch.setattr(SearchedService, "prove_ours", lambda *_: None)
    monkeypatch.setattr(proofs, "of_requests", lambda *_: None)
    subject.prepare(notes)
    subject.prove(notes, nothing, nothing)
    assert [check.passed for check in notes.checks] == [True] * (3 if searched else 2)
    return notes.facts


@pytest.mark.parametrize("searched", [False, True], ids=["driven", "searched"])
def test_counts_are_noted_without_what_verifications_add(monkeypatch: pytest.MonkeyPatch, searched: bool) -> None:
    assert facts({"bytes_out": 1000}, monkeypatch, searched=searched) == {
        "counted": {"before": {"bytes_out": 1100}, "after": {"bytes_out": 1100}}
    }


def test_a_service_that_keeps_no_count_notes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts({}, monkeypatch) == {}


def test_why_a_count_is_missing_is_noted_and_no_trial_fails_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    (told,) = facts(TrialError("no answer: timed out"), monkeypatch).values()
    assert told == {when: {"not told": "no answer: timed out"} for when in ("before", "after")}
