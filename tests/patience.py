"""No clock decides a test: where many share two CPUs, a guest may take minutes to boot, and a daemon to start."""

from __future__ import annotations

from pathlib import Path

from virtoll.agent import client, streams
from virtoll.aggressors import running
from virtoll.hosts import cgroup, changes, ledger, local, lock, namespaces, resources, ssh
from virtoll.hosts.local import LocalHost
from virtoll.hosts.ssh import Ssh
from virtoll.lab import background
from virtoll.lab import client as visitor
from virtoll.platforms import (
    bundle,
    container_network,
    dockerd,
    lxc,
    proxmox_vm,
    qemu,
    qemu_settings,
    vm,
    vmm_api,
    xen_dom0,
)
from virtoll.platforms.engine import Engine
from virtoll.services import daemon, janus, livekit, postgres, red5, unbound, vlc

_PATIENCE_S = 480.0
# What a program of a test's begins with that runs virtoll's code by itself: the tests' own patience is not its.
PATIENT = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
from patience import wait_for_boots
wait_for_boots()
"""


def wait_for_boots() -> None:
    """Have a guest's boot, and an agent's answer, take as long as they take: many times as long as elsewhere. The same
    of the daemons of containers, of services that are to answer, of commands that name no time of their own, of what
    was killed and is to be gone, and of whoever is to give a lock back or to tidy up by himself (`stops` has why).
    """
    vm.BOOT_LIMIT_S = client._PATIENCE_S = client._WHOLE_S = _PATIENCE_S
    dockerd._START_S = max(dockerd._START_S, _PATIENCE_S)  # nested.patience may have come before
    lxc._LXCFS_START_S = container_network.START_LIMIT_S = _PATIENCE_S
    proxmox_vm._CONNECT_S = qemu._ANSWERS_S = vmm_api.READY_LIMIT_S = visitor._GET_S = visitor._EXCHANGE_S = _PATIENCE_S
    namespaces.LOCK_S, lxc._LOCK_S = int(_PATIENCE_S), _PATIENCE_S
    cgroup._GRACE_S = resources._NETNS_GRACE_S = background._START_S = streams._SEND_PATIENCE_S = _PATIENCE_S
    running._FLOOD_GRACE_S = _PATIENCE_S
    local._DYING_S = lock._GRACE_S = ledger._LOCK_GRACE_S = ssh._CONNECT_S = _PATIENCE_S
    bundle._STOP_S = lxc._STOP_S = qemu_settings._ASKED_S = vmm_api.REQUEST_LIMIT_S = _PATIENCE_S
    xen_dom0.CREATE_LIMIT_S = xen_dom0.BACKENDS_LIMIT_S = _PATIENCE_S
    vm._ENDING_S = 60.0  # there are streams that end, and their monitors live on
    changes._GRACE_MS = int(_PATIENCE_S * 1000)
    for service in (janus, livekit, postgres, red5, unbound, vlc):
        vars(service)["_READY_S"] = _PATIENCE_S
    red5._LISTENS_S = _PATIENCE_S
    for call in (LocalHost.run, Ssh.run, client.AgentClient.__init__, client.AgentClient.run, Engine.call):
        assert call.__kwdefaults__ is not None
        call.__kwdefaults__["timeout_s"] = _PATIENCE_S
    Engine.attach.__defaults__ = (_PATIENCE_S,)
    assert daemon.start.__kwdefaults__ is not None
    daemon.start.__kwdefaults__["deadline_s"] = _PATIENCE_S
    running.Running.stop.__defaults__ = (_PATIENCE_S,)


def wait_for_loads() -> None:
    """Have who drives a service answer when it can: beyond what it was told to take, its process has to begin, and all
    of its threads, and to end. (Verbs that measure nothing load none of these.)
    """
    from virtoll.instruments import base as instruments
    from virtoll.loads import (
        bbb_api,
        bigbluebutton,
        conversation,
        native,
        outside,
        participants,
        program,
        publishing,
        users,
        viewing,
    )

    for load in (native, participants, publishing, viewing):
        vars(load)["_SPARE_S"] = _PATIENCE_S
    for tool in (instruments, program):
        vars(tool)["_GRACE_S"] = _PATIENCE_S
    outside._GRACE_S, outside._BEGINS_S = round(_PATIENCE_S), _PATIENCE_S
    publishing._PATIENCE_NS = round(_PATIENCE_S * 1e9)
    conversation._LEAVE_S = users._ANSWER_S = bbb_api._CONNECT_S = bigbluebutton._END_S = _PATIENCE_S
    checksum, _ = bbb_api.Api.__init__.__defaults__ or ()
    bbb_api.Api.__init__.__defaults__ = checksum, _PATIENCE_S  # timeout_s
