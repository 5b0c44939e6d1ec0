"""DistributedDataParallel on the backend "collectives": the same losses on any number of ranks.

Each rank has a part of the data, and DDP averages the gradients over the ranks while the backward
pass goes on. The average over equal parts is the gradient of all the data. So the losses that the
program prints are those of one process, up to rounding.

``import collectives.torch`` registers the backend. Under mpirun, ranks find each other by MPI, so
that no addresses and ports are needed::

    collectives run -n 2 examples/torch_ddp.py

With ``--compression int8``, the gradients go through the background, and fewer bytes are sent.

It needs torch (``pip install torch``).
"""

import argparse

import torch
from torch import distributed as dist
from torch import nn

from collectives.torch import hooks

ROWS = 1920  # a multiple of many numbers of ranks


def data():
    """Return points in the plane, and for each 1.0 if it is inside a ring, else 0.0."""
    generator = torch.Generator().manual_seed(0)
    points = 2 * torch.rand(ROWS, 2, generator=generator) - 1
    distance = points.norm(dim=1)
    return points, ((distance > 0.4) & (distance < 0.8)).float()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--compression", help="a codec, such as int8; none by default")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("collectives")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # DDP gives all ranks the parameters of rank 0

    net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    model = nn.parallel.DistributedDataParallel(net)
    if arguments.compression:
        model.register_comm_hook(hooks.State(arguments.compression), hooks.allreduce)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    measure = nn.BCEWithLogitsLoss()

    points, inside = (each.chunk(size)[rank] for each in data())
    for epoch in range(1, arguments.epochs + 1):
        optimizer.zero_grad()
        loss = measure(model(points).squeeze(1), inside)
        loss.backward()
        optimizer.step()
        if epoch % 20 == 0:
            mean = loss.detach()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if rank == 0:
                print(f"epoch {epoch}: loss {mean.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
