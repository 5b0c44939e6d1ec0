"""``collectives status``: the calls in which the ranks of running jobs are, and who is late."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collectives.cli import arguments
from collectives.errors import ArgumentError, CommunicatorError
from collectives.launch import host_list, several
from collectives.process import flight, host, processes
from collectives.text import table
from collectives.text.words import error_text, named, plural, spans, time_text

State = dict[str, Any]  # of a rank, as process/flight.py has it

VERSION = 1  # of the JSON
LONG = 1.0  # seconds from which on a wait counts
ANSWER = 30.0  # seconds that a host may take
CLEAR = "\033[H\033[J"  # the terminal


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "status",
        help="print the call in which each rank of a running job is",
        description="Print, for each rank of your jobs on this host, the call in which it is, "
        "since when, and for whom it waits; then who is late. No rank is stopped, or asked. With a "
        "file that a failed job has written, print the state at that time, and the last calls.",
    )
    parser.add_argument(
        "job",
        metavar="PID|FILE",
        nargs="?",
        help="the process of a rank, of a launcher, or of another program that has started ranks "
        "(default: all jobs); or a file that an error names",
    )
    parser.add_argument(
        "-H", "--hosts", metavar="HOST,...", help="ask these hosts, by ssh (default: this host)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        const=2,
        type=arguments.positive,
        help="print it again every so many seconds (default: 2), until Ctrl-C",
    )
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Print the state of the ranks, once or again and again."""
    hosts = host_list.listed(options.hosts) if options.hosts else None
    if options.job is not None and not options.job.isdecimal():
        if options.hosts or options.watch:
            name = "-H" if options.hosts else "--watch"
            raise ArgumentError(f"{name} is for jobs that run, and {options.job} is no process")
        print(after_error(options.job, options.json))
        return 0
    job = None if options.job is None else int(options.job)
    while True:
        text = report(job, hosts, options.json)
        if options.watch and sys.stdout.isatty():
            print(end=CLEAR)
        print(text, flush=True)
        if not options.watch:
            return 0
        time.sleep(options.watch)


def report(job: int | None, hosts: Sequence[host_list.Host] | None, as_json: bool) -> str:
    """Return the state of the ranks of a job as text. Local."""
    tree = None if job is None else [*processes.tree(job)]
    if hosts is None:
        states, others = flight.ranks(flight.own_processes())
        problems = [
            f"process {each} records its calls for another version of collectives"
            for each in others
            if tree is None or each in tree
        ]
    else:
        states, problems = _of_hosts(hosts)
    if tree is not None:
        states = _of_job(states, {each["id"] for each in flight.ranks(tree)[0]})
    made = communicators(states)
    if as_json:
        about = {"version": VERSION, "host": host.shown([host.name()])[0], "problems": problems}
        said = [line for each in made for line in sentences(each)]
        return json.dumps({**about, "ranks": states, "said": said}, indent=1)
    if not made and not problems:
        which = "none of your processes" if job is None else f"no rank of process {job}"
        raise CommunicatorError(f"{which} has made a call on a communicator here")
    blocks = [lines(each) for each in made]
    return "\n\n".join("\n".join(block) for block in [*blocks, problems] if block)


def after_error(path: str, as_json: bool) -> str:
    """Return the content of a file that a failed job has written, as text. Local."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        told = json.loads(text)
        version, states = told["version"], told["ranks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{path} has no last calls of a job: {error_text(error)}") from error
    if version != flight.VERSION:
        raise ArgumentError(f"{path} is of another version of collectives")
    if as_json:
        return text
    blocks = [[f"process {told['process']}, {told['date']}: {told['error']}"]]
    blocks += [[*lines(each), "", *history(each)] for each in communicators(states)]
    return "\n\n".join("\n".join(block) for block in blocks)


# ---- which ranks ---------------------------------------------------------------------------------


def _of_job(states: list[State], here: set[str]) -> list[State]:
    """Return the ranks that have one of some communicators, or another one with such a rank."""
    while True:
        members = {(each["host"], each["process"]) for each in states if each["id"] in here}
        more = {each["id"] for each in states if (each["host"], each["process"]) in members}
        if more == here:
            return [each for each in states if each["id"] in here]
        here = more


def communicators(states: list[State]) -> list[list[State]]:
    """Return the ranks of each communicator, without those that have made no call. Local."""
    found: dict[str, list[State]] = {}
    for each in states:
        found.setdefault(each["id"], []).append(each)
    return [ranks for ranks in found.values() if any(each.get("call") for each in ranks)]


def _of_hosts(hosts: Sequence[host_list.Host]) -> tuple[list[State], list[str]]:
    """Return the ranks of several hosts, and their problems."""
    boot = f"import sys; sys.path.insert(0, {several.HOME!r}); from collectives.cli import main; "
    boot += "sys.exit(main(['status', '--json']))"
    asked = []
    for each in hosts:
        command = [sys.executable, "-c", boot]
        if not each.is_here:
            command = [*several.SSH, each.name.strip("[]"), f"exec {shlex.join(command)}"]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": -1, "stderr": -1}
        asked.append((each.name, subprocess.Popen(command, **pipes, text=True)))  # type: ignore[call-overload]
    found: dict[tuple[str, int], State] = {}
    problems: list[str] = []
    for name, process in asked:
        try:
            out, problem = process.communicate(timeout=ANSWER)
        except subprocess.TimeoutExpired:
            process.kill()
            out, problem = process.communicate()[0], f"no answer in {ANSWER:g} s"
        try:
            told = json.loads(out[out.index('{\n "version"') :])
        except ValueError:
            why = several.meaning(problem) or (problem.strip().splitlines() or ["no output"])[-1]
            raise CommunicatorError(f"no status of {name}: {why}") from None
        problems += [f"{name}: {each}" for each in told["problems"]]
        for state in told["ranks"]:
            known = found.get((state["id"], state["rank"]))
            if known is None or known["state"] == "ended":
                found[state["id"], state["rank"]] = state
    return [found[key] for key in sorted(found)], problems


# ---- their state in words ------------------------------------------------------------------------


def lines(ranks: list[State]) -> list[str]:
    """Return a table of the ranks of a communicator, and who is late. Local."""
    one = ranks[0]
    hosts = dict.fromkeys(each["host"] for each in ranks)
    known = f"{len(ranks)} of " if len(ranks) < one["size"] else ""
    size = f"{known}{one['size']} {plural(one['size'], 'rank')}"
    rows = [("rank", "process", "calls", "since", "state")]
    for each in ranks:
        since = _time(each["seconds"]) if each.get("call") else ""
        calls = _number(each["calls"]) if "calls" in each else ""
        rows.append((str(each["rank"]), str(each["process"]), calls, since, _state(each)))
    head = f"communicator {one['name']}: {size} on {', '.join(hosts)}"
    return [head, *table.aligned(rows, left={4}), *sentences(ranks)]


def _state(rank: State) -> str:
    """Return the state of a rank in a few words."""
    stopped = "stopped, " if rank.get("stopped") else ""
    call = rank.get("call")
    if rank["state"] == "waits":
        ends = f" for {named(rank['waits_for'])}" if rank["waits_for"] else ""
        where = f" ({os.path.basename(rank['line'])})" if rank["line"] else ""
        return f"{stopped}in {call}{ends}{where}"
    if rank["state"] == "failed":
        return f"{stopped}has failed: {rank['waits']}"
    words = {"left": "has left", "ended": "has ended", "elsewhere": "in another communicator"}
    said = words.get(rank["state"], "outside of the library")
    flying = f", {len(rank['in_flight'])} in flight" if rank.get("in_flight") else ""
    return f"{stopped}{said}{f', after {call}' if call else ''}{flying}"


def sentences(ranks: list[State]) -> list[str]:
    """Return who waits, and who is late, if a rank has waited for a second, or failed. Local."""
    waits = any(each["state"] == "waits" and each["seconds"] >= LONG for each in ranks)
    if not waits and all(each["state"] != "failed" for each in ranks):
        return []
    groups: dict[str, list[State]] = {}
    for each in sorted(ranks, key=lambda rank: -rank.get("calls", -1)):
        groups.setdefault(_doing(each), []).append(each)
    said = []
    for doing, members in groups.items():
        for word, several_do in PLURALS.items() if len(members) > 1 else ():
            doing = doing.replace(word, several_do)
        times = [each["seconds"] for each in members if each.get("call")]
        is_timed = times and members[0]["state"] in TIMED and not members[0].get("stopped")
        lasted = f" ({_time(min(times))} so far)" if is_timed else ""
        said.append(f"{named(sorted(each['rank'] for each in members))} {doing}{lasted}")
    return ["; ".join(said)]


TIMED = "waits", "computes"  # states that have a time in sentences
PLURALS = {"waits ": "wait ", "has ": "have ", "computes": "compute", "is ": "are "}


def _doing(rank: State) -> str:
    """Return a verb and more: what a rank does, alike for all that do the same."""
    stopped = "is stopped" if rank.get("stopped") else ""
    if rank["state"] == "ended":
        return f"has ended (process {rank['process']})"
    is_message = rank["kind"] in MESSAGES
    where = rank["call"] if is_message else f"{rank['kind']} {_number(rank['number'] or 0)}"
    if rank["state"] == "failed":  # its call may be too long ago to be in the record
        return f"has failed in {where}" if rank["call"] else "has failed"
    if rank["state"] == "waits":
        return f"{stopped or 'waits'} in {where}"
    calls = f"{_number(rank['calls'])} {plural(rank['calls'], 'call')}"
    does = {"left": "has left", "elsewhere": "is in another communicator"}
    return f"has made {calls} and {stopped or does.get(rank['state'], 'computes')}"


MESSAGES = "send", "recv", "sendrecv"


def history(ranks: list[State], n: int = 5) -> list[str]:
    """Return the last calls of the ranks of a communicator, who began each of them last, and the
    first one that differs. Local.
    """
    made: dict[int, dict[str, list[tuple[float, int]]]] = {}
    for each in ranks:
        for call in each.get("last", []):
            if call["kind"] not in MESSAGES:
                name = f" '{call['name']}'" if call["name"] else ""
                alike = made.setdefault(call["number"], {}).setdefault(call["call"] + name, [])
                alike.append((call["began"], each["rank"]))
    rows = [("call", "ranks", "last to begin", "")]
    for number in sorted(made)[-n:]:
        began = [each for members in made[number].values() for each in members]
        lag = max(began)[0] - min(began)[0]
        late = f"rank {min(began)[1]}, by {time_text(lag)}" if len(began) > 1 else ""
        for call, members in made[number].items():
            who = spans(sorted(rank for _, rank in members))
            rows.append((_number(number), who, late, call))
            late = ""
    differs = next((number for number in sorted(made) if len(made[number]) > 1), None)
    said = [] if differs is None else [f"the first call that differs is {_number(differs)}"]
    return [*table.aligned(rows, left={2, 3}), *said]


def _number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def _time(seconds: float) -> str:
    """Return a time that was long ago, or not, in words."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = (hours, "h"), (minutes, "min"), (rest, "s")
    first = next((i for i, (value, _) in enumerate(parts) if value), 2)
    return " ".join(f"{value} {unit}" for value, unit in parts[first : first + 2])
