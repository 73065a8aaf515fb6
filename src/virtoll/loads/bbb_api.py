"""BigBlueButton's API: its calls, their checksums, and its answers in XML, which are a stranger's.

Source: BigBlueButton, *API Reference* (docs.bigbluebutton.org/development/api). A call is an HTTP GET whose query ends
in `checksum`: the digest of the call's name, the rest of the query, and a secret that the server shares with whoever
may ask. Who has such a URL can use it as long as its meeting is there. So no query is in any error, and none is logged.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import re
import socket
import ssl
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlencode
from xml.parsers import expat

from virtoll.errors import Problem, StudyError, TrialError
from virtoll.offers import BigBlueButton
from virtoll.plain import printable

SECRET_FILE = "VIRTOLL_BBB_SECRET_FILE"  # the environment's variable that names the file with the secret
Checksum = Literal["sha256", "sha512", "sha384", "sha1"]

_MOST_BYTES = 4 * 2**20  # of an answer: an attendee takes about 500, and there are 1,000 at most
_MOST_DEPTH, _MOST_ATTENDEES = 16, 10_000
_MOST_SECRET_BYTES = 1024
_MOST_WORDS = 400  # characters, of what a server or a browser says in an error
_PIECE_BYTES = 2**16
_CONNECT_S = 10.0
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,29}")  # shorter than any digest, and than the secret that a server makes
# What stands in URLs that are as good as a password, and in a server's own words about one.
_OPENS = re.compile(r"(?i)\b(checksum|sessionToken|password|[a-z]+PW)([=:]|%3D|\"\s*:\s*\"?)[^&\s\"'<>]*")
# What may be a secret where a path is asked for: what the server makes has neither a dot nor a slash.
_LIKE_A_SECRET = re.compile(r"[A-Za-z0-9-]{24,}")
_DIGEST = re.compile(r"[0-9a-fA-F]{40,}")


@dataclass(frozen=True)
class Secret:
    """What the server shares with whoever may use its API; it shows in no text."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "(a secret)"

    @classmethod
    def read(cls) -> Secret:
        """That of the file which `SECRET_FILE` names. StudyError where there is none, or where others can read it."""
        named = os.environ.get(SECRET_FILE, "")
        if not named:
            remedy = f"write what `bbb-conf --secret` prints to a file, chmod 600, and set {SECRET_FILE} to its path"
            raise StudyError([Problem("no file with the server's secret is named", SECRET_FILE, remedy)])
        where = SECRET_FILE if _LIKE_A_SECRET.fullmatch(named) else f"{SECRET_FILE}: {named}"
        try:
            with os.fdopen(os.open(named, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe has no other end yet
                mode = os.fstat(file.fileno()).st_mode
                if not stat.S_ISREG(mode):
                    raise StudyError([Problem("is no file", where, "name the file that holds the secret")])
                if mode & 0o077:
                    what = f"others than its owner may use it (mode {stat.S_IMODE(mode):o})"
                    raise StudyError([Problem(what, where, f"chmod 600 {named}")])
                text = file.read(_MOST_SECRET_BYTES + 1)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "is no path"
            raise StudyError(
                [Problem(f"cannot be read: {why}", where, "correct the path, or the file's owner")]
            ) from None
        secret = text.strip()
        if not secret or len(secret) > _MOST_SECRET_BYTES or not re.fullmatch(rb"[!-~]+", secret):
            what = "holds no secret: that is one line of letters, digits and signs, and nothing else"
            raise StudyError([Problem(what, where, "write the secret alone, as `bbb-conf --secret` prints it")])
        return cls(secret.decode("ascii"))


@dataclass(frozen=True)
class Attendee:
    """One whom the server counts."""

    user: str  # the userID that it was given in its join URL
    has_video: bool
    has_voice: bool
    is_listening_only: bool


@dataclass(frozen=True)
class Answer:
    """What a call told: the elements right below the root, by name, and the attendees where there are some."""

    values: Mapping[str, str]
    attendees: tuple[Attendee, ...] = ()

    @property
    def key(self) -> str:
        """The messageKey, by which errors are told apart; "" where it is none."""
        return known_key(self.values.get("messageKey"))

    def count(self, name: str) -> int:
        """A number of something. ValueError where the answer has none of that name."""
        text = self.values.get(name, "")
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise ValueError(f"no number in <{name}>")
        return int(text)


def known_key(told: object) -> str:
    """What may be a messageKey, and nothing else that a server says; "" where it is none."""
    return told if isinstance(told, str) and _KEY.fullmatch(told) else ""


def parse(data: bytes) -> Answer:
    """What an answer says. ValueError where it is none: not XML, too long or too deep, or with a document type.

    Without a document type there are no entities but the five that XML has, and nothing is expanded or fetched.
    """
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it is longer than {_MOST_BYTES // 2**20} MiB")
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartElementHandler, parser.EndElementHandler = reader.begin, reader.end
    parser.CharacterDataHandler = reader.text
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, UnicodeError) as error:  # an encoding may be of any name
        raise ValueError(f"it is not XML: {printable(str(error))[:_MOST_WORDS]}") from None
    if reader.root != "response":
        raise ValueError(f"its root is <{printable(reader.root)[:64]}>, and not <response>")
    return Answer(reader.values, tuple(reader.attendees))


def _refuse_doctype(*_: object) -> None:
    raise ValueError("it has a document type, and no answer of BigBlueButton's has one")


class _Reader:
    """Reads elements as they come, and keeps no tree of them: of each name the first counts."""

    def __init__(self) -> None:
        self.root = ""
        self.values: dict[str, str] = {}
        self.attendees: list[Attendee] = []
        self._path: list[str] = []
        self._words: list[str] = []
        self._of_one: dict[str, str] = {}

    def begin(self, name: str, _attributes: object) -> None:
        self._path.append(name)
        self._words = []
        self.root = self._path[0]
        if len(self._path) > _MOST_DEPTH:
            raise ValueError("its elements lie deeper in each other than any answer's")

    def text(self, words: str) -> None:
        self._words.append(words)

    def end(self, name: str) -> None:
        words, self._words = "".join(self._words).strip(), []
        path = self._path[1:]
        self._path.pop()
        if len(path) == 1:
            self.values.setdefault(name, words)
        elif path[:2] == ["attendees", "attendee"]:
            if len(path) == 3:
                self._of_one.setdefault(name, words)
            elif len(path) == 2:
                self._keep()

    def _keep(self) -> None:
        told, self._of_one = self._of_one, {}
        if len(self.attendees) >= _MOST_ATTENDEES:
            raise ValueError(f"it lists more than {_MOST_ATTENDEES:,} attendees")
        video, voice, listens = (told.get(n) == "true" for n in ("hasVideo", "hasJoinedVoice", "isListeningOnly"))
        self.attendees.append(Attendee(told.get("userID", ""), video, voice, listens))


class Refused(TrialError):  # noqa: N818 - what the server did
    """The server answered a call with an error of its own; ``key`` says which (its messageKey)."""

    def __init__(self, key: str, what: str, *, where: str, remedy: str) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.key = key


class UnansweredError(TrialError):
    """No answer of the API's came: nobody there, no TLS, no XML."""


_REMEDIES = {
    "checksumError": f"write the secret that `bbb-conf --secret` prints on that server to the file of {SECRET_FILE}; "
    "if it is that one, the server may not take the digest: see [load] checksum",
    "notFound": "the meeting is gone: somebody ended it, or the server was started anew; run it again",
    "invalidMeetingIdentifier": "the meeting is gone: somebody ended it, or the server was started anew; run it again",
    "idNotUnique": "run it again: each meeting has a name drawn anew",
    "unsupportedRequest": "see whether the URL is the one that `bbb-conf --secret` prints",
    "maxParticipantsReached": "ask for fewer [load] participants, or let the server take more",
}
_GONE = ("notFound", "invalidMeetingIdentifier", "meetingForciblyEnded")


def is_gone(error: Refused) -> bool:
    """Whether the server says that there is no such meeting (any more)."""
    return error.key in _GONE


@dataclass(frozen=True)
class Api:
    """The API of one server. ``path``: "/bigbluebutton/", as its URL has it; ``timeout_s``: for a call as a whole."""

    offer: BigBlueButton
    path: str
    secret: Secret
    checksum: Checksum = "sha256"
    timeout_s: float = 10.0

    @property
    def base(self) -> str:
        """The path that calls are below."""
        return self.path.partition("?")[0].rstrip("/").removesuffix("/api") + "/api"

    def query(self, call: str, values: Mapping[str, str]) -> str:
        """A call's query with its checksum: to be sent, and never to be shown."""
        query = urlencode(values)
        digest = hashlib.new(self.checksum, f"{call}{query}{self.secret.text}".encode()).hexdigest()
        return f"{query}{'&' if query else ''}checksum={digest}"

    def join_url(self, values: Mapping[str, str]) -> str:
        """Where a user's browser goes to enter a meeting: as good as a password, and never to be shown."""
        return f"{self.offer.url(self.base)}/join?{self.query('join', values)}"

    def ask(self, call: str, values: Mapping[str, str]) -> Answer:
        """The answer to a call that went well. Refused with the server's own error, UnansweredError without any."""
        where = f"{self.offer.url(self.base)}/{call}"
        data = self._fetch(f"{self.base}/{call}?{self.query(call, values)}", where)
        try:
            answer = parse(data)
        except ValueError as error:
            remedy = "see whether the URL is the one that `bbb-conf --secret` prints, and what stands in front of it"
            what = f"the answer is none of BigBlueButton's: {self.hidden(str(error))}"
            raise UnansweredError(what, where=where, remedy=remedy) from None
        if answer.values.get("returncode", "").upper() == "SUCCESS":
            return answer
        key = answer.key or "an error without a key"
        said = self.hidden(answer.values.get("message", ""))
        what = f"the server refuses the call: {key}{f' ({said})' if said else ''}"
        raise Refused(
            answer.key, what, where=where, remedy=_REMEDIES.get(key, "see the server's log: bbb-conf --check")
        )

    def hidden(self, text: str) -> str:
        """A server's or a browser's words, short, and without what opens a meeting or the API."""
        shown = printable(text.replace(self.secret.text, "..."))
        return _DIGEST.sub("...", _OPENS.sub(r"\1\2...", shown))[:_MOST_WORDS].strip()

    @cached_property
    def _context(self) -> ssl.SSLContext:
        """Made once: to read this machine's authorities takes a look's time."""
        return ssl.create_default_context()

    def _fetch(self, target: str, where: str) -> bytes:
        deadline = time.monotonic() + self.timeout_s
        timeout_s = min(_CONNECT_S, self.timeout_s)
        connection = http.client.HTTPConnection(self.offer.host, self.offer.port, timeout=timeout_s)
        try:
            if self.offer.is_tls:
                host, port, context = self.offer.host, self.offer.port, self._context
                connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
            connection.request("GET", target, headers={"Accept": "application/xml, text/xml", "User-Agent": "virtoll"})
            return _read(_response(connection.sock, deadline))
        except ssl.SSLCertVerificationError as error:
            what = f"its certificate is not to be trusted: {self.hidden(error.verify_message)}"
            remedy = "let the server have a certificate of an authority that this machine trusts, for that name"
            raise UnansweredError(what, where=where, remedy=remedy) from None
        except ssl.SSLError as error:
            what = f"no TLS is spoken there: {self.hidden(error.reason or str(error))}"
            raise UnansweredError(what, where=where, remedy="see whether host and port are those of https") from None
        except (OSError, http.client.HTTPException) as error:
            said = error.strerror if isinstance(error, OSError) else ""
            what = f"no whole answer: {self.hidden(said or str(error) or type(error).__name__)}"
            remedy = "see whether the server is up and reached from here; `bbb-conf --status` on it"
            raise UnansweredError(what, where=where, remedy=remedy) from None
        finally:
            connection.close()


class _Until(io.RawIOBase):
    """What comes by a socket until a deadline; TimeoutError then, also where each piece comes in time."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._socket, self._deadline = connected, deadline

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`."""
        left_s = self._deadline - time.monotonic()
        try:
            if left_s > 0:
                self._socket.settimeout(left_s)
                return self._socket.recv_into(buffer)
        except TimeoutError:
            pass
        raise TimeoutError("it had not come to its end in time")


def _response(connected: socket.socket, deadline: float) -> http.client.HTTPResponse:
    """An answer whose head has come, all of it until the deadline: http.client itself would wait for each line."""
    response = http.client.HTTPResponse(connected, method="GET")
    response.fp.close()
    response.fp = io.BufferedReader(_Until(connected, deadline))
    response.begin()
    return response


def _read(response: http.client.HTTPResponse) -> bytes:
    """The body of an answer. Errors carry no `Location`: it may hold what opens a meeting."""
    if response.status != 200:
        raise http.client.HTTPException(f"HTTP status {response.status}")
    data = b""
    while piece := response.read1(_PIECE_BYTES):
        data += piece
        if len(data) > _MOST_BYTES:
            raise http.client.HTTPException(f"longer than {_MOST_BYTES // 2**20} MiB")
    if response.length:
        raise http.client.HTTPException(f"{response.length} bytes of it are missing")
    return data
