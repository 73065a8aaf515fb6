"""What man(1) is told of the command line, made from its parser when asked for.

No kept generator of manual pages for argparse is to be had as a wheel.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from virtoll import __version__
from virtoll.cli.parser import verbs_of
from virtoll.errors import EXIT_CODES
from virtoll.manual import topics


def man_page(parser: argparse.ArgumentParser) -> str:
    """virtoll(1), in the macros of man(7)."""
    lines = [
        f'.TH VIRTOLL 1 "" "virtoll {__version__}" "User Commands"',
        *_section("NAME", [rf"virtoll \- {_roff(parser.description or '')}"]),
        *_section("SYNOPSIS", [".B virtoll", r".I VERB", r"[\fIARGUMENTS\fR]"]),
        ".SH VERBS",
    ]
    helps = _helps(parser)
    for name, verb in verbs_of(parser).items():
        lines += [f".SS {name}", _sentence(helps[name]), *_usage(verb)]
        for action in verb._actions:
            if not isinstance(action, argparse._HelpAction):
                lines += [".TP", _invocation(action), _sentence(_expanded(action))]
        if verb.epilog:
            lines += [".PP", _sentence(verb.epilog)]
    lines += [".SH MANUAL", r"\fBvirtoll help\fR \fITOPIC\fR shows a page:"]
    for topic, title in topics().items():
        lines += [".TP", rf"\fB{_roff(topic)}\fR", _sentence(title)]
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXIT_CODES.items():
        lines += [".TP", rf"\fB{code}\fR", _sentence(meaning)]
    lines += [
        ".SH ENVIRONMENT",
        ".TP",
        r"\fBNO_COLOR\fR",
        "When set to anything, no colours are printed.",
        ".TP",
        r"\fBVIRTOLL_STATE\fR",
        "Where ledger and lock are kept (/var/lib/virtoll).",
        ".TP",
        r"\fBVIRTOLL_CACHE\fR",
        "Where images and kernels are kept (/var/cache/virtoll).",
        ".TP",
        r"\fBVIRTOLL_BBB_SECRET_FILE\fR",
        "The file with the secret of a BigBlueButton server that is a target; nobody but its owner may use it.",
    ]
    return "\n".join(lines) + "\n"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f".SH {title}", *lines]


def _helps(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Each verb's own line."""
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {action.dest: action.help or "" for action in subparsers._choices_actions}


def _usage(verb: argparse.ArgumentParser) -> Iterator[str]:
    words = " ".join(verb.format_usage().split()).removeprefix("usage: ").replace(" [-h]", "")
    yield from (".PP", ".nh", ".ad l", _roff(words), ".ad b", ".hy")


def _invocation(action: argparse.Action) -> str:
    """``--out DIR`` or ``what``, with the words it may be."""
    value = action.metavar if isinstance(action.metavar, str) else action.dest
    if not action.option_strings:
        words = f"({', '.join(map(str, action.choices))})" if action.choices else ""
        return rf"\fI{_roff(value)}\fR {_roff(words)}".rstrip()
    options = ", ".join(rf"\fB{_roff(option)}\fR" for option in action.option_strings)
    return options if action.nargs == 0 else rf"{options} \fI{_roff(value)}\fR"


def _expanded(action: argparse.Action) -> str:
    return (action.help or "") % vars(action) if "%(" in (action.help or "") else (action.help or "").replace("%%", "%")


def _sentence(text: str) -> str:
    return _roff(text[:1].upper() + text[1:].rstrip(".") + "." if text else "")


def _roff(text: str) -> str:
    """``text`` without what roff would take as an order: backslashes, hyphens to be kept, lines that begin with one."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
