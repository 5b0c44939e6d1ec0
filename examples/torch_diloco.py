"""DiLoCo compared with DDP: the same network, with one allreduce in many steps.

Each rank makes `--inner-steps` steps of AdamW by itself. Then the ranks average the changes of the
parameters, and an outer optimizer makes a step with the mean. The program prints the loss on all
the data, and the bytes that a rank has contributed to the averages so far::

    collectives run -n 2 examples/torch_diloco.py
    collectives run -n 2 examples/torch_diloco.py --ddp

With ``--parts 4 --overlap 2``, the ranks average one part of the parameters at a time, and training
continues during the communication. With ``--compression int4``, the differences are sent in four
bits.

It needs torch (``pip install torch``).
"""

import argparse
import time

import torch
from torch import nn

import collectives.torch as hvd

ROWS, CLASSES = 7680, 10  # a multiple of many numbers of ranks
BITS = {None: 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4}


def data():
    """Return points, and for each the number of its spiral, of ten."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    radius = torch.rand(ROWS, generator=generator)
    noise = 0.05 * torch.randn(ROWS, generator=generator)
    angle = 2 * torch.pi * labels / CLASSES + 2 * radius + noise
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels


def network(width):
    """Return three layers."""
    return nn.Sequential(
        nn.Linear(2, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=128, help="of the layers")
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--overlap", type=int, default=0)
    parser.add_argument("--compression", choices=[each for each in BITS if each])
    parser.add_argument("--ddp", action="store_true", help="average the gradients in each step")
    parser.add_argument("--report", type=int, default=100, help="steps between two lines")
    return parser.parse_args()


def main():
    asked = arguments()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    model = network(asked.width)
    nbytes = sum(each.numel() for each in model.parameters()) * BITS[asked.compression] // 8
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    outer = None
    if asked.ddp:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        codec = asked.compression or hvd.Compression.none
        optimizer = hvd.DistributedOptimizer(optimizer, compression=codec)
    else:
        outer = hvd.DiLoCo(
            optimizer,
            inner_steps=asked.inner_steps,
            parts=asked.parts,
            overlap=asked.overlap,
            compression=asked.compression,
        )
    points, labels = data()
    mine = [each.chunk(hvd.size())[hvd.rank()] for each in (points, labels)]
    choose = torch.Generator().manual_seed(hvd.rank())
    measure = nn.CrossEntropyLoss()
    began = time.monotonic()
    for step in range(1, asked.steps + 1):
        rows = torch.randint(0, len(mine[0]), (64,), generator=choose)
        optimizer.zero_grad()
        measure(model(mine[0][rows]), mine[1][rows]).backward()
        optimizer.step()
        if step % asked.report == 0:
            with torch.no_grad():
                loss = hvd.allreduce(measure(model(points), labels), name="loss")
            if hvd.rank() == 0:
                sent = nbytes * (step if asked.ddp else step / asked.inner_steps)
                passed = time.monotonic() - began
                print(f"step {step}: loss {loss:.3f}, {sent / 1e6:.2f} MB, {passed:.2f} s")
    if outer is not None:
        outer.finish()


if __name__ == "__main__":
    main()
