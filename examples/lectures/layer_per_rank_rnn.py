"""Model parallelism in a recurrent network: each rank has one layer.

Layer l computes its state at time t from its own state at time t - 1 and from that of layer l - 1
at time t. So rank l can begin when rank l - 1 has done one time step. After p - 1 steps, all ranks
are busy at once, each at another time of the sequence::

    rank 0   t=0  t=1  t=2  t=3  t=4   .    .
    rank 1    .   t=0  t=1  t=2  t=3  t=4   .
    rank 2    .    .   t=0  t=1  t=2  t=3  t=4

No micro-batches are needed, because the sequence consists of time steps. The backward pass does the
same from the last layer to the first, and from the last time to the first. With T time steps on p
ranks, each rank is idle for (p - 1) / (T + p - 1) of each pass.

Each rank sends its state to the next one by `isend`, and continues. The program compares its result
with one process, and shows the times at which each rank was busy, from a timeline. Run it on any
number of ranks::

    collectives run -n 4 examples/lectures/layer_per_rank_rnn.py --cell 5 --picture rnn.svg

`--cell` is the shortest time of a time step in milliseconds, as if the layers were large. The
picture is then that of a machine with a core for each rank, on any machine.
"""

import argparse
import contextlib
import json
import tempfile
import time
from pathlib import Path

import numpy as np

import collectives as cc

BATCH, WIDTH = 16, 32


class Layer:
    """A recurrent layer: h(t) = tanh(x(t) W + h(t - 1) U + b)."""

    def __init__(self, number):
        rng = np.random.default_rng(number)
        scale = WIDTH**-0.5
        self.w, self.u = rng.normal(0.0, scale, (2, WIDTH, WIDTH))
        self.b = rng.normal(0.0, 0.1, WIDTH)
        self.inputs, self.states = [], [np.zeros((BATCH, WIDTH))]
        self.gradients = [np.zeros_like(each) for each in (self.w, self.u, self.b)]
        self.later = np.zeros((BATCH, WIDTH))  # the gradient of h(t) that comes from h(t + 1)

    def forward(self, x):
        """Return the state at the next time."""
        self.inputs.append(x)
        self.states.append(np.tanh(x @ self.w + self.states[-1] @ self.u + self.b))
        return self.states[-1]

    def backward(self, gradient):
        """Return the gradient of the input at the last time, and go back by one."""
        state = self.states.pop()
        inner = (gradient + self.later) * (1.0 - state**2)
        x, before = self.inputs.pop(), self.states[-1]
        for total, part in zip(
            self.gradients, (x.T @ inner, before.T @ inner, inner.sum(0)), strict=True
        ):
            total += part
        self.later = inner @ self.u.T
        return inner @ self.w.T


def data(length):
    """Return the input and the expected output at each time."""
    rng = np.random.default_rng(99)
    return rng.normal(size=(length, BATCH, WIDTH)), rng.normal(0.0, 0.3, (length, BATCH, WIDTH))


def loss_of(output, target):
    """Return the loss at one time, and its gradient."""
    difference = output - target
    return 0.5 * float((difference**2).sum()), difference


def pipelined(layer, sequence, targets, pause):
    """Run both passes; return the loss on the last rank, and the gradients of the input on the
    first."""
    r, p = cc.rank(), cc.size()
    below, above = (r - 1 if r else None), (r + 1 if r < p - 1 else None)
    requests, loss, errors = [], 0.0, []
    for x, target in zip(sequence, targets, strict=True):
        if below is not None:
            x = cc.recv(np.empty_like(x), below)
        pause()
        state = layer.forward(x)
        if above is None:
            part, error = loss_of(state, target)
            loss += part
            errors.append(error)
        else:
            requests.append(cc.isend(state, above))
    of_input = []
    for _ in sequence:
        gradient = errors.pop() if above is None else cc.recv(np.empty((BATCH, WIDTH)), above)
        pause()
        gradient = layer.backward(gradient)
        if below is None:
            of_input.append(gradient)
        else:
            requests.append(cc.isend(gradient, below))
    for request in requests:
        request.wait()
    return loss, of_input[::-1]


def in_one_process(sequence, targets):
    """Return the loss, the gradients of all layers, and those of the input."""
    layers = [Layer(number) for number in range(cc.size())]
    loss, errors = 0.0, []
    for x, target in zip(sequence, targets, strict=True):
        for layer in layers:
            x = layer.forward(x)
        part, error = loss_of(x, target)
        loss += part
        errors.append(error)
    of_input = []
    for error in errors[::-1]:
        for layer in layers[::-1]:
            error = layer.backward(error)
        of_input.append(error)
    return loss, [layer.gradients for layer in layers], of_input[::-1]


# -- the idle times of ranks -----------------------------------------------------------------------


def busy(path, ranks):
    """Return the busy times of each rank as pairs of seconds, and the seconds of both passes, from
    a timeline that has them between two barriers."""
    events = json.loads(Path(path).read_text())["traceEvents"]
    events = [each for each in events if each["ph"] == "X"]
    waits, barriers = [[] for _ in range(ranks)], [[] for _ in range(ranks)]
    for each in events:
        span = 1e-6 * each["ts"], 1e-6 * (each["ts"] + each["dur"])
        if each["name"] == "wait":
            waits[each["pid"]].append(span)
        elif each["name"] == "barrier":
            barriers[each["pid"]].append(span)
    began, ended = (max(sorted(mine)[k][1] for mine in barriers) for k in (0, 1))
    for rank, mine in enumerate(barriers):
        waits[rank].append(sorted(mine)[1])
    works = []
    for spans in waits:
        last, mine = 0.0, []
        for begin, end in sorted(spans):
            begin, end = (min(max(t - began, 0.0), ended - began) for t in (begin, end))
            if begin > last:
                mine.append((last, begin))
            last = max(last, end)
        works.append([*mine, (last, ended - began)])
    return works, ended - began


def diagram(works, seconds, columns=60):
    """Yield a line for each rank, which shows the busy part of each interval."""
    width = seconds / columns
    for rank, spans in enumerate(works):
        cells = ""
        for column in range(columns):
            left = column * width
            part = sum(max(0.0, min(e, left + width) - max(b, left)) for b, e in spans) / width
            cells += "#" if part > 0.5 else "."
        yield f"rank {rank}  {cells}"


def draw(works, seconds, path):
    """Draw the busy times of each rank."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise SystemExit("no picture: matplotlib is not installed") from None
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "collectives"  # names in the file do not change
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.9 + 0.4 * len(works)), layout="constrained")
    for rank, spans in enumerate(works):
        lengths = [(1e3 * b, 1e3 * (e - b)) for b, e in spans]
        axes.broken_barh([(0.0, 1e3 * seconds)], (rank - 0.35, 0.7), color="#eceef0")
        axes.broken_barh(lengths, (rank - 0.35, 0.7), color="#0a7d91")
    axes.set_yticks(range(len(works)), [f"rank {rank}" for rank in range(len(works))])
    axes.invert_yaxis()
    axes.set_xlabel("ms; a rank computes where it is dark, and waits where it is light")
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--length", type=int, default=24, help="time steps")
    parser.add_argument("--cell", type=float, default=0.0, help="ms for one time step of a layer")
    parser.add_argument("--picture", help="a file to draw, in SVG, PNG or PDF")
    options = parser.parse_args()
    r, p = cc.rank(), cc.size()
    sequence, targets = data(options.length)
    layer, comm = Layer(r), cc.world()

    def pause():
        time.sleep(1e-3 * options.cell)

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory()) if r == 0 else None
        path = cc.broadcast_object(f"{folder}/rnn.json")
        with comm.timeline(path):
            cc.barrier()
            loss, of_input = pipelined(layer, sequence, targets, pause)
            cc.barrier()  # the ranks that are ready wait for the others
        works, seconds = busy(path, p) if r == 0 else (None, None)

    loss = cc.broadcast_object(loss, root=p - 1)
    gradients = cc.gather_object(layer.gradients)
    if r:
        return
    want, of_layers, of_sequence = in_one_process(sequence, targets)
    pairs = [
        (a, b)
        for mine, whole in zip(gradients, of_layers, strict=True)
        for a, b in zip(mine, whole, strict=True)
    ]
    pairs += [(np.array(of_input), np.array(of_sequence)), (np.array([loss]), np.array([want]))]
    error = max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)
    print(*diagram(works, seconds), sep="\n")
    idle = [1 - sum(e - b for b, e in each) / seconds for each in works]
    print("idle:", ", ".join(f"rank {k} {100 * part:.0f} %" for k, part in enumerate(idle)))
    print(f"by the formula {100 * (p - 1) / (options.length + p - 1):.0f} % of each pass")
    print(f"{p} layers; loss and gradients differ from those of one process by {error:.0e}")
    if options.picture:
        draw(works, seconds, options.picture)
        print(f"drawn: {options.picture}")
    if not error < 1e-12:
        raise SystemExit("the result of the pipeline is wrong")


if __name__ == "__main__":
    main()
