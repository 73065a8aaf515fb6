"""BigBlueButton, which is not deployed: its load goes to a server that is there already."""

from __future__ import annotations

from typing import ClassVar

from virtoll.errors import Problem, TrialError
from virtoll.offers import BigBlueButton, Content, Offer
from virtoll.platforms.base import Instance
from virtoll.services.base import Service, Visitor

_WHAT = "BigBlueButton is not deployed by virtoll: it is measured where it is"
_REMEDY = "virtoll run STUDY --target https://HOST/bigbluebutton/"


class BigBlueButtonServer(Service):
    """What a study of BigBlueButton names, so that its load has what it takes."""

    name: ClassVar[str] = "bigbluebutton"
    summary: ClassVar[str] = "a BigBlueButton server of yours: for --target alone, never deployed"
    port: ClassVar[int] = 443
    offered: ClassVar[tuple[type[Offer], ...]] = (BigBlueButton,)

    def problems(self, origin: Service | None) -> list[Problem]:  # noqa: ARG002
        """It is deployed nowhere."""
        return [Problem(_WHAT, "[service] name", _REMEDY)]

    def start(self, instance: Instance, behind: Offer | None) -> Offer:  # noqa: ARG002
        """TrialError: `problems` said so before."""
        raise TrialError(_WHAT, remedy=_REMEDY)

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> None:
        """Its load's own checks are made: the server's counts."""
