"""What keeps a study from being measured on this machine: all that can be known before anything is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from virtoll.aggressors.base import aggressors, make_aggressor
from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.hosts.open_files import beyond_hard
from virtoll.images import oci
from virtoll.images.base import together
from virtoll.images.source import Source
from virtoll.instruments.base import instruments
from virtoll.lab import shaping
from virtoll.lab import slices as slicing
from virtoll.loads.base import Load, loads
from virtoll.loads.native import NativeLoad
from virtoll.loads.participants import LEAST, ParticipantsLoad
from virtoll.loads.program import ProgramLoad
from virtoll.loads.viewing import ViewingLoad
from virtoll.offers import JanusRoom, Room
from virtoll.plain import listed
from virtoll.probes.base import probes
from virtoll.record.model import LEVEL, LEVELS, Arm
from virtoll.record.objective import FAILED, is_own, label_of, parse, quantile_of
from virtoll.run.generators import of_generators
from virtoll.run.groups import Room as Memory
from virtoll.run.side_by_side import problems_side_by_side
from virtoll.study.model import Case, Knee, Study
from virtoll.study.plan import conditions, explaining_condition, search_windows
from virtoll.study.search import DOUBLING
from virtoll.study.values import nearest
from virtoll.trial.treatment import Driven, Treatment, make_probe, services_by_configuration, treatment_of
from virtoll.units import format_duration


def problems_of(study: Study, asked: Sequence[Treatment], file: str, host: Host) -> list[Problem]:
    """Of all that the study asks for, in whichever arm: empty when nothing is wrong."""
    return [
        *_of_work(study, asked, file, host),
        *_of_neighbours(study, asked, file),
        *problems_side_by_side(study, asked, file),
        *_of_links(asked, host),
        *(_of_rotation(study, asked, file) if study.design == "rotation" else ()),
        *dict.fromkeys(problem for each in asked for problem in _of_knee(each, file)),
        *_of_knees(asked, file),
        *dict.fromkeys(problem for each in asked for problem in _of_ramp(study, each, file)),
        *dict.fromkeys(problem for each in asked for problem in _of_room(each, file)),
        *dict.fromkeys(problem for each in asked for problem in _of_places(each, file)),
        *dict.fromkeys(problem for each in asked for problem in of_generators(each, file)),
    ]


def _of_knee(treatment: Treatment, file: str) -> list[Problem]:
    """What keeps a knee from being searched for under a treatment."""
    knee, work, where = treatment.knee, treatment.work, f"{file}: [knee]"
    if knee is None or not isinstance(work, Driven):
        return []
    problems = []
    if treatment.neighbour.aggressor:
        problems.append(Problem("a neighbour is not at work in all of a search", where, "leave out [neighbour]"))
    if knee.windows % 2 == 0:
        what = f"most of {knee.windows} windows are to agree, and half may not"
        problems.append(Problem(what, f"{where} windows", f"write {knee.windows + 1}"))
    if why := work.load.unsearched:
        problems.append(Problem(why, where, "let it take its intensity, or leave [knee] out"))
    intensity = work.load.intensity
    if not knee.least <= knee.most:
        what = f"there is no intensity from {knee.least:g} to {knee.most:g} {intensity.unit}"
        problems.append(Problem(what, f"{where} least, most", "let `most` be the larger"))
    elif intensity.whole and not (knee.least.is_integer() and knee.most.is_integer()):
        what = f"{knee.least:g} to {knee.most:g} {intensity.unit} are no whole numbers"
        problems.append(Problem(what, f"{where} least, most", f"{intensity.unit} are counted"))
    elif isinstance(work.load, ViewingLoad):
        key = (
            "least" if knee.most == Knee.most else "most"
        )  # where none is written the search ends at what there may be
        problems += work.load.too_many(round(getattr(knee, key)), f"{where} {key}")
    elif isinstance(work.load, ParticipantsLoad) and knee.least < LEAST:
        problems.append(Problem("one who is alone has nobody to watch", f"{where} least", f"write least = {LEAST}"))
    return [*problems, *_of_objective(knee, work.load, where)]


def _of_ramp(study: Study, treatment: Treatment, file: str) -> list[Problem]:
    """What cannot be while a ramp goes up."""
    work = treatment.work
    if not isinstance(work, Driven) or not work.load.levels:
        return []
    where, problems = f"{file}: [load] levels", []
    for text in work.load.kept:
        try:
            parse(text, work.load.quantities)
        except ValueError as error:
            problems.append(Problem(str(error), f"{file}: [load] objective", "in the load's own units"))
    if treatment.rotation is not None:
        remedy = 'measure one arm after another: design = "blocks"'
        problems.append(Problem("who is there stays there while others would be measured", where, remedy))
    if treatment.neighbour.aggressor:
        problems.append(Problem("a neighbour is not at work at all levels of a ramp", where, "leave out [neighbour]"))
    if treatment.neighbour.servers == "others":
        what = "other servers are under one load each, and not at all levels of a ramp"
        problems.append(Problem(what, where, 'write servers = "none" in [neighbour]'))
    for path in (LEVELS, LEVEL):
        if path in study.factors:
            what = f"a ramp sets how many there are at each of its levels, and so would the factor {path}"
            problems.append(Problem(what, f"{file}: [factors]", "leave it out, or write no levels in [load]"))
    return problems


def _of_room(treatment: Treatment, file: str) -> list[Problem]:
    """More who come than a service lets in: its settings would be measured, and not the platform."""
    work, knee = treatment.work, treatment.knee
    if not isinstance(work, Driven) or Room not in work.load.takes:
        return []
    load, service = work.load.settings, work.service.settings
    problems = [*_of_browsers(work, file), *_of_speakers(work, file)]
    most = max(work.load.levels or (load.participants,)) if knee is None else round(knee.most)
    beside = f" and {load.browsers} browser{'s' if load.browsers > 1 else ''}" if load.browsers else ""
    senders = min(most, load.desktops + load.webcams)
    for key, come, who in (
        ("participants", most + load.browsers, f"{most:,} participants{beside}"),
        ("publishers", senders, f"{senders:,} publishers"),
    ):
        if (let_in := getattr(service, key, come)) < come:
            what = f"{who} are to come, and {work.service.name} lets {let_in:,} in"
            remedy = f"write {key} = {come} or more, or let fewer come"
            problems.append(Problem(what, f"{file}: [service] {key}", remedy))
    return problems


_PLACES = ("viewers", "connections", "users")  # what a load calls those who are connected at once


def _of_places(treatment: Treatment, file: str) -> list[Problem]:
    """The same of viewers, connections, and a program's users. A search whose `most` is not written ends at what the
    service lets in.
    """
    work, knee = treatment.work, treatment.knee
    if not isinstance(work, Driven) or (most := work.most_users) is None:
        return []
    load, where = work.load, "[load]"
    users = next((getattr(load.settings, key) for key in _PLACES if hasattr(load.settings, key)), 0)
    if knee is not None and load.intensity.whole:
        where, users = "[knee] most", round(knee.least if knee.most == Knee.most else knee.most)
    if users <= most:
        return []
    come = "may be" if load.loop == "open" and "rate_per_s" in vars(load.settings) else "are to be"
    what = f"{users:,} {come} connected at once, and by its settings {work.service.name} lets {most:,} in"
    more = work.service.lets_in
    remedy = f"write a larger {more} in [service], or let fewer come" if more else "let fewer come"
    return [Problem(what, f"{file}: {where}", remedy)]


def _of_browsers(work: Driven, file: str) -> list[Problem]:
    """Rooms in which browsers see nothing, and what may be so."""
    load, problems = work.load.settings, []
    if load.browsers and not any(issubclass(offer, JanusRoom) for offer in work.service.offers):
        what = f"browsers watch a room of Janus's, and {work.service.name} is none"
        problems.append(Problem(what, f"{file}: [load] browsers", "leave it out, or write 0"))
    if load.browsers and load.codec == "h264":
        what = "whether these browsers show H.264 has not been tried"
        problems.append(Problem(what, f"{file}: [load] codec", 'write codec = "vp8", or browsers = 0'))
    return problems


def _of_speakers(work: Driven, file: str) -> list[Problem]:
    """Rooms in which nobody is heard."""
    load, service, problems = work.load.settings, work.service.settings, []
    if load.speakers and not any(issubclass(offer, JanusRoom) for offer in work.service.offers):
        what = f"what is said is mixed by Janus's AudioBridge, and {work.service.name} has none"
        problems.append(Problem(what, f"{file}: [load] speakers", "leave it out, or write 0"))
    elif load.speakers and not getattr(service, "audio", False):
        what = f"{load.speakers} of the participants are to speak, and {work.service.name} has no room for audio"
        problems.append(Problem(what, f"{file}: [service] audio", "write audio = true, or no speakers in [load]"))
    return problems


def _of_knees(asked: Sequence[Treatment], file: str) -> list[Problem]:
    """Knees that are counted in different things cannot stand in one table, nor under one `least` and `most`."""
    works = [each.work for each in asked if each.knee is not None]
    units = dict.fromkeys(work.load.intensity.unit for work in works if isinstance(work, Driven))
    if len(units) < 2:
        return []
    what = f"knees would be counted in different things: {', '.join(units)}"
    return [Problem(what, f"{file}: [knee]", "let all loads be of one loop, or make a study of each kind")]


def _of_objective(knee: Knee, load: Load, where: str) -> list[Problem]:
    """Objectives that mean nothing for a load, or that its smallest windows hold too little for."""
    problems = []
    for text in knee.objective:
        try:
            objective = parse(text, load.quantities)
        except ValueError as error:
            problems.append(Problem(str(error), f"{where} objective", f"of load {load.name!r}, in its own units"))
            continue
        if is_own(objective, load.quantities):
            continue
        asked, q = knee.least * knee.window_ns / 1e9, quantile_of(objective)
        if objective.metric == FAILED and not load.tells_failures:
            what = f"load {load.name!r} does not tell how many failed of what it asks for"
            problems.append(Problem(what, f"{where} objective", "write in [load] how `failed` is read"))
        if q is not None and not load.tells_percentiles:
            what = f"load {load.name!r} tells no percentile of what it asks for"
            problems.append(Problem(what, f"{where} objective", "take one that does (http), or what it tells"))
            continue
        if q is not None and load.percentiles and label_of(objective) not in load.percentiles:
            what = f"load {load.name!r} tells no {label_of(objective)}"
            remedy = f"take one that does (http), or one of {', '.join(load.percentiles)}"
            problems.append(Problem(what, f"{where} objective", remedy))
            continue
        if q is not None and q < 1 and not load.intensity.whole and round(asked * (1 - q), 6) < 1:
            what = f"a window at the least intensity asks for {asked:g}, of which {text!r} says nothing"
            least = math.ceil(round(1 / (1 - q), 6) * 1e9 / knee.window_ns)
            problems.append(Problem(what, f"{where} least", f"write least = {least}, or take longer windows"))
    return problems


def _of_rotation(study: Study, asked: Sequence[Treatment], file: str) -> list[Problem]:
    """What cannot be while arms stand beside each other and wait for their turn."""
    problems = []
    remedy = 'leave it out, or measure one treatment after another: design = "blocks"'
    if any(each.background.hogs for each in asked):
        what = "the hogs of one arm would compute while others are measured"
        problems.append(Problem(what, f"{file}: [background] hogs", remedy))
    if any(each.neighbour.aggressor for each in asked):
        what = "the aggressor beside one arm would be at work while others are measured"
        problems.append(Problem(what, f"{file}: [neighbour] aggressor", remedy))
    if any(each.slices.count for each in asked):
        what = "the slices of one arm would run while others are measured"
        problems.append(Problem(what, f"{file}: [slices]", remedy))
    for name in dict.fromkeys(case.probe for case in study.programme if probes()[case.probe].fills_host):
        what = f"the host that {name} fills with instances of one arm would hold those of the others besides"
        problems.append(Problem(what, f"{file}: [[probes]]", remedy))
    if any(isinstance(each.work, Driven) and _is_published(each.work) for each in asked):
        what = "what is published to one arm would go on while others are measured"
        problems.append(Problem(what, f"{file}: [service]", 'measure one treatment after another: design = "blocks"'))
    for each in asked:
        load = each.work.load if isinstance(each.work, Driven) else None
        least_ns = load.goes_on_within_ns if isinstance(load, ViewingLoad) else 0
        if each.knee is None and each.rotation is not None and each.rotation.lead_in_ns < least_ns:
            what = (
                "viewers who paused do not watch again so soon: to go on takes them three parts, or what `startup` says"
            )
            remedy = f'lead_in = "{format_duration(least_ns)}", or [load] pause = false'
            problems.append(Problem(what, f"{file}: [rotation] lead_in", remedy))
    return list(dict.fromkeys(problems))


def _is_published(work: Driven) -> bool:
    """Whether the load publishes what its viewers watch, for as long as its session lasts."""
    load = work.load
    if not isinstance(load, ViewingLoad) or not load.publishes_where or getattr(load.settings, load.own):
        return False
    return bool(getattr(work.service.settings, load.publishes_where, False))


def of_turns(asked: Sequence[Treatment], at_once: int, file: str) -> list[Problem]:
    """What is wrong with turns of so many arms beside each other."""
    problems = []
    for each in asked:
        turn_s = _turn_seconds(each, at_once)
        if turn_s > _LONGEST_TURN_S:
            what = f"a turn would last {turn_s:,.0f} s, and {_LONGEST_TURN_S} s can be watched"
            where = f"{file}: [rotation] rounds" if each.knee is None else f"{file}: [knee] window"
            problems.append(Problem(what, where, "take fewer rounds, shorter windows or fewer arms"))
    return list(dict.fromkeys(problems))


_LONGEST_TURN_S = 800


def _turn_seconds(treatment: Treatment, arms: int) -> float:
    rotation, knee = treatment.rotation, treatment.knee
    assert rotation is not None
    intensity = None if knee is None else math.sqrt(knee.least * knee.most)  # midway
    lead_in_ns = rotation.lead_in_ns
    if isinstance(treatment.work, Driven):
        lead_in_ns = treatment.work.load.lead_in_ns(lead_in_ns, intensity)
    if knee is None:
        return arms * rotation.rounds * (lead_in_ns + rotation.window_ns) / 1e9
    exploring = treatment.work.load.intensity.explored_by if isinstance(treatment.work, Driven) else DOUBLING
    return arms * search_windows(knee, exploring) * (lead_in_ns + knee.window_ns) / 1e9


def of_memory(study: Study, arms: Sequence[Arm], room: Memory, file: str) -> dict[str, Problem]:
    """What the memory does not hold even beside the baseline alone, by the arm's label: no group would hold it.

    Where arms are compared with each other, as a calibration's are, all of them must stand together.
    """
    if any(entry.values for entry in study.arms):
        what = room.lacks(arms)
        return {"": Problem(what, file, "free some memory: equal arms are compared with each other")} if what else {}
    native = [arm for arm in arms if arm.role == "baseline"]
    remedy = 'give less in [limits] memory, free some, or measure one arm after another: design = "blocks"'
    found = {}
    for entry in study.arms:
        pair = native if entry.arm in native else [*native, entry.arm]
        if entry.arm in arms and (what := room.lacks(pair)):
            found[entry.arm.label] = Problem(what, f"{file}:{entry.line}: {entry.arm.label}", remedy)
    return found


def _of_work(study: Study, asked: Sequence[Treatment], file: str, host: Host) -> list[Problem]:
    """What keeps the load, or a case of the programme, from being measured on this host within the study's limits."""
    if study.is_served:
        driven = [each.work for each in asked if isinstance(each.work, Driven)]
        problems = {problem: None for work in driven for problem in _of_load(work, file, host)}
        problems |= dict.fromkeys(_of_images(asked, file, host))
        problems |= dict.fromkeys(_of_servers(driven, file) if study.servers else [])
        if any(each.slices.count for each in asked):
            problems[Problem("slices are for a programme of probes", f"{file}: [slices]", "leave [slices] out")] = None
        explaining = [treatment_of(study, explaining_condition(study))]
        return [*problems, *(problem for case in study.programme for problem in _of_case(case, explaining, file))]
    names = {case.instrument for case in study.programme if case.instrument}
    problems_of_tools = [problem for name in sorted(names) for problem in instruments()[name]().check(host)]
    return problems_of_tools + [problem for case in study.programme for problem in _of_case(case, asked, file)]


def _of_load(work: Driven, file: str, host: Host) -> list[Problem]:
    """What is wrong with service and load, each by itself and as a pair."""
    wrong = work.service.problems(work.origin) + (work.origin.problems(None) if work.origin is not None else [])
    found = [*wrong, *_of_files(work), *work.load.check(host)]
    if not wrong:  # else what it offers is not known
        found += _of_pair(work)
    return [replace(one, where=f"{file}: {one.where}") if one.where.startswith("[") else one for one in found]


def _of_files(work: Driven) -> list[Problem]:
    """A service that would have more open files on some platforms than on others."""
    service, setting = work.service, work.service.lets_in
    where, fewer = f"[service] {setting}".rstrip(), f"write a smaller {setting}" if setting else ""
    return beyond_hard(service.name, service.open_files, where, fewer)


def _of_pair(work: Driven) -> list[Problem]:
    service, load = work.service, work.load
    if not any(issubclass(offer, load.takes) for offer in service.offers):
        offered = " or ".join(offer.kind for offer in service.offers)
        fit = [name for name, cls in loads().items() if any(issubclass(offer, cls.takes) for offer in service.offers)]
        what = f"load {load.name!r} cannot drive {service.name}, which offers {offered}"
        return [Problem(what, "[load] name", f"loads that can: {', '.join(fit) or 'none'}")]
    if not load.speaks_tls and getattr(service.settings, "tls", False):
        return [Problem(f"load {load.name!r} does not speak TLS", "[service] tls", "write tls = false")]
    holder = work.origin or service
    if load.content is not None and not isinstance(load.content, holder.holds):
        what = f"load {load.name!r} asks for {load.content}, which {holder.name} does not hold"
        return [Problem(what, "[load]", 'ask for something that it serves: path = "/..."')]
    return []


def _of_servers(driven: Sequence[Driven], file: str) -> list[Problem]:
    """What services cannot be set beside each other for."""
    problems = []
    asked = dict.fromkeys((work.load.unit, work.load.request) for work in driven)
    if len(asked) > 1:
        kinds = ", ".join(dict.fromkeys(request for _, request in asked))
        what = f"they are asked for different things, of which no rates can be compared: {kinds}"
        problems.append(Problem(what, f"{file}: [servers]", "make a study of each kind"))
    given: dict[str, str] = {}
    for work in driven:
        if work.service.problems(work.origin):
            continue  # told already: a file may not be there
        for inside, digest in work.service.digests.items():
            if given.setdefault(inside, digest) != digest:
                what = f"two services are given different files as {inside}"
                problems.append(Problem(what, f"{file}: [servers]", "put them in different places"))
    return problems


def _of_images(asked: Sequence[Treatment], file: str, host: Host) -> list[Problem]:
    """Of the user's own images: what can be seen without unpacking them, and that there is one for each role, and for
    each configuration.
    """
    problems = []
    apart = [[each.image for each in services] for services in services_by_configuration(asked).values()]
    for roles in (*apart, [each.work.load.programs for each in asked if isinstance(each.work, Driven)]):
        wanted = list(dict.fromkeys(roles))
        for each in wanted:
            problems += oci.check(host, Source.parse(each.source, Path())) if each.source else []
        if together(wanted) is None:
            what = f"{len(wanted)} images are asked for in one study: its conditions must share one"
            remedy = "make a study of each, and compare their runs (`virtoll compare`)"
            problems.append(Problem(what, f"{file}: [factors]", remedy))
    return problems


def _of_case(case: Case, asked: Sequence[Treatment], file: str) -> list[Problem]:
    where = f"{f'{file}:{case.line}' if case.line else '--explain'}: probe {case.probe}"
    found = {problem: None for each in asked for problem in make_probe(case).check(each.limits)}
    problems = [Problem(problem.what, where, problem.remedy) for problem in found]
    if probes()[case.probe].tells_of_start and any(each.neighbour.aggressor for each in asked):
        what = "it tells how its instance started, and that is over before a neighbour is there"
        problems.append(Problem(what, where, "leave it out of a study of neighbours"))
    least = min(each.slices.count for each in asked)
    needed = probes()[case.probe].slices
    if needed > least:
        what = f"it needs {needed} slices, and the study deploys {least or 'none'}"
        problems.append(Problem(what, where, f"write count = {needed} in [slices]"))
    return problems


def _of_neighbours(study: Study, asked: Sequence[Treatment], file: str) -> list[Problem]:
    """Aggressors that nobody knows, that cannot be within the study's limits, that would come when all is over, or
    beside which nobody could tell what a victim lost.
    """
    problems = dict.fromkeys([*_of_control(study, asked, file)])
    for treatment in asked:
        name, where = treatment.neighbour.aggressor, "[neighbour] aggressor"
        if not name:
            continue
        if name not in aggressors():
            known = f"`virtoll list aggressors` shows: {', '.join(aggressors())}"
            problems[Problem(f"no aggressor is called {name!r}{nearest(name, aggressors())}", where, known)] = None
            continue
        problems |= dict.fromkeys(make_aggressor(name).check(treatment.limits))
        problems |= dict.fromkeys([*_of_times(treatment, f"{file}: [neighbour] start"), *_of_victim(treatment, file)])
    return list(problems)


_AGGRESSOR, _POLITE = "neighbour.aggressor", "polite"  # the factor, and its level that is the control


def _of_control(study: Study, asked: Sequence[Treatment], file: str) -> list[Problem]:
    """Beside one and the same aggressor arms would be told as if there were none, those that died in no figure."""
    names = [*dict.fromkeys(name for each in asked if (name := each.neighbour.aggressor) in aggressors())]
    if not names or (_POLITE in names and _AGGRESSOR in study.factors):
        return _of_each_control(study, names, file)
    what = "each arm is compared with itself beside a polite neighbour, and the study has none"
    if _AGGRESSOR not in study.factors:
        what = "each arm is compared with itself beside a polite neighbour, and the study has one neighbour alone"
    levels = ", ".join(
        f'"{name}"' for name in dict.fromkeys([_POLITE, *names, *(["cpu"] if names == [_POLITE] else [])])
    )
    return [Problem(what, f"{file}: [neighbour] aggressor", f'write "{_AGGRESSOR}" = [{levels}] in [factors]')]


def _of_each_control(study: Study, names: Sequence[str], file: str) -> list[Problem]:
    """Exclusions may take the polite neighbour from some, of which nothing could be told then."""
    lacking: dict[str, list[str]] = {}
    for platform in dict.fromkeys(entry.arm.platform for entry in study.arms) if names else ():
        every = conditions(study, platform)
        for name in dict.fromkeys(str(each[_AGGRESSOR]) for each in every if each[_AGGRESSOR] in names):
            beside = [each for each in every if each[_AGGRESSOR] == name]
            if any({**each, _AGGRESSOR: _POLITE} not in every for each in beside):
                lacking.setdefault(platform, []).append(name)
    what = "is compared with itself beside a polite neighbour, which is excluded where these are not"
    where, remedy = f"{file}: [[exclude]]", "exclude them there, too, or leave it in"
    return [Problem(f"{platform} {what}: {listed(those)}", where, remedy) for platform, those in lacking.items()]


def _of_victim(treatment: Treatment, file: str) -> list[Problem]:
    """What a victim lost while the aggressor was there is told by what was to be asked then, one by one."""
    if not isinstance(treatment.work, Driven):
        return []
    load, told = treatment.work.load, "what a neighbour takes is told by single requests of an open loop"
    where = f"{file}: [load]"
    if load.loop == "closed":
        what = f"{told}, and load {load.name!r} is in closed loop"
        return [Problem(what, where, 'take http or redis with loop = "open", a rate, and many connections')]
    if isinstance(load, ProgramLoad | ViewingLoad | ParticipantsLoad):
        return [Problem(f"{told}, and load {load.name!r} keeps none", where, "take one that does: http, or redis")]
    if isinstance(load, NativeLoad) and not load.settings.log_requests:
        return [Problem(f"{told}, and none are kept", where, "write log_requests = true, or leave it out")]
    return []


def _of_times(treatment: Treatment, where: str) -> list[Problem]:
    """Every trial would be valid, and its victim alone. How long other loads are at it is not known beforehand: there
    are joins besides, or a program that ends by itself.
    """
    work, start_ns = treatment.work, treatment.neighbour.start_ns
    if not isinstance(work, Driven) or not isinstance(work.load, NativeLoad):
        return []
    window_ns = work.load.settings.time_limit_ns
    if start_ns < window_ns:
        return []
    what = f"the aggressor would begin after {format_duration(start_ns)}, when a window of {format_duration(window_ns)}"
    return [Problem(f"{what} is over", where, "let it begin sooner, or take a longer time_limit in [load]")]


def _of_links(asked: Sequence[Treatment], host: Host) -> list[Problem]:
    """Link shapes of the study that this kernel cannot make."""
    problems = [problem for shape in {each.link for each in asked} for problem in shaping.check(host, shape)]
    channels = {each.slices for each in asked}
    return problems + [problem for slices in channels for problem in slicing.check(host, slices)]
