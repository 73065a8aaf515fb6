"""In the place of Chromium: speaks DevTools at descriptors 3 and 4, of pages that do as they are told.

    python cdp_fake.py MANNER [SIGHTS]

Manners: *ok*; *mute*, answers nothing; *gone*, ends at once; *ends*, ends at the first evaluation; *hang*, answers no
evaluation; *crash*, the page crashes at the first evaluation; *throw*, what is evaluated throws; *garbage*, says what
is no message; *endless*, a message without an end; *chatter*, events without an end, and no answer. ``SIGHTS``: a JSON
list, of which each telling (`virtoll.told()`) takes the next.

An address with *slow* in it is answered when another page is evaluated the next time.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def say(message: dict[str, Any]) -> None:
    os.write(4, json.dumps(message).encode() + b"\0")


def evaluated(expression: str, sights: list[Any]) -> dict[str, Any]:
    if expression == "virtoll.told()":
        return {"result": {"type": "object", "value": sights.pop(0)}}
    return {"result": {"type": "number", "value": len(expression)}}


OPEN: list[str] = []  # pages that are there
SLOW: list[dict[str, Any]] = []  # what is to be answered yet
SIMPLE: dict[str, dict[str, Any]] = {
    "Browser.getVersion": {"product": "Fake/1.0"},
    "Target.createBrowserContext": {"browserContextId": "C1"},
    "Target.createTarget": {"targetId": "T1"},
    "Target.attachToTarget": {"sessionId": "S1"},
}


def answer(manner: str, asked: dict[str, Any], sights: list[Any]) -> dict[str, Any]:
    method = asked["method"]
    if method in ("Target.createTarget", "Target.closeTarget"):
        OPEN[:] = ["T1"] if method == "Target.createTarget" else []
    if method == "Target.getTargets":
        return {"targetInfos": [{"targetId": target} for target in OPEN]}
    if method == "Page.navigate" and "refuse" in asked["params"]["url"]:
        return {"frameId": "F", "errorText": "net::ERR_FAILED"}
    if method == "Runtime.evaluate":
        if manner == "ends":
            sys.exit(3)
        if manner == "throw":
            return {"result": {}, "exceptionDetails": {"text": "Uncaught", "exception": {"description": "Error: no"}}}
        return evaluated(asked["params"]["expression"], sights)
    return SIMPLE.get(method, {})


def main() -> None:
    manner, sights = sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else []
    if manner == "gone":
        sys.exit("no such display")
    rest = b""
    while piece := os.read(3, 65536):
        *texts, rest = (rest + piece).split(b"\0")
        for text in texts:
            serve(manner, json.loads(text), sights)


def serve(manner: str, asked: dict[str, Any], sights: list[Any]) -> None:
    is_evaluation = asked["method"] == "Runtime.evaluate"
    say({"method": "Target.targetInfoChanged", "params": {}})
    if manner == "mute" or (manner == "hang" and is_evaluation):
        return
    if manner == "crash" and is_evaluation:
        say({"method": "Target.targetCrashed", "params": {"targetId": "T1"}})
        return
    if manner == "garbage" and is_evaluation:
        os.write(4, b"{not json\0")
    if manner == "endless" and is_evaluation:
        while True:
            os.write(4, b"x" * 65536)
    while manner == "chatter" and is_evaluation:
        say({"method": "Network.noise", "params": {}})
    if asked["method"] == "Nobody.knows":
        say({"id": asked["id"], "error": {"code": -32601, "message": "'Nobody.knows' wasn't found"}})
        return
    if is_evaluation:
        while SLOW:
            reply(manner, SLOW.pop(), sights)
    if asked["method"] == "Page.navigate" and "slow" in asked["params"]["url"]:
        SLOW.append(asked)
        return
    reply(manner, asked, sights)


def reply(manner: str, asked: dict[str, Any], sights: list[Any]) -> None:
    say({"id": asked["id"], "sessionId": asked.get("sessionId"), "result": answer(manner, asked, sights)})


main()
