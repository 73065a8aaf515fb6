"""PostgreSQL is ready when it lets users in, which is later than it listens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from virtoll.errors import TrialError
from virtoll.offers import Offer, Postgres
from virtoll.services.postgres import PostgresServer, PostgresSettings

OFFER = Postgres("198.18.3.10", 5432)


class Visits:
    """Answers greetings one after the other; the last one for ever."""

    def __init__(self, *answers: bytes | TrialError) -> None:
        self.answers = list(answers)
        self.greeted = 0

    def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        """What is next."""
        assert (offer, most_bytes) == (OFFER, 1)
        length = int.from_bytes(sent[:4], "big")
        assert sent[4:8] == bytes.fromhex("00030000")
        assert sent[8:length] == b"user\0postgres\0database\0postgres\0\0"
        assert sent[length:] == b"X\0\0\0\4", "it says good-bye: else the server's log is full of lost connections"
        self.greeted += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, TrialError):
            raise answer
        return answer


def ready(visits: Visits, code: int | None = None) -> None:
    agent = SimpleNamespace(returncode=lambda _pid: code, tail=lambda *_: b"what it said")
    instance: Any = SimpleNamespace(agent=agent, services={"postgres": 7}, platform="double")
    PostgresServer(PostgresSettings()).await_ready(instance, OFFER, cast(Any, visits))


def test_one_that_starts_up_is_waited_for() -> None:
    visits = Visits(b"E", TrialError("no answer: ConnectionResetError"), b"R")
    ready(visits)
    assert visits.greeted == 3


def test_one_that_ends_meanwhile_is_told_with_its_log() -> None:
    with pytest.raises(
        TrialError, match="postgres ended with code 1 before it was ready; its log ends with:\nwhat it said"
    ):
        ready(Visits(b"E"), code=1)


@pytest.mark.parametrize(("said", "right"), [(b"R", True), (b"E", False), (b"", False)])
def test_it_is_verified_by_letting_users_in(said: bytes, right: bool) -> None:
    problems = PostgresServer(PostgresSettings()).verify(OFFER, cast(Any, Visits(said)), None)
    assert (not problems) is right
