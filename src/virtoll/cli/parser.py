"""What the command line looks like: verbs, their arguments and their help. What a verb does, `virtoll.cli` says."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from virtoll import __version__
from virtoll.hosts.tuning import KNOBS
from virtoll.units import parse_bytes, parse_duration_ns, parse_percent

# What `virtoll list` can list, and what each is good for.
LISTED = {
    "studies": "ready-made studies: `virtoll run NAME`",
    "platforms": "what makes an instance: `platform` of an arm",
    "networks": "how an instance is attached: `network` of an arm",
    "services": "what is under test: `name` in [service] and [origin]",
    "loads": "who drives the service: `name` in [load]",
    "probes": "micro benchmarks, in place of service and load: [[probes]], `virtoll probe NAME`",
    "instruments": "known tools that measure what probes do: `virtoll run STUDY --cross-check`",
    "aggressors": "neighbours that misbehave: `aggressor` in [neighbour]",
    "sections": "the questions that a report answers, where they apply to its run",
}
TUNABLE = {knob.name: knob.summary for knob in KNOBS}
SHELLS = ("bash", "zsh", "fish")

LEAST_SHARE, MOST_SHARE = 0.001, 0.5  # of --decide and --precision
MOST_HEADROOM = 0.9
GRID = {"nodes": 400, "interfaces": 2, "channels": 12, "slices": 2}  # of `plan testbed`: the paper's
TESTBED_OUT = Path("runs/testbed-plan")
_PLATFORMS = "only these, beside native, whether the study names them or not; all: every one there is"
_TLS = "certificates of this host: ca.pem, cert.pem, key.pem (docs/SCALE.md makes them)"
_HOST = "of this server in the place of this machine: ssh://[user@]server[:port]"
_JSON = "one JSON object (`virtoll help json` has its keys)"


class _Parser(argparse.ArgumentParser):
    """A word like -5m is the value of the option before it, as -5 is: what is wrong with it is told, and not that none
    was given. The verbs' parsers are of this class, too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?\d")


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs; ``verb`` is the chosen one's name."""
    parser = _Parser(
        prog="virtoll",
        description="What does virtualization cost your service?",
        epilog="`virtoll help` lists the pages of the manual; `virtoll help exit-codes` says what the exit codes mean.",
    )
    parser.add_argument("--version", action="version", version=f"virtoll {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for add in (
        _doctor,
        _list,
        _new,
        _check,
        _run,
        _scheduler,
        _worker,
        _calibrate,
        _probe,
        _audit,
        _report,
        _advise,
        _compare,
        _history,
        _export,
        _keep,
        _plan,
        _tune,
        _untune,
        _clean,
        _help,
        _completion,
        _man,
    ):
        add(verbs)
    return parser


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each verb."""
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(subparsers.choices)


def settings_of(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, str]:
    """The settings of a probe: ``--order 2000`` or ``--order=2000``, named as in a study file."""
    pairs: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            parser.error(f"{word!r} belongs to no setting: write --KEY VALUE")
        pairs[key.replace("-", "_")] = value if equals else next(rest, "")
    return pairs


def _doctor(verbs: Any) -> None:
    verb = verbs.add_parser("doctor", help="what this machine can offer, and what mends what is missing")
    verb.add_argument(
        "--machine", action="store_true", help="instead: what its settings and neighbours do to measurements (5 s)"
    )
    verb.add_argument("--host", metavar="ADDRESS", help=_HOST)
    verb.add_argument("--json", action="store_true", help=_JSON)


def _list(verbs: Any) -> None:
    verb = verbs.add_parser("list", help="what a study file may name, and when to pick it")
    verb.add_argument(
        "what", nargs="?", choices=tuple(LISTED), metavar="WORD", help="without a word: what there is to list"
    )
    verb.add_argument("--features", action="store_true", help="of platforms: what each supports, why, by which source")
    verb.add_argument("--json", action="store_true", help=_JSON)


def _new(verbs: Any) -> None:
    verb = verbs.add_parser("new", help="write a commented study file to begin from")
    verb.add_argument("name", help="of the study; the file is NAME.toml, here")
    verb.add_argument("--like", default="", metavar="STUDY", help="a copy of this ready-made study, to be changed")


def _check(verbs: Any) -> None:
    verb = verbs.add_parser("check", help="all that is wrong with a study, or what it would run; changes nothing")
    verb.add_argument("study", help="a ready-made study (`virtoll list studies`), or a study file")
    verb.add_argument("--json", action="store_true", help=_JSON)


def _run(verbs: Any) -> None:
    verb = verbs.add_parser("run", help="run a study, or go on with one")
    verb.add_argument("study", help="a ready-made study (`virtoll list studies`), a study file, or a run directory")
    verb.add_argument("--quick", action="store_true", help="the study's own [quick] variant: minutes, wider intervals")
    verb.add_argument("--platforms", type=_names, metavar="A,B", help=_PLATFORMS)
    told = "memory limit of each instance, in place of the study's: 768MiB"
    verb.add_argument("--memory", type=_bytes, metavar="SIZE", help=told)
    verb.add_argument("--blocks", type=int, metavar="N", help="number of blocks (at least 2); of a run: in all")
    verb.add_argument("--budget", type=_duration_s, metavar="TIME", help='as many blocks as fit, e.g. "30m"')
    verb.add_argument(
        "--decide", type=_share, metavar="PERCENT", help="end when every arm differs from native, or by no more: 5%%"
    )
    verb.add_argument(
        "--precision",
        type=_share,
        metavar="PERCENT",
        help="as many blocks as so narrow intervals need: 2%% to either side",
    )
    verb.add_argument("--seed", type=int, metavar="N", help="seed of the order (drawn and recorded when not given)")
    verb.add_argument("--dry-run", action="store_true", help="print the plan and its time, change nothing")
    verb.add_argument("--out", type=_path, metavar="DIR", help="run directory (default: runs/NAME-TIME)")
    verb.add_argument("--cross-check", action="store_true", help="also measure native with the outside instruments")
    verb.add_argument(
        "--explain", action="store_true", help="also measure what may explain a service's toll, by probes"
    )
    verb.add_argument(
        "--target", metavar="URL", help="let the study's load use this server of yours, and deploy nothing"
    )
    verb.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="have other hosts measure: their scheduler, tls://HOST:8786 (docs/SCALE.md)",
    )
    verb.add_argument("--tls", type=_path, metavar="DIR", help=_TLS)
    verb.add_argument("--host", metavar="ADDRESS", help="have this server measure: ssh://[user@]server[:port]")
    told = "let the load come from this server, over a network device: ssh://[user@]server[:port] (docs/GENERATOR.md)"
    verb.add_argument("--generator", metavar="ADDRESS", help=told)
    told = "the network devices of this machine and of that server that are on one link: eno1,eth1"
    verb.add_argument("--nic", type=_nics, metavar="HERE,THERE", help=told)
    verb.add_argument("--json", action="store_true", help="progress as JSON lines")


def _scheduler(verbs: Any) -> None:
    verb = verbs.add_parser("scheduler", help="where the hosts of a fleet wait for studies, until Ctrl-C")
    verb.add_argument("address", metavar="ADDRESS", help="where it listens, on this machine: tls://HOST:8786")
    verb.add_argument("--tls", type=_path, metavar="DIR", help=_TLS)


def _worker(verbs: Any) -> None:
    verb = verbs.add_parser("worker", help="let this host measure for others, by a scheduler, until Ctrl-C")
    verb.add_argument("address", metavar="ADDRESS", help="of the scheduler: tls://HOST:8786")
    verb.add_argument("--name", default="", help="what reports call this host (default: its host name)")
    verb.add_argument("--tls", type=_path, metavar="DIR", help=_TLS)


def _calibrate(verbs: Any) -> None:
    verb = verbs.add_parser("calibrate", help="how far virtoll can be trusted on this machine: equal arms, known costs")
    verb.add_argument(
        "--quick", action="store_true", help="under ten minutes instead of under an hour; wider intervals"
    )
    verb.add_argument("--blocks", type=int, metavar="N", help="number of blocks (at least 2)")
    verb.add_argument("--seed", type=int, metavar="N", help="seed of the order (drawn and recorded when not given)")
    verb.add_argument("--dry-run", action="store_true", help="print the plan and its time, change nothing")
    verb.add_argument("--out", type=_path, metavar="DIR", help="run directory (default: runs/calibration-TIME)")
    verb.add_argument("--json", action="store_true", help="progress as JSON lines, and what was found as the last")


def _probe(verbs: Any) -> None:
    verb = verbs.add_parser(
        "probe",
        help="run one micro benchmark in one instance, here and now",
        usage="virtoll probe NAME [--platform P] [--network MODE] [--memory SIZE] [--vcpus N] [--json] [--KEY VALUE]",
        epilog="KEY VALUE are the probe's settings as a study file has them: --order 2000, --time 2s",
    )
    verb.add_argument("name", help="a probe (`virtoll list probes`)")
    verb.add_argument("--platform", default="native", help="where to run it (default: native)")
    verb.add_argument("--network", type=_word, help="network mode (default: the platform's own)")
    verb.add_argument("--memory", type=_word, metavar="SIZE", help="the instance's memory: 2GiB")
    verb.add_argument("--vcpus", type=int, metavar="N", help="the instance's vCPUs")
    verb.add_argument("--json", action="store_true", help="the figures as JSON")


def _audit(verbs: Any) -> None:
    verb = verbs.add_parser("audit", help="deploy each arm of a study once, and show in what it differs from native")
    verb.add_argument("study", help="a ready-made study (`virtoll list studies`) or a study file")
    verb.add_argument("--quick", action="store_true", help="the study's own [quick] variant")
    verb.add_argument("--platforms", type=_names, metavar="A,B", help=_PLATFORMS)
    verb.add_argument("--json", action="store_true", help=_JSON)


def _report(verbs: Any) -> None:
    verb = verbs.add_parser("report", help="build a run's report again: page, tables and figures")
    verb.add_argument("run", type=_path, metavar="RUNDIR", help="a run directory")
    verb.add_argument("--json", action="store_true", help=_JSON)


def _advise(verbs: Any) -> None:
    verb = verbs.add_parser("advise", help="which platform to take, by runs' intervals and by what is needed")
    verb.add_argument("runs", type=_path, nargs="+", metavar="RUNDIR", help="run directories")
    told = "what must hold under every condition, e.g. 'p99 < 200 ms'; may be given several times"
    verb.add_argument("--objective", action="append", default=[], metavar="TEXT", help=told)
    told = "features, e.g. own-kernel,live-migration (`virtoll list platforms --features`); may be given several times"
    verb.add_argument("--need", type=_names, action="extend", default=[], metavar="A,B", help=told)
    verb.add_argument("--json", action="store_true", help=_JSON)


def _compare(verbs: Any) -> None:
    verb = verbs.add_parser("compare", help="what changed from one run to another, in ratios to native")
    verb.add_argument("before", type=_path, metavar="RUN_A", help="a run directory")
    told = "a run directory; without it, RUN_A is one that --again has made"
    verb.add_argument("after", type=_path, nargs="?", metavar="RUN_B", help=told)
    verb.add_argument(
        "--fail-over",
        type=_share,
        metavar="PERCENT",
        help="exit with 5 where B is worse than A by more, and with 6 where that cannot be told: 5%%",
    )
    verb.add_argument("--by-condition", action="store_true", help="a row for each condition, not for all of them")
    verb.add_argument("--metrics", type=_names, metavar="A,B", help="these, by their names in the report's trials.csv")
    verb.add_argument("--markdown", type=_path, metavar="FILE", help="also as Markdown, for a merge request")
    verb.add_argument("--junit", type=_path, metavar="FILE", help="also as JUnit XML, a test a row; with --fail-over")
    verb.add_argument("--json", action="store_true", help=_JSON)
    told = "measure both configurations anew, in the same blocks of one run, and compare by that"
    verb.add_argument("--again", action="store_true", help=told)
    again = verb.add_argument_group("of the run that --again begins")
    told = "number of blocks (at least 2; default: as many as the longer of the two has)"
    again.add_argument("--blocks", type=int, metavar="N", help=told)
    again.add_argument("--budget", type=_duration_s, metavar="TIME", help='as many blocks as fit, e.g. "30m"')
    again.add_argument("--seed", type=int, metavar="N", help="seed of the order (drawn and recorded when not given)")
    again.add_argument("--dry-run", action="store_true", help="print the plan and its time, change nothing")
    again.add_argument("--out", type=_path, metavar="DIR", help="run directory (default: runs/NAME-again-TIME)")


def _history(verbs: Any) -> None:
    verb = verbs.add_parser("history", help="every run under a folder: each arm's ratio to native over time, as a page")
    verb.add_argument("folder", type=_path, metavar="DIR", help="a folder with run directories in it, or below")
    verb.add_argument("--metrics", type=_names, metavar="A,B", help="these, by their names in the report's trials.csv")
    verb.add_argument("--out", type=_path, metavar="FILE", help="the page (default: DIR/history.html)")
    for name, what in (
        ("csv", "CSV"),
        ("parquet", "Parquet"),
        ("openmetrics", "OpenMetrics, with each run's time"),
        ("zabbix", "lines for Zabbix's sender, with each run's time"),
    ):
        verb.add_argument(f"--{name}", type=_path, metavar="FILE", help=f"also as {what}")
    verb.add_argument("--json", action="store_true", help=_JSON)


def _export(verbs: Any) -> None:
    verb = verbs.add_parser("export", help="print what a run's instances used, second by second, for Zabbix's sender")
    verb.add_argument("run", type=_path, metavar="RUNDIR", help="a run directory")


def _keep(verbs: Any) -> None:
    verb = verbs.add_parser("keep", help="copy a run small, for a repository: all that reports and verbs compute with")
    verb.add_argument("run", type=_path, metavar="RUNDIR", help="a run directory")
    verb.add_argument("to", type=_path, metavar="DIR", help="a directory that is not there yet")


def _plan(verbs: Any) -> None:
    verb = verbs.add_parser(
        "plan", help="how many instances and hosts so many users take, by what a run's platforms carried"
    )
    verb.add_argument("what", metavar="RUNDIR|testbed", help="a run directory that has a knee, or the word testbed")
    users = verb.add_argument_group("of a run directory")
    users.add_argument("--users", type=_count, metavar="N", help="how many are to be served (in the unit of the knee)")
    told = "of a ramp: what must hold, e.g. 'frozen < 1 %%'; several times; a search has its own"
    users.add_argument("--objective", action="append", metavar="TEXT", help=told)
    told = "what is kept free of what instances carry and hosts have (default: 30%%)"
    users.add_argument("--headroom", type=_headroom, metavar="PERCENT", help=told)
    users.add_argument("--price", type=_price, metavar="PRICE", help="of a host: 0.05/hour")
    told = "CPUs of a host (default: as the machine that was measured)"
    users.add_argument("--host-cpus", type=_count, metavar="N", help=told)
    users.add_argument("--host-memory", type=_bytes, metavar="SIZE", help="memory of a host: 64GiB (default: the same)")
    told = "a run of `virtoll run density` on such a host: how many idle instances it holds is then a bound, too"
    users.add_argument("--density", type=_path, metavar="RUNDIR", help=told)
    grid = verb.add_argument_group("of testbed: how many experiments a grid of sliced nodes holds at once")
    for name, what in (
        ("nodes", "nodes of the grid"),
        ("interfaces", "radio interfaces of a node"),
        ("channels", "orthogonal channels"),
        ("slices", "slices of a node"),
    ):
        grid.add_argument(f"--{name}", type=_count, metavar="N", help=f"{what} (default: {GRID[name]})")
    grid.add_argument("--nodes-per-experiment", type=_counts, metavar="N,N", help="sizes of experiments in the table")
    grid.add_argument("--out", type=_path, metavar="DIR", help=f"for figure and table (default: {TESTBED_OUT})")
    verb.add_argument("--json", action="store_true", help=_JSON)


def _tune(verbs: Any) -> None:
    told = "; ".join(f"{name}: {summary}" for name, summary in TUNABLE.items())
    verb = verbs.add_parser("tune", help="make this machine steadier until `virtoll untune`", epilog=told)
    verb.add_argument("what", nargs="*", type=_tunable, metavar="WHAT", help=f"of {', '.join(TUNABLE)} (default: all)")
    verb.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    verb.add_argument("--json", action="store_true", help=_JSON)


def _untune(verbs: Any) -> None:
    verb = verbs.add_parser("untune", help="undo what `virtoll tune` has done")
    verb.add_argument("what", nargs="*", type=_tunable, metavar="WHAT", help=f"of {', '.join(TUNABLE)} (default: all)")
    verb.add_argument("--json", action="store_true", help=_JSON)


def _clean(verbs: Any) -> None:
    verb = verbs.add_parser(
        "clean", help="remove what a killed virtoll left on this machine, untune it, and nothing else"
    )
    verb.add_argument("--host", metavar="ADDRESS", help=_HOST)


def _help(verbs: Any) -> None:
    verb = verbs.add_parser("help", help="the manual: its pages, or one of them")
    verb.add_argument("topic", nargs="?", help="a page, or a verb; without one: the list of pages")


def _completion(verbs: Any) -> None:
    verb = verbs.add_parser("completion", help="the script that lets your shell complete virtoll's words")
    verb.add_argument("shell", choices=SHELLS, help="`virtoll help command-line` says where it goes")


def _man(verbs: Any) -> None:
    verbs.add_parser("man", help="the manual page of the command line, for man(1)")


def _tunable(text: str) -> str:
    if text not in TUNABLE:
        raise argparse.ArgumentTypeError(f"there is no {text!r} to tune, but {', '.join(TUNABLE)}")
    return text


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("an empty word names no file and no folder; is a variable unset?")
    return Path(text)


def _word(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty word is none; is a variable unset?")
    return text


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("names nothing: leave the option out, or name some")
    return names


def _nics(text: str) -> tuple[str, str]:
    words = text.split(",")
    # Names that the kernel takes (dev_valid_name of net/core/dev.c), and that no shell or path takes for another thing.
    if len(words) != 2 or not all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}", word) for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} names no two network devices: write HERE,THERE, as eno1,eth1")
    return words[0], words[1]


_MOST = 10**9


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    if int(text) > _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {_MOST:,}")
    return int(text)


def _counts(text: str) -> list[int]:
    return [_count(word) for word in text.split(",")]


def _share(text: str) -> float:
    try:
        share = parse_percent(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not LEAST_SHARE <= share <= MOST_SHARE:
        raise argparse.ArgumentTypeError(f"{text!r} is not from {LEAST_SHARE * 100:g} to {MOST_SHARE * 100:g} %")
    return share


def _headroom(text: str) -> float:
    try:
        share = parse_percent(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if share > MOST_HEADROOM:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0 to {MOST_HEADROOM * 100:g} %")
    return share


def _price(text: str) -> Any:
    from virtoll.analysis.sizing import Price  # numpy is slow to import, and other verbs need none

    try:
        return Price.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _bytes(text: str) -> int:
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size of a memory")
    return size


def _duration_s(text: str) -> float:
    try:
        return parse_duration_ns(text) / 1e9
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
