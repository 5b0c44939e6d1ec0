"""Measure parameter servers: the training with each policy, the traffic, and the throughput.

    mpiexec -n 5 python benchmarks/measure_server.py policies --picture docs/research/servers.svg \\
        --staleness docs/research/servers_staleness.svg
    mpiexec -n 8 python benchmarks/measure_server.py traffic \\
        --picture docs/research/servers_traffic.svg
    mpiexec -n 4 python benchmarks/measure_server.py throughput

`policies` trains the network of ``examples/server_sgd.py`` several times with each policy, and
draws the run with the median time. `traffic` counts bytes with 1 to p - 1 workers. `throughput`
times steps without any computation: a pull and a push of each worker, and an allreduce of as many
workers.
"""

import statistics
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import compressed_sgd  # before NumPy: it sets the number of threads
import numpy as np
import server_sgd
from turns import alone, in_turns, longest, medians, options, say

import collectives as cc
from collectives import algorithms, server
from collectives.picture import colours, plots
from collectives.text.table import markdown, markdown_row

COUNT = 1 << 20  # elements of float32 whose traffic is counted
SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)  # bytes whose throughput is measured


# -- policies ------------------------------------------------------------------------------------


def measure_policies(arguments):
    images, labels, kind = compressed_sgd.load()
    tested = images[-compressed_sgd.TESTED :], labels[-compressed_sgd.TESTED :]
    training = images[: -compressed_sgd.TESTED], labels[: -compressed_sgd.TESTED]
    workers = cc.size() - 1
    runs = {name: [] for name in server_sgd.policies(workers)}
    for _ in range(arguments.turns):
        for name, policy in server_sgd.policies(workers).items():
            pulled, seconds, found = server_sgd.train(
                training, policy, arguments.steps, arguments.milliseconds / 1e3
            )
            told = None
            if cc.rank() == 1:
                curve = [
                    (when, version, compressed_sgd.loss_and_accuracy(weights, *tested)[1])
                    for when, version, weights in pulled
                ]
                times = [when for when, _, accuracy in curve if accuracy >= arguments.accuracy]
                told = curve, times[0] if times else float("inf")
            curve, first = cc.broadcast_object(told, root=1)
            runs[name].append((first, seconds, curve, found))
    if cc.rank() == 0:
        print_policies(runs, arguments, workers, kind)
        chosen = {name: sorted(each, key=lambda run: run[0]) for name, each in runs.items()}
        chosen = {name: each[len(each) // 2] for name, each in chosen.items()}
        if arguments.picture:
            draw_curves(chosen, arguments, f"Training on {kind}, {workers} workers, one slow")
        if arguments.staleness:
            draw_staleness(chosen, arguments.staleness)


def print_policies(runs, arguments, workers, kind):
    print(f"{kind}, {workers} workers, medians of {arguments.turns} runs")
    percent = 100 * arguments.accuracy
    heads = (f"s to {percent:g} %", "s in all", "gradients/s", "mean staleness", "dropped")
    rows = []
    for name, each in runs.items():
        first, seconds = (statistics.median(run[k] for run in each) for k in (0, 1))
        rate = statistics.median(sum(run[3].pushed.values()) / run[1] for run in each)
        late = statistics.median(run[3].mean_staleness for run in each)
        dropped = statistics.median(sum(run[3].dropped.values()) for run in each)
        rows.append(
            (name, f"{first:.2f}", f"{seconds:.2f}", f"{rate:.0f}", f"{late:.2f}", f"{dropped:g}")
        )
    print("\n".join(markdown(("policy", *heads), rows)))


def draw_curves(chosen, arguments, caption):
    figure, axes = plots.subplots(figsize=(8, 4.4))
    for k, (name, (_, _, curve, _)) in enumerate(chosen.items()):
        # Of the last pulls, the mean: single ones jump.
        smooth = [
            np.mean([each[2] for each in curve[max(0, i - 4) : i + 1]]) for i in range(len(curve))
        ]
        seconds = [each[0] for each in curve]
        axes.plot(seconds, smooth, color=colours.LIGHT[k], linewidth=1.3, label=name)
    axes.set(xlabel="seconds", ylabel="new images recognised", title=caption, ylim=(0.6, 1.0))
    axes.axhline(arguments.accuracy, color="#1b1f24", linewidth=0.6, linestyle=":")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    plots.save(figure, arguments.picture)


def draw_staleness(chosen, path):
    names = [name for name, run in chosen.items() if set(run[3].staleness) != {0}]
    figure, axes = plots.subplots(1, len(names), figsize=(8, 2.8), sharey=True, squeeze=False)
    for k, name in enumerate(names):
        tint = colours.LIGHT[list(chosen).index(name)]
        found = chosen[name][3].staleness
        total = sum(found.values())
        places = sorted(found)
        axes[0][k].bar(places, [found[each] / total for each in places], color=tint)
        axes[0][k].set(title=name, xlabel="updates")
    axes[0][0].set_ylabel("part of the gradients")
    figure.suptitle("By how many updates the parameters were newer than a gradient's own")
    plots.save(figure, path)


# -- traffic -------------------------------------------------------------------------------------


def measure_traffic(arguments):
    """Count the bytes of a step: of one server, of each of two, and of a rank of a ring."""
    nbytes = 4 * COUNT
    rows = []
    for workers in range(1, cc.size()):
        counts = [served_bytes(workers, servers) for servers in (1, 2)]
        ring = ring_bytes(workers)
        if cc.rank() == 0:
            rows.append(
                (workers, *(None if each is None else each / nbytes for each in (*counts, ring)))
            )
    if cc.rank() == 0:
        heads = ("workers m", "one server", "each of two", "a rank of a ring")
        formulas = ("2m", "2(m-1)", "2(m-1)/m")
        cells = [
            (
                str(m),
                *("-" if each is None else f"{each:.3f}" for each in counted),
                *(str(2 * m), str(2 * (m - 1)), f"{2 * (m - 1) / m:.3f}"),
            )
            for m, *counted in rows
        ]
        print("\n".join(markdown((*heads, *formulas), cells)))
        if arguments.picture:
            draw_traffic(rows, arguments.picture)


def served_bytes(workers, servers):
    """Return the bytes that came to server 0 and left it in a step; None on too few ranks."""
    size = workers + servers
    if size > cc.size():
        return None
    comm = cc.world().split(0 if cc.rank() < size else None)
    found = None
    if comm is not None:
        w, steps = np.zeros(COUNT, np.float32), 2
        with server.ParameterServer(comm, [w], optimizer=server.SGD(0.1), servers=servers) as ps:
            for _ in range(steps if ps.is_worker else 0):
                ps.pull()
                ps.push([w])
        found = (ps.statistics.received_bytes + ps.statistics.sent_bytes) / steps
        comm.free()
    return cc.broadcast_object(found)


def ring_bytes(workers):
    """Return the bytes that a rank sends in an allreduce of as many ranks, by its plan."""
    if workers == 1:
        return 0
    comm = cc.world().split(0 if cc.rank() < workers else None)
    found = None
    if comm is not None:
        with comm.trace() as trace:
            comm.allreduce(np.zeros(COUNT, np.float32), algorithm="ring")
        call = trace[0]
        costs = algorithms.get("allreduce", call.algorithm).totals(workers)
        found = costs[1] * call.nbytes
        comm.free()
    return cc.broadcast_object(found)


def draw_traffic(rows, path):
    figure, axes = plots.subplots(figsize=(8, 4))
    m = np.linspace(1, max(row[0] for row in rows), 100)
    lines = (
        ("one server: 2Nm", 2 * m),
        ("each of two servers: Nm", m),
        ("a rank of a ring allreduce: 2N(m-1)/m", 2 * (m - 1) / m),
    )
    for k, (label, values) in enumerate(lines, start=1):
        points = [(row[0], row[k]) for row in rows if row[k] is not None]
        axes.plot(*zip(*points, strict=True), "o", color=colours.LIGHT[k])
        axes.plot(m, values, color=colours.LIGHT[k], linewidth=0.8, label=label)
    label = "a server that is a worker: 2N(m-1)"
    axes.plot(m, 2 * (m - 1), "--", color="#1b1f24", linewidth=0.8, label=label)
    axes.set(xlabel="workers m", ylabel="bytes of a step, in units of N", ylim=0)
    axes.set_title("Points are counted, lines are formulas", fontsize=9)
    axes.grid(alpha=0.3)
    plots.label_ends(figure, [axes])
    plots.save(figure, path)


# -- throughput ----------------------------------------------------------------------------------


def measure_throughput(arguments):
    """Time steps of a synchronous server and allreduces of as many workers, in turns."""
    workers = cc.size() - 2
    comm = cc.world().split(0 if cc.rank() >= 2 else None)
    say(f"{workers} workers, medians of {arguments.turns} turns of {arguments.steps} steps")
    heads = ("bytes", "one server, ms", "two servers, ms", "asynchronous, ms", "allreduce, ms")
    say("\n".join(markdown(heads, [])))
    for nbytes in SIZES:
        steps = max(3, min(arguments.steps, (256 << 20) // nbytes))
        ways = {
            "one": partial(served_seconds, nbytes, [0], server.Synchronous),
            "two": partial(served_seconds, nbytes, [0, 1], server.Synchronous),
            "asynchronous": partial(served_seconds, nbytes, [0], server.Asynchronous),
            "allreduce": partial(reduced_seconds, comm, nbytes),
        }
        times = in_turns(ways, arguments.turns, lambda way, calls, steps=steps: way(steps), warm=0)
        cells = [f"{each:.2f}" for each in medians(times, 1e-3).values()]
        say(markdown_row([plots.short(nbytes), *cells]))


def served_seconds(nbytes, ranks, policy, steps):
    """Return the seconds of a step with servers on some ranks; ranks below 2 are no workers."""
    group = cc.world().split(0 if cc.rank() >= 2 or cc.rank() in ranks else None)
    seconds = 0.0
    if group is not None:
        w = np.zeros(nbytes // 4, np.float32)
        with server.ParameterServer(
            group, [w], optimizer=server.SGD(0.1), policy=policy(), servers=len(ranks)
        ) as ps:

            def step():
                ps.push([w])
                ps.pull()

            if ps.is_worker:
                ps.pull()
                alone(step, 2)
                seconds = alone(step, steps)
        group.free()
    return longest(seconds)


def reduced_seconds(comm, nbytes, steps):
    """Return the seconds of an allreduce of the workers."""
    seconds = 0.0
    if comm is not None:
        w = np.zeros(nbytes // 4, np.float32)
        call = partial(comm.allreduce, w, out=w)
        alone(call, 2)
        seconds = alone(call, steps)
    return longest(seconds)


def main():
    arguments = options(
        __doc__,
        what=["policies", "traffic", "throughput"],
        picture=None,
        staleness=None,
        turns=5,
        steps=100,
        milliseconds=0.5,
        accuracy=0.88,
    )
    measures = {
        "policies": measure_policies,
        "traffic": measure_traffic,
        "throughput": measure_throughput,
    }
    measures[arguments.what](arguments)


if __name__ == "__main__":
    main()
