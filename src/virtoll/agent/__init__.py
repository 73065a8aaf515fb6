"""The controller's end of the agent inside an instance: JSON lines over any byte stream (docs/PROTOCOL.md)."""

from virtoll.agent.base import (
    Agent,
    ClockOffset,
    ExecResult,
    Got,
    GuestSettings,
    Kind,
    Process,
    Samples,
    Source,
    Stream,
    StreamError,
    StreamTimeoutError,
    Transport,
)
from virtoll.agent.client import PROTOCOL, AgentClient
from virtoll.agent.streams import FdStream, PipeStream, SocketStream

__all__ = [
    "PROTOCOL",
    "Agent",
    "AgentClient",
    "ClockOffset",
    "ExecResult",
    "FdStream",
    "Got",
    "GuestSettings",
    "Kind",
    "PipeStream",
    "Process",
    "Samples",
    "SocketStream",
    "Source",
    "Stream",
    "StreamError",
    "StreamTimeoutError",
    "Transport",
]
