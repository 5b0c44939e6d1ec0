"""Write the tables of the manual and of README.md, and a figure, from the runs in `results`.

``python benchmarks/tables.py`` puts the tables between the marks in the pages below; a test holds
the files against it.
"""

import json
import re
import statistics
from pathlib import Path

import chart
import measure_synthesis

from collectives.choice.select import measured
from collectives.cli import bench_table
from collectives.measuring import state
from collectives.text.table import markdown
from collectives.text.words import size_text

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (
    "README.md",
    "docs/results/today.md",
    "docs/results/beside_mpi.md",
    "docs/results/choice.md",
    "docs/results/models.md",
)
FIGURE = "docs/results/today.svg"
TURNS = 3  # measurements of a state from which on it is shown
BEGIN, END = "<!-- [results] {} -->\n", "<!-- [end] -->"

# The files of each part of the page, with the text beside the name of an MPI.
RATIOS = {
    "two": {
        "mpich-2": "as mpi4py starts it",
        "mpich-serialized-2": "started with `MPI_THREAD_SERIALIZED`",
        "openmpi-2": "",
        "openmpi-yield-2": "with `mpi_yield_when_idle`",
        "impi-2": "",
    },
    "crowded": {"mpich-4-8": "", "openmpi-4-8": "", "impi-4-8": ""},
    "cores": {"mpich-16": "", "impi-16": ""},
}
TIMES = {"times": "mpich-2", "gloo": "mpich-gloo-2", "shared": "mpich-shared-2"}


def run_of(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def trips(rows):
    return [
        None if trip is None else 1e-9 * trip
        for trip in {(row.collective, row.asked): row.round_trip_ns for row in rows}.values()
    ]


def states(rows):
    """Say in which state each collective was measured, with those in the same state together."""
    groups = {}
    for name in dict.fromkeys(row.collective for row in rows):
        text = state.text(trips([row for row in rows if row.collective == name]))
        groups.setdefault(text.partition(";")[0], []).append(name)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in groups.items())


def ratio_table(name, note):
    """Yield the lines of one file: the time of the default over the MPI's."""
    document = run_of(name)
    yield f"`{document['command']}`"
    for run in map(bench_table.read, document["runs"]):
        said = f"{run['mpi']}, {note}" if note else run["mpi"]
        yield from ("", f"{said}; {run['ranks']} ranks; {states(run['rows'])}.", "")
        yield from (line for line in bench_table.markdown_lines(run) if line.startswith("|"))
    yield ""


def time_tables(name):
    """Yield the lines of one file: the times of all peers."""
    document = run_of(name)
    yield f"`{document['command']}`"
    for run in map(bench_table.read, document["runs"]):
        yield ""
        yield from bench_table.peer_lines(run, document)[2:]
    yield ""


def choices(family):
    """Yield the table of the fastest algorithms, from the table of the library."""
    table = measured()
    (said,) = (each for each in table.sections if each.transport == family)
    machine = f"{table.cores} cores, {table.cpu}"
    yield f"Measured by {said.command}; {said.library}, {machine}, {said.date}."
    found = said.rows
    sizes = sorted({p for rows in found.values() for p in rows})
    rows = [
        [collective, *(", ".join(spans(each[p])) if p in each else "" for p in sizes)]
        for collective, each in found.items()
    ]
    yield from ["", *markdown(["collective", *(f"{p} ranks" for p in sizes)], rows), ""]


def spans(rows):
    """Yield which algorithm is chosen up to which size, whatever its segments."""
    for k, (limit, name, *_) in enumerate(rows):
        if k + 1 < len(rows) and rows[k + 1].algorithm == name:
            continue
        yield f"`{name}`" if limit is None else f"`{name}` to {size_text(limit + 1)}"


def chosen_files():
    """Return the measurements of the choice, by MPI and number of ranks."""
    documents = [json.loads(path.read_text()) for path in (RESULTS / "choice").glob("*.json")]
    return sorted(documents, key=lambda each: (each["mpi"], each["ranks"]))


def choice():
    """Yield the table of how good the choice is."""
    names = {
        "profile": "with a profile",
        "race": "the fastest before",
        "none": "without",
        "model": "by a probe",
    }
    ends = [f"{text}, {part} %" for text in names.values() for part in (10, 30)]
    commands, rows = {}, []
    for each in chosen_files():
        commands.setdefault(each["mpi"], each["command"].replace(f"-n {each['ranks']} ", "-n N "))
        commands[each["mpi"]] = commands[each["mpi"]].replace(f"-{each['ranks']}.json", "-N.json")
        for transport, of in each["shares"]["none"].items():
            cells = [
                f"{100 * each['shares'][name][transport][f'within_{part}']:.0f}"
                for name in names
                for part in (10, 30)
            ]
            through = "shared memory" if transport == "shm" else "messages"
            rows.append([each["mpi"], through, str(each["ranks"]), str(of["points"]), *cells])
    yield from [*markdown(["MPI", "through", "ranks", "points", *ends], rows), ""]
    yield "Shares in %. " + "; ".join(f"`{text}`" for text in commands.values()) + "."
    yield ""
    documents = chosen_files()

    def within(name, limit, *ranks):
        near = [
            point[name]["over"] <= limit
            for each in documents
            for point in each["rows"]
            if not ranks or each["ranks"] in ranks
        ]
        return f"{100 * sum(near) / len(near):.0f} %"

    points = [point for each in documents for point in each["rows"]]
    off = [point for point in points if point["profile"]["over"] > 1.1]
    cut = sum(p["profile"]["chosen"].split("/")[0] == p["best"].split("/")[0] for p in off)
    apart = ", ".join(
        f"on {n} ranks {within('profile', 1.1, n)} ({within('race', 1.1, n)})"
        for n in dict.fromkeys(each["ranks"] for each in documents)
    )
    yield (
        f"Of all {len(points)} points, with a profile {within('profile', 1.1)} are within 10 % of "
        f"the best (the fastest a moment before: {within('race', 1.1)}), {apart}; without a "
        f"profile {within('none', 1.3)} are within 30 %. Of the {len(off)} points that a profile "
        f"misses, {cut} have the best algorithm in other segments."
    )
    yield ""


def best():
    """Yield the table of the fastest algorithms through messages of MPI."""
    found = [each for each in chosen_files() if each["ranks"] in (2, 4, 8)]
    places = [(each["mpi"], each["ranks"]) for each in found]
    rows = {}
    for each in found:
        for point in each["rows"]:
            if point["transport"] != "shm":
                name = point["best"].partition("/")[0]
                place = each["mpi"], each["ranks"]
                rows.setdefault((point["collective"], point["bytes"]), {})[place] = f"`{name}`"
    lines = [
        [
            collective,
            size_text(nbytes) if nbytes else "",
            *(cells.get(place, "") for place in places),
        ]
        for (collective, nbytes), cells in rows.items()
    ]
    heads = [f"{mpi}, {n} ranks" for mpi, n in places]
    yield from [*markdown(["collective", "bytes", *heads], lines), ""]


def synthesis():
    """Yield what the search has found on its suite of networks."""
    document = run_of("synthesis/suite")
    yield f"`{document['command']}`; Python {document['python']}, {document['machine']}."
    rows = [measure_synthesis.cells(row) for row in document["rows"]]
    yield from ["", *markdown(measure_synthesis.HEADS, rows), ""]


def scale():
    """Yield the table of the cost of simulations."""
    document = run_of("scale/simulate")
    yield f"`{document['command']}`; Python {document['python']}, {document['machine']}."
    rows = [
        (
            f"{row['collective']} {row['algorithm']}",
            f"`{row['machine']}`",
            f"{row['messages']:,}",
            f"{row['seconds']:.2f}",
            f"{row['bytes'] / 1e9:.2f}",
        )
        for row in document["rows"]
    ]
    yield from ["", *markdown(("algorithm", "machine", "messages", "s", "GB"), rows), ""]


PEERS = {"MPICH": "mpich", "Open MPI": "openmpi", "Intel MPI": "impi"}
STATES = "near", "far"
# The folders of measurements in both states, with the processor.
PROCESSORS = {
    "sapphire_rapids": "Intel Xeon (Sapphire Rapids; 2 MiB of private cache for each core)",
    "zen4": "AMD EPYC (family 25, model 17: Zen 4; 1 MiB of private cache for each core)",
    "zen3": "AMD EPYC (family 25, model 1: Zen 3; 512 KiB of private cache for each core)",
}


def states_rows(processor):
    """Return the measurements of a processor in each state, beside each MPI."""
    return {
        (peer, row["state"], row["collective"], row["bytes"]): row
        for peer, name in PEERS.items()
        for row in run_of(f"states/{processor}/{name}")["rows"]
        if row["state"] in STATES and row["turns"] >= TURNS
    }


def seen_states(found):
    """Return the states in which the processor was, near first."""
    return [each for each in STATES if each in {key[1] for key in found}]


def both_states(processor, collective):
    """Yield the table of one collective of two ranks: near, and far."""
    found = states_rows(processor)
    seen = seen_states(found)
    heads = [f"{state}: {what}" for state in seen for what in ("us", *(f"x {p}" for p in PEERS))]
    lines = []
    for nbytes in sorted({key[3] for key in found if key[2] == collective}):
        cells = [size_text(nbytes)]
        for state_name in seen:
            rows = [found.get((peer, state_name, collective, nbytes)) for peer in PEERS]
            times = [row["ours_us"] for row in rows if row]
            cells.append(short(statistics.median(times)) if times else "")
            cells += [f"{row['ratio']:.2f}" if row else "" for row in rows]
        lines.append(cells)
    yield from [*markdown(["bytes", *heads], lines), ""]


BRIEF = "sapphire_rapids"  # the processor of README.md
BRIEF_SIZES = 8, 16 << 10, 64 << 20


def brief():
    """Yield the times of allreduce on far cores, for README.md."""
    found = states_rows(BRIEF)
    lines = []
    for nbytes in BRIEF_SIZES:
        rows = [found[peer, "far", "allreduce", nbytes] for peer in PEERS]
        ours = statistics.median(row["ours_us"] for row in rows)
        lines.append([size_text(nbytes), short(ours), *(short(row["mpi_us"]) for row in rows)])
    heads = ["bytes", "this library", "MPICH 5.0.2", "Open MPI 5.0.11", "Intel MPI 2021.17"]
    yield from markdown(heads, lines)
    documents = [run_of(f"states/{BRIEF}/{name}") for name in PEERS.values()]
    (date,) = {each["date"] for each in documents}
    for head, each in zip(heads[2:], documents, strict=True):
        assert head.rpartition(" ")[2] in each["mpi"]
    yield from (
        "",
        "Intel Xeon (Sapphire Rapids), two cores that share no cache; medians of",
        f"`mpiexec -n 2 python benchmarks/measure_states.py FILE.json`, {date}.",
    )


# The columns of the table of today's results, and the panels of its figure.
CASES = {
    "Xeon, far": ("sapphire_rapids", "far"),
    "EPYC, far": ("zen4", "far"),
    "EPYC, near": ("zen4", "near"),
}
TODAY = ["allreduce", "broadcast", "allgather", "alltoall"]
TODAY_SIZES = 8, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20
SHORT_NAMES = {"sapphire_rapids": "Xeon", "zen4": "EPYC"}


def today():
    """Yield the table of five collectives of two ranks, without the columns that are empty."""
    cases = {name: (states_rows(case[0]), case[1]) for name, case in CASES.items()}
    heads = ["", *(what for name in cases for what in (f"{name}: us", *(f"x {p}" for p in PEERS)))]
    lines = []
    points = [("barrier", 0), *((name, nbytes) for name in TODAY for nbytes in TODAY_SIZES)]
    for collective, nbytes in points:
        cells = [f"{collective} {size_text(nbytes)}" if nbytes else collective]
        for found, said in cases.values():
            rows = [found.get((peer, said, collective, nbytes)) for peer in PEERS]
            times = [row["ours_us"] for row in rows if row]
            cells.append(short(statistics.median(times)) if times else "")
            cells += [f"{row['ratio']:.2f}" if row else "" for row in rows]
        lines.append(cells)
    used = [k for k in range(len(heads)) if not k or any(cells[k] for cells in lines)]
    yield from markdown([heads[k] for k in used], [[cells[k] for k in used] for cells in lines])


def figure():
    """Return the figure of the same allreduces, and of those of 16 ranks."""
    panels = []
    for name, (processor, said) in CASES.items():
        lines = {}
        for (peer, where, collective, nbytes), row in states_rows(processor).items():
            if (where, collective) == (said, "allreduce"):
                lines.setdefault(peer, {})[nbytes] = 1 / row["ratio"]
        cores = "a cache" if said == "near" else "no cache"
        panels.append(chart.Panel(f"{name}: 2 ranks, cores share {cores}", lines))
    lines = {}
    for peer, name in {"MPICH": "mpich-16", "Intel MPI": "impi-16"}.items():
        for run in run_of(name)["runs"]:
            for row in run["rows"]:
                if (row["collective"], row["algorithm"]) == ("allreduce", "MPI"):
                    lines.setdefault(peer, {})[row["asked"]] = row["median_us"]
            for row in run["rows"]:
                if row["collective"] == "allreduce" and row["algorithm"] != "MPI":
                    lines[peer][row["asked"]] /= row["median_us"]
    panels.append(chart.Panel("Another Xeon: 16 ranks on 16 cores", lines))
    return chart.figure(panels, tuple(PEERS))


def summary():
    """Yield how often this version is faster than each MPI on two ranks, by processor and state."""
    lines = []
    for processor, name in SHORT_NAMES.items():
        found = states_rows(processor)
        for said in seen_states(found):
            for peer in PEERS:
                rows = [row for key, row in found.items() if key[:2] == (peer, said)]
                ratios = sorted(row["ratio"] for row in rows)
                if not ratios:
                    continue
                sums = [row["ratio"] for row in rows if row["collective"] == "allreduce"]
                above = sum(each > 1 for each in ratios)
                lines.append(
                    [
                        f"{name}, {said}",
                        peer,
                        str(len(ratios)),
                        f"{statistics.median(ratios):.2f}",
                        f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
                        f"{min(sums):.2f} to {max(sums):.2f}",
                        str(above),
                    ]
                )
    heads = ["machine, state", "MPI", "cells", "median", "all", "allreduce", "cells above 1"]
    yield from markdown(heads, lines)


def every_state():
    """Yield the tables of all collectives in both states, and of arrays in shared memory."""
    for name, text in PROCESSORS.items():
        yield from (f"### {text}", "", *states_of(name))


def states_of(processor):
    """Yield the tables of one processor."""
    documents = [run_of(f"states/{processor}/{name}") for name in PEERS.values()]
    found = states_rows(processor)
    seen = seen_states(found)
    yield f"`{'`; `'.join(each['command'] for each in documents)}`; {documents[0]['date']}."
    for collective in dict.fromkeys(key[2] for key in found):
        yield from ("", f"{collective}:", "", *both_states(processor, collective))
    yield "allreduce of arrays in shared memory, beside a copy of the same size:"
    yield ""
    heads = [f"{state}: {what}" for state in seen for what in ("us", "the copy, us", "copy / us")]
    lines = []
    found = {key: row for key, row in found.items() if "shared_us" in row}
    for nbytes in sorted({key[3] for key in found}):
        cells = [size_text(nbytes)]
        for name in seen:
            rows = [row for key, row in found.items() if (key[1], key[3]) == (name, nbytes)]
            if not rows:
                cells += ["", "", ""]
                continue
            ours, copy = (statistics.median(r[f"{k}_us"] for r in rows) for k in ("shared", "copy"))
            cells += [short(ours), short(copy), f"{copy / ours:.2f}"]
        lines.append(cells)
    yield from [*markdown(["bytes", *heads], lines), ""]
    yield from in_heaps({key: row for key, row in found.items() if "heap_us" in row}, seen)


def in_heaps(found, seen):
    """Yield the table of arrays that NumPy makes in shared memory, beside each MPI."""
    if not found:
        return
    yield from (
        "The same with the arrays of `cc.shared_arrays()`, over each MPI with private ones:",
        "",
    )
    heads = [f"{state}: {what}" for state in seen for what in ("us", *(f"x {p}" for p in PEERS))]
    lines = []
    for nbytes in sorted({key[3] for key in found}):
        cells = [size_text(nbytes)]
        for name in seen:
            rows = [found.get((peer, name, "allreduce", nbytes)) for peer in PEERS]
            times = [row["heap_us"] for row in rows if row]
            cells.append(short(statistics.median(times)) if times else "")
            cells += [f"{row['heap_us'] / row['mpi_us']:.2f}" if row else "" for row in rows]
        lines.append(cells)
    yield from [*markdown(["bytes", *heads], lines), ""]


def peers():
    """Yield the tables of allreduce beside single algorithms of MPIs, and other libraries."""
    for folder, text in PROCESSORS.items():
        paths = sorted((RESULTS / "peers" / folder).glob("*.json"))
        documents = [json.loads(path.read_text()) for path in paths]
        if not documents:
            continue
        commands = "`; `".join(each["command"] for each in documents)
        yield from (f"### {text}", "", f"`{commands}`; {documents[0]['date']}.")
        rows = [row for each in documents for row in each["rows"] if row["turns"] >= TURNS]
        for ranks in sorted({row["ranks"] for row in rows}):
            for name in STATES:
                found = [row for row in rows if (row["ranks"], row["state"]) == (ranks, name)]
                yield from beside_peers(found, f"{ranks} ranks, {name}:")
        yield ""


def beside_peers(rows, heading):
    """Yield the table of one number of ranks in one state, if it has rows."""
    if not rows:
        return
    sizes = sorted({row["bytes"] for row in rows})
    ours = [statistics.median(r["ours_us"] for r in rows if r["bytes"] == n) for n in sizes]
    lines = [["this library", *map(short, ours)]]
    for peer in dict.fromkeys(row["peer"] for row in rows):
        own = {row["bytes"]: row for row in rows if row["peer"] == peer}
        lines.append([peer, *(beside(own.get(nbytes)) for nbytes in sizes)])
    yield from ("", heading, "", *markdown(["", *map(size_text, sizes)], lines))


def beside(row):
    """Return the time of a peer, and in parentheses ours over it, bold above 1."""
    if row is None:
        return ""
    mark = "**" if row["ratio"] > 1 else ""
    return f"{short(row['peer_us'])} ({mark}{row['ratio']:.2f}{mark})"


def short(us):
    return f"{us:.3g}" if us < 1000 else f"{us:,.0f}"


WHOLE = {
    "scale": scale,
    "synthesis": synthesis,
    "choice": choice,
    "best": best,
    "readme": brief,
    "today": today,
    "summary": summary,
    "states": every_state,
    "peers": peers,
}


def filled(text):
    """Return a page with its tables written anew."""
    for part in re.findall(re.escape(BEGIN.format("PART")).replace("PART", "(.*?)"), text):
        if part in WHOLE:
            lines = list(WHOLE[part]())
        elif part.startswith("measured "):
            lines = list(choices(part.removeprefix("measured ")))
        elif part in TIMES:
            lines = list(time_tables(TIMES[part]))
        else:
            lines = [line for each in RATIOS[part].items() for line in ratio_table(*each)]
        made = "\n".join(lines).strip("\n") + "\n"
        mark = BEGIN.format(part)
        text = re.sub(
            re.escape(mark) + f".*?(?={re.escape(END)})",
            lambda found, made=made, mark=mark: mark + made,
            text,
            flags=re.DOTALL,
        )
    return text


def main():
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text()))
    (ROOT / FIGURE).write_text(figure())


if __name__ == "__main__":
    main()
