"""How long it takes from the start of an instance to its first useful answer, and where the time goes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from virtoll.binaries import binary
from virtoll.errors import AgentError, Problem
from virtoll.hosts.local import end_session
from virtoll.lab.client import Client, Ready, target_of
from virtoll.offers import Http, HttpObject, Port
from virtoll.probes.base import Place, Probe, ProbeError, ProbeResult
from virtoll.record.model import Check, Phase, Quantity, Window
from virtoll.services import daemon
from virtoll.services.nginx import Nginx
from virtoll.units import within

_OBJECT_BYTES = 10_000  # of the answer that counts: a few segments
_HEAD_START_S = 0.1  # for the program that asks to be asking when the service is started
_PATIENCE_S = 10.0  # beyond the deadline, for that program to report
_SAME_CLOCK_NS = 1_000_000  # an instance whose clock is this near to the host's has the host's kernel


@dataclass(frozen=True)
class BootSettings:
    """``deadline``: how long the service may take to its first answer; ``poll``: how often it is asked for one."""

    deadline_ns: int = within(60_000_000_000, least=1_000_000)
    poll_ns: int = within(1_000_000, least=100_000)


@dataclass(frozen=True)
class _Kernel:
    """A guest's own kernel: when it began, by the host's CLOCK_MONOTONIC, and how well that is known."""

    start_ns: int
    blur_ns: int


class Boot(Probe):
    """The deployment's own record of how it came up, and one start of a real service in it (nginx)."""

    name: ClassVar[str] = "boot"
    summary: ClassVar[str] = "scaling out, serverless: how long from an instance's start to its first answer"
    quantities: ClassVar[Mapping[str, Quantity]] = {
        "start_to_agent_s": Quantity("From start to the agent's answer", "s", "less"),
        "before_kernel_s": Quantity("From start to the guest's kernel", "s", "less"),
        "kernel_s": Quantity("From the guest's kernel to the agent's answer", "s", "less"),
        "service_s": Quantity("Starting a service (nginx)", "s", "less"),
        "start_to_service_s": Quantity("From start to the service's first answer", "s", "less"),
    }
    headline: ClassVar[str] = "start_to_service_s"
    packages: ClassVar[tuple[str, ...]] = Nginx.packages
    ports: ClassVar[tuple[Port, ...]] = (Port(Nginx.port),)
    tells_of_start: ClassVar[bool] = True
    Settings: ClassVar[type[BootSettings]] = BootSettings
    settings: BootSettings

    def run(self, place: Place) -> ProbeResult:
        """Read off how the instance came up; start the service once, and end it again."""
        deploy = _deploy_phase(place.deployment)
        kernel = _kernel(place)
        start_ns, ready, told = self._served(place)
        service_s = (ready.ready_ns - start_ns) / 1e9
        agent_s = deploy.duration_ns / 1e9
        values = {"start_to_agent_s": agent_s, "service_s": service_s, "start_to_service_s": agent_s + service_s}
        checks = [_correct(told)]
        if kernel is not None:
            values |= _kernel_values(deploy, kernel)
            checks.append(_plausible(deploy, kernel))
        return ProbeResult(
            instrument="the controller's clock, virtoll-load wait",
            windows=[Window(start_ns=start_ns, duration_ns=ready.ready_ns - start_ns, work=1, values=values)],
            facts=_facts(place.deployment, deploy, kernel, ready),
            checks=checks,
            notes=[] if ready.attempts > 1 else ["the service was there at the first question: service_s is a bound"],
        )

    def _served(self, place: Place) -> tuple[int, Ready, list[Problem]]:
        """When the service was started and when it answered; and what is wrong with its answer."""
        instance, service = place.instance, Nginx()
        offer = Http(instance.attachment.endpoint_address, service.port)
        wanted = HttpObject(_OBJECT_BYTES)
        configuration = f"{daemon.DIRECTORY}/{self.name}.conf"
        instance.agent.put(configuration, service.configuration().encode())
        service.hold(instance, [wanted])
        if instance.agent.listening(service.port):
            raise ProbeError(
                f"port {service.port} is taken before the service was started",
                kind="refused",
                where=f"probe {self.name}, inside the instance",
                remedy="another probe has left a server behind: its own fault to mend",
            )
        with _asking(place.client, offer, wanted.path, self.settings) as asking:
            start_ns = time.monotonic_ns()
            pid = instance.agent.spawn(service.argv(configuration), log=daemon.log_path(self.name))
            try:
                ready = _answer(asking, self.settings, place)
                wrong = service.verify(offer, place.client, wanted)
            finally:
                with suppress(AgentError):  # the instance may have died, and that is not what is to be told
                    instance.agent.kill(pid)
        return start_ns, ready, wrong


@contextmanager
def _asking(client: Client, offer: Http, path: str, settings: BootSettings) -> Iterator[subprocess.Popen[bytes]]:
    """A program at the generator's (`virtoll-load wait`) that asks for ``path`` until it gets an answer."""
    spec = {
        "target": target_of(offer, path),
        "answer": True,
        "deadline_ns": settings.deadline_ns + round(_HEAD_START_S * 1e9),
        "poll_ns": settings.poll_ns,
    }
    pipe = subprocess.PIPE
    argv = [str(binary("virtoll-load")), "wait"]
    asking = client.host.spawn(argv, stdin=pipe, stdout=pipe, stderr=pipe, confinement=client.confinement)
    with asking:
        try:
            assert asking.stdin is not None
            asking.stdin.write(json.dumps(spec).encode())
            asking.stdin.close()
            asking.stdin = None  # else `communicate` would write to it
            time.sleep(_HEAD_START_S)
            yield asking
        finally:
            end_session(asking)


def _answer(asking: subprocess.Popen[bytes], settings: BootSettings, place: Place) -> Ready:
    """What the asking program found; ProbeError with its words, and the service's, where that was no answer."""
    try:
        told, said = asking.communicate(timeout=settings.deadline_ns / 1e9 + _PATIENCE_S)
    except subprocess.TimeoutExpired:
        told, said = b"", b"virtoll-load wait does not report"
    if told and asking.returncode == 0:
        return Ready(**json.loads(told))
    log = daemon.log_tail(place.instance.agent, daemon.log_path(Boot.name))
    raise ProbeError(
        f"the service did not answer: {said.decode(errors='replace').strip()}\n{log}",
        kind="peer",
        where=f"probe {Boot.name}",
        remedy="its log names the cause; or give it longer: deadline",
    )


def _deploy_phase(phases: Sequence[Phase]) -> Phase:
    """The deployment that this instance is from: the last, should there have been others."""
    return [phase for phase in phases if phase.name == "deploy"][-1]


def _kernel(place: Place) -> _Kernel | None:
    """The instance's own kernel; None where it shares the host's, and so its clock.

    A guest's CLOCK_MONOTONIC begins at 0 with its kernel's timekeeping, within the first milliseconds of its life.
    """
    clock = place.instance.agent.clock()
    if abs(clock.offset_ns) <= clock.round_trip_ns + _SAME_CLOCK_NS:
        return None
    return _Kernel(start_ns=-clock.offset_ns, blur_ns=clock.round_trip_ns)


def _kernel_values(deploy: Phase, kernel: _Kernel) -> dict[str, float]:
    before_ns = kernel.start_ns - deploy.start_ns
    return {"before_kernel_s": before_ns / 1e9, "kernel_s": (deploy.duration_ns - before_ns) / 1e9}


def _plausible(deploy: Phase, kernel: _Kernel) -> Check:
    """A guest's clock that has not kept the host's pace since would put the kernel's start elsewhere."""
    after_start_ns = kernel.start_ns - deploy.start_ns
    return Check(
        name="the guest's kernel began while it was deployed",
        passed=0 <= after_start_ns <= deploy.duration_ns,
        detail=f"{after_start_ns / 1e9:.3f} s after its start, of {deploy.duration_ns / 1e9:.3f} s",
    )


def _correct(problems: Sequence[Problem]) -> Check:
    told = "; ".join(problem.what for problem in problems)
    return Check(name="the service answered correctly", passed=not problems, detail=told or "status, length, digest")


def _facts(phases: Sequence[Phase], deploy: Phase, kernel: _Kernel | None, ready: Ready) -> dict[str, Any]:
    own_kernel = {"kernel_blur_ns": kernel.blur_ns} if kernel is not None else {}
    return {
        "session_s": sum(phase.duration_ns for phase in phases if phase.name == "session") / 1e9,
        "own_kernel": kernel is not None,
        **own_kernel,
        "age_s": (ready.ready_ns - deploy.start_ns) / 1e9,  # of the deployment, when the service answered
        "attempts": ready.attempts,
    }
