"""No clock decides a test: where many share two CPUs, a guest may take minutes to boot, and a daemon to start."""

from __future__ import annotations

from virtoll.agent import client, streams
from virtoll.hosts import cgroup, namespaces, resources
from virtoll.hosts.local import LocalHost
from virtoll.lab import background
from virtoll.lab import client as visitor
from virtoll.platforms import container_network, dockerd, lxc, proxmox_vm, qemu, vm, vmm_api
from virtoll.platforms.engine import Engine
from virtoll.services import janus, postgres, red5, unbound, vlc

_PATIENCE_S = 480.0


def wait_for_boots() -> None:
    """Have a guest's boot, and an agent's answer, take as long as they take: many times as long as elsewhere. The same
    of the daemons of containers, of services that are to answer, of commands that name no time of their own, and of
    what was killed and is to be gone (`stops` has why).
    """
    vm.BOOT_LIMIT_S = client._PATIENCE_S = _PATIENCE_S
    dockerd._START_S = max(dockerd._START_S, _PATIENCE_S)  # nested.patience may have come before
    lxc._LXCFS_START_S = container_network.START_LIMIT_S = _PATIENCE_S
    proxmox_vm._CONNECT_S = qemu._ANSWERS_S = vmm_api.READY_LIMIT_S = visitor._GET_S = visitor._EXCHANGE_S = _PATIENCE_S
    namespaces.LOCK_S, lxc._LOCK_S = int(_PATIENCE_S), _PATIENCE_S
    cgroup._GRACE_S = resources._NETNS_GRACE_S = background._START_S = streams._SEND_PATIENCE_S = _PATIENCE_S
    for service in (janus, postgres, red5, unbound, vlc):
        vars(service)["_READY_S"] = _PATIENCE_S
    for call in (LocalHost.run, client.AgentClient.__init__, client.AgentClient.run, Engine.call):
        assert call.__kwdefaults__ is not None
        call.__kwdefaults__["timeout_s"] = _PATIENCE_S
