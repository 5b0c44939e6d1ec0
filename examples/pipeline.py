"""Model parallelism by layers: each rank has one layer, and the batch passes through the ranks.

A network that is too large for one machine is divided between its layers. Rank r has layer r,
receives the activations from rank r - 1, and sends its own activations to rank r + 1. If the batch
is sent in one piece, only one rank works at a time. So it is divided into micro-batches: while
rank 1 works on the first one, rank 0 works on the second one::

    time    0  1  2  3  4  5  6
    rank 0  0  1  2  3  .  .  .
    rank 1  .  0  1  2  3  .  .
    rank 2  .  .  0  1  2  3  .
    rank 3  .  .  .  0  1  2  3

The dots are the pipeline bubble. With m micro-batches on p ranks, the fraction
(p - 1) / (m + p - 1) of the time of all ranks is lost. More micro-batches make the bubble smaller,
but there is less work for each message.

A rank may start its next micro-batch before the next rank has received the last one. `isend`
returns at once, and its array must not be changed until the request is complete. Run it on any
number of ranks::

    collectives run -n 4 examples/pipeline.py --pieces 8
"""

import argparse

import numpy as np

import collectives as cc

BATCH, WIDTH = 96, 64


def layer(r):
    """Return the weights of layer `r`. A rank makes only its own layer."""
    return np.random.default_rng(r).normal(0.0, np.sqrt(2.0 / WIDTH), (WIDTH, WIDTH))


def forward(weights, x):
    return np.maximum(x @ weights, 0.0)


def diagram(m, p):
    """Yield a line for each rank that shows its micro-batch at each time."""
    for r in range(p):
        cells = [str(t - r) if 0 <= t - r < m else "." for t in range(m + p - 1)]
        yield f"rank {r}  " + "".join(f"{cell:>3}" for cell in cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pieces", type=int, default=4, help="number of micro-batches")
    m = parser.parse_args().pieces
    r, p = cc.rank(), cc.size()
    batch = np.random.default_rng(99).normal(size=(BATCH, WIDTH))  # only rank 0 uses it

    weights, requests, results = layer(r), [], []
    for piece in np.array_split(batch, m):
        x = piece if r == 0 else cc.recv(np.empty_like(piece), r - 1)
        y = forward(weights, x)
        if r < p - 1:
            requests.append(cc.isend(y, r + 1))  # keeps y until it has been sent
        else:
            results.append(y)
    for request in requests:
        request.wait()

    # The last rank has the results, and rank 0 verifies them.
    result = np.concatenate(results) if r == p - 1 else np.empty_like(batch)
    cc.broadcast(result, out=result, root=p - 1)
    if r == 0:
        whole = batch
        for each in range(p):
            whole = forward(layer(each), whole)
        error = np.abs(result - whole).max() / np.abs(whole).max()
        print(*diagram(m, p), sep="\n")
        print(f"the bubble is {100 * (p - 1) / (m + p - 1):.0f} % of the time")
        print(f"number of layers {p}; the result is off by {error:.0e} from the undivided model's")
        if not error < 1e-12:
            raise SystemExit("the result of the pipeline is wrong")


if __name__ == "__main__":
    main()
