"""A BigBlueButton server of its documented API, as far as loads use it, and of what can be wrong with one.

After *API Reference* (docs.bigbluebutton.org/development/api): checksums are verified over the query as it came, errors
have the documented keys, `create` is idempotent, `join` redirects a browser (also where it fails, to the logout URL
with `errors`), and `end` answers before the meeting has ended. Its client is a page that stays connected: who is
connected is in, and has its webcam on then if it sends one. It is no BigBlueButton:
there are no media, and nothing that only a live server would show.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, quote, urlsplit
from xml.sax.saxutils import escape

SECRET = "ECCJZNJWLPEA3YB6Y2LTQGQD3GJZ3F93"  # the documentation's own example
_BY_LENGTH = {40: "sha1", 64: "sha256", 96: "sha384", 128: "sha512"}
Manner = Literal["ok", "html", "huge", "doctype", "status", "redirect", "hang-up", "cut", "echo", "no counts"]
PAGE = """<!doctype html><title>meeting</title><p>in
<script>
const token = new URLSearchParams(location.search).get("sessionToken");
const enter = () => new EventSource("/connection?sessionToken=" + token);
console.error("a client may log its address: " + location.href);
const camera = %s;
if (camera) navigator.mediaDevices.getUserMedia({video: true, audio: true})
    .then(() => fetch("/webcam?sessionToken=" + token)).then(enter);
else enter();
</script>
"""
_LAUGHS = '<!DOCTYPE r [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><response><returncode>&b;</returncode></response>'


@dataclass
class User:
    """Who has joined by the API; in where its client is connected."""

    user: str
    settings: dict[str, str]
    connections: int = 0
    has_video: bool = False


@dataclass
class Meeting:
    values: dict[str, str]
    created: int
    attendee: str
    moderator: str
    ends_after_looks: int | None = None
    users: dict[str, User] = field(default_factory=dict)  # by session token

    @property
    def there(self) -> list[User]:
        return [user for user in self.users.values() if user.connections]


class FailureError(Exception):
    def __init__(self, key: str, message: str = "It cannot be done.") -> None:
        super().__init__(key)
        self.key, self.message = key, message


class BbbServer(ThreadingHTTPServer):
    """On a port of loopback, for the length of a `with` block. ``manner`` is that of API calls; of those in
    ``manner_of`` alone, if there are some. Who is among ``unlisted`` (userIDs) is never listed.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, algorithms: tuple[str, ...] = ("sha1", "sha256", "sha384", "sha512")) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.algorithms = algorithms
        self.manner: Manner = "ok"
        self.manner_of: tuple[str, ...] = ()
        self.unlisted: set[str] = set()
        self.most = 1000  # participants in a meeting
        self.together: threading.Barrier | None = None  # no join is answered before so many were asked for
        self.meetings: dict[str, Meeting] = {}
        self.calls: list[tuple[str, dict[str, str]]] = []  # those whose checksum was right
        self.targets: list[str] = []  # all that was asked for
        self.let_end = True
        self.closed = threading.Event()
        self.lock = threading.RLock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @contextmanager
    def running(self, tls: ssl.SSLContext | None = None) -> Iterator[BbbServer]:
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.closed.set()
            self.shutdown()
            thread.join()
            self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is none."""

    # -- the API -------------------------------------------------------------------------------------------------------

    def checked(self, call: str, query: str) -> dict[str, str]:
        """A call's parameters. FailureError where its checksum is not of the query as it came."""
        parts = query.split("&") if query else []
        given = [part.removeprefix("checksum=") for part in parts if part.startswith("checksum=")]
        rest = "&".join(part for part in parts if not part.startswith("checksum="))
        algorithm = _BY_LENGTH.get(len(given[0]) if given else 0, "")
        if algorithm not in self.algorithms:
            raise FailureError("checksumError", "Checksums do not match")
        if hashlib.new(algorithm, f"{call}{rest}{SECRET}".encode()).hexdigest() != given[0]:
            raise FailureError("checksumError", "Checksums do not match")
        values = {name: found[0] for name, found in parse_qs(rest, keep_blank_values=True).items()}
        self.calls.append((call, values))
        if not values.get("meetingID"):
            raise FailureError("missingParamMeetingID", "You must specify a meeting ID for the meeting.")
        if not 2 <= len(values["meetingID"]) <= 256 or "," in values["meetingID"]:
            raise FailureError("validationError", "Meeting ID must be between 2 and 256 characters")
        return values

    def create(self, values: dict[str, str]) -> str:
        if not values.get("name"):
            raise FailureError("missingParamName", "You must specify a name for the meeting.")
        name, known = values["meetingID"], self.meetings.get(values["meetingID"])
        if known is not None and known.values != values:
            raise FailureError("idNotUnique", "A meeting already exists with that meeting ID.")
        made = known or Meeting(values, 1531155809613, secrets.token_hex(4), secrets.token_hex(4))
        self.meetings[name] = made
        told = {
            "meetingID": name,
            "attendeePW": made.attendee,
            "moderatorPW": made.moderator,
            "createTime": str(made.created),
            "hasUserJoined": "false",
            "hasBeenForciblyEnded": "false",
        }
        if known is not None:
            told["messageKey"] = "duplicateWarning"
        return _success(told)

    def meeting(self, values: dict[str, str]) -> Meeting:
        if values["meetingID"] not in self.meetings:
            raise FailureError("notFound", "A meeting with that ID does not exist")
        return self.meetings[values["meetingID"]]

    def join(self, values: dict[str, str]) -> str:
        """The session token of who has joined."""
        if not values.get("fullName"):
            raise FailureError("missingParamFullName", "You must specify a name for the attendee.")
        meeting = self.meeting(values)
        role, password = values.get("role", "").upper(), values.get("password")
        if role not in ("MODERATOR", "VIEWER") and password not in (meeting.attendee, meeting.moderator):
            raise FailureError(
                "invalidPassword", "The password supplied is neither the attendee or moderator password."
            )
        if values.get("createTime", str(meeting.created)) != str(meeting.created):
            raise FailureError("mismatchCreateTimeParam", "The createTime parameter submitted mismatches.")
        if len(meeting.users) >= self.most:
            raise FailureError("maxParticipantsReached", "The number of participants allowed has been reached.")
        token = secrets.token_hex(8)
        meeting.users[token] = User(values.get("userID", token), values)
        return token

    def get_meeting_info(self, values: dict[str, str]) -> str:
        meeting = self.meeting(values)
        if meeting.ends_after_looks == 0:
            del self.meetings[values["meetingID"]]
            raise FailureError("notFound", "A meeting with that ID does not exist")
        if meeting.ends_after_looks is not None and self.let_end:
            meeting.ends_after_looks -= 1
        there = [user for user in meeting.there if user.user not in self.unlisted]
        listens = [user.settings.get("userdata-bbb_listen_only_mode") == "true" for user in there]
        counts = {
            "participantCount": len(there),
            "listenerCount": sum(listens),
            "voiceParticipantCount": len(there) - sum(listens),
            "videoCount": sum(user.has_video for user in there),
            "moderatorCount": 0,
        }
        told = {"meetingID": values["meetingID"], "running": "true", "endTime": "0", "hasBeenForciblyEnded": "false"}
        if self._manner("getMeetingInfo") != "no counts":
            told |= {name: str(count) for name, count in counts.items()}
        return _success(told, "".join(_attendee(user, on) for user, on in zip(there, listens, strict=True)))

    def end(self, values: dict[str, str]) -> str:
        meeting = self.meeting(values)
        if values.get("password", meeting.moderator) != meeting.moderator:
            raise FailureError("invalidPassword", "The supplied moderator password is incorrect.")
        meeting.ends_after_looks = 1
        return _success({"messageKey": "sentEndMeetingRequest", "message": "A request to end the meeting was sent."})

    def user(self, token: str) -> User | None:
        return next((m.users[token] for m in self.meetings.values() if token in m.users), None)

    def _manner(self, call: str) -> Manner:
        return self.manner if not self.manner_of or call in self.manner_of else "ok"


def _success(values: dict[str, str], attendees: str = "") -> str:
    told = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in values.items())
    return f"<response><returncode>SUCCESS</returncode>{told}<attendees>{attendees}</attendees></response>"


def _attendee(user: User, listens: bool) -> str:
    values = {
        "userID": user.user,
        "fullName": user.settings["fullName"],
        "role": "VIEWER",
        "isPresenter": "false",
        "isListeningOnly": str(listens).lower(),
        "hasJoinedVoice": str(not listens).lower(),
        "hasVideo": str(user.has_video).lower(),
        "clientType": "HTML5",
    }
    return f"<attendee>{''.join(f'<{name}>{escape(value)}</{name}>' for name, value in values.items())}</attendee>"


def failed(key: str, message: str) -> str:
    told = f"<messageKey>{key}</messageKey><message>{escape(message)}</message>"
    return f"<response><returncode>FAILED</returncode>{told}</response>"


class _Handler(BaseHTTPRequestHandler):
    server: BbbServer

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.server.targets.append(self.path)
        token = parse_qs(parts.query).get("sessionToken", [""])[0]
        if parts.path.startswith("/bigbluebutton/api"):
            self._api(parts.path.removeprefix("/bigbluebutton/api").strip("/"), parts.query)
        elif parts.path == "/html5client/" and (user := self.server.user(token)):
            shares = user.settings.get("userdata-bbb_auto_share_webcam") == "true"
            self._say(200, PAGE % json.dumps(shares), "text/html")
        elif parts.path == "/webcam" and (user := self.server.user(token)):
            user.has_video = True
            self._say(200, "", "text/plain")
        elif parts.path == "/connection" and (user := self.server.user(token)):
            self._stay(user)
        elif parts.path == "/logout":
            self._say(200, "<title>logged out</title>", "text/html")
        else:
            self._say(404, "nothing here", "text/plain")

    def _api(self, call: str, query: str) -> None:
        manner = self.server._manner(call)
        if manner in ("ok", "no counts"):
            self._answer(call, query)
        elif manner == "html":
            self._say(200, "<!doctype html><html><body>Welcome to nginx!<br></body></html>", "text/html")
        elif manner == "huge":
            self._say(200, f"<response>{'<a>' + 'a' * 1000 + '</a>' * 1}{' ' * 5 * 2**20}</response>")
        elif manner == "doctype":
            self._say(200, _LAUGHS)
        elif manner == "status":
            self._say(502, f"<html>Bad Gateway for {self.path}</html>", "text/html")
        elif manner == "redirect":
            self._say(302, "", "text/html", f"https://elsewhere.invalid{self.path}")
        elif manner == "cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n<response><returncode>SUCC")
            self.close_connection = True
        elif manner == "echo":
            self._say(200, failed("someError", f"You asked {self.path} with {SECRET}"))
        # "hang-up": not a word

    def _answer(self, call: str, query: str) -> None:
        if call == "join" and self.server.together is not None:
            with contextlib.suppress(threading.BrokenBarrierError):
                self.server.together.wait()
        calls = {
            "create": self.server.create,
            "join": self.server.join,
            "getMeetingInfo": self.server.get_meeting_info,
            "end": self.server.end,
        }
        with self.server.lock:
            try:
                if call not in calls:
                    raise FailureError("unsupportedRequest", "This request is not supported.")
                told = calls[call](self.server.checked(call, query))
            except FailureError as failure:
                if call == "join":
                    errors = quote(json.dumps([{"key": failure.key, "message": failure.message}]))
                    self._say(302, "", "text/html", f"/logout?errors={errors}")
                else:
                    self._say(200, failed(failure.key, failure.message))
                return
        if call == "join":
            self._say(302, "", "text/html", f"/html5client/?sessionToken={told}")
        else:
            self._say(200, told)

    def _stay(self, user: User) -> None:
        """A client that is connected, until it leaves or the server is closed."""
        with self.server.lock:
            user.connections += 1
        try:
            with contextlib.suppress(OSError):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                while not self.server.closed.wait(0.05):
                    self.wfile.write(b": there\n\n")
        finally:
            with self.server.lock:
                user.connections -= 1
        self.close_connection = True

    def _say(self, status: int, text: str, kind: str = "text/xml;charset=utf-8", location: str = "") -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(data)
