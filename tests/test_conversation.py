"""How long a generator's answer is waited for where its window is to begin at a time that others need."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from virtoll.errors import TrialError
from virtoll.lab.client import Client
from virtoll.loads.base import Load
from virtoll.loads.conversation import Conversation, ahead_s
from virtoll.loads.http import HttpLoad, HttpSettings
from virtoll.loads.viewers import ViewersLoad, ViewersSettings
from virtoll.offers import Http

SECOND = 10**9
AHEAD_S = 10_000  # far more than any of them waits by itself, and than a machine stands still
LOADS = [HttpLoad(HttpSettings()), ViewersLoad(ViewersSettings(patience_ns=SECOND))]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_a_common_start_far_ahead_is_waited_for(load: Load, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside servers whose viewers take long to join, a load is asked long before its own window."""
    waited: list[float] = []

    def ask(_self: Conversation, _line: bytes, timeout_s: float) -> dict[str, Any]:
        waited.append(timeout_s)
        raise TrialError("enough", where="here")

    monkeypatch.setattr(Conversation, "ask", ask)
    start_ns = time.monotonic_ns() + AHEAD_S * SECOND
    with load.session(client, Http("127.0.0.1", 9)) as session:
        for at_ns in (start_ns, None):
            with pytest.raises(TrialError, match="enough"):
                session.measure(start_ns=at_ns)
    with_start, without = waited
    assert with_start > AHEAD_S / 2 > without


def test_a_start_that_has_passed_is_not_ahead() -> None:
    assert ahead_s(None) == ahead_s(time.monotonic_ns() - 1) == 0
    assert ahead_s(time.monotonic_ns() + AHEAD_S * SECOND) > AHEAD_S / 2


def test_a_generator_is_heard_beside_any_number_of_open_files(numbered_high: Callable[[int], int]) -> None:
    ours, theirs = os.pipe()
    high = numbered_high(ours)
    process = SimpleNamespace(stdout=SimpleNamespace(fileno=lambda: high))
    conversation = Conversation(cast(Any, process), "virtoll-load", "generator 1", "here")
    os.write(theirs, b'{"told": 1}\n')
    assert conversation.read(AHEAD_S) == {"told": 1}
    with pytest.raises(TrialError, match="generator 1: it does not answer"):
        conversation.read(0.0)
    os.close(theirs)
    os.close(ours)
