"""A training job that can be killed: DDP, a checkpoint every few steps, a start from the last one.

    collectives run --no-mpi -H host1:2,host2:2 examples/torch_job.py

Started again after a failure, it ends with the parameters of a job that was not interrupted, bit
for bit. A batch depends only on its step, and with ``bits="size"`` a sum over the ranks depends
neither on the algorithm nor on the hosts of the ranks. ``--lose 120`` kills the last rank in that
step, unless the job has started from a checkpoint.

It needs torch (``pip install torch``).
"""

import argparse
import os
import signal
import zlib
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn

import collectives.torch

BATCH = 96  # examples of a step, on all ranks together


def batch(step, rank, size):
    """Return this rank's part of a batch: points, and for each 1.0 if it is inside a ring."""
    generator = torch.Generator().manual_seed(step)
    points = 2 * torch.rand(BATCH, 2, generator=generator) - 1
    distance = points.norm(dim=1)
    inside = ((distance > 0.4) & (distance < 0.8)).float()
    return points[rank::size], inside[rank::size]


def save(file, **state):
    """Replace a checkpoint at once, so that a job that is killed meanwhile leaves the old one."""
    new = file.with_name(file.name + ".new")
    torch.save(state, new)
    os.replace(new, file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--checkpoint", type=Path, default=Path("job.pt"), metavar="FILE")
    parser.add_argument("--lose", type=int, metavar="STEP", help="kill the last rank in this step")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    collectives.torch.init_process_group(bits="size")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)

    # Rank 0 reads the checkpoint for all ranks.
    found = rank == 0 and arguments.checkpoint.exists()
    saved = [torch.load(arguments.checkpoint, weights_only=True) if found else None]
    dist.broadcast_object_list(saved)
    first = 0
    if saved[0] is not None:
        net.load_state_dict(saved[0]["net"])
        optimizer.load_state_dict(saved[0]["optimizer"])
        first = saved[0]["step"]
        if rank == 0:
            print(f"start from the checkpoint after step {first}", flush=True)

    model = nn.parallel.DistributedDataParallel(net)
    measure = nn.BCEWithLogitsLoss()
    for step in range(first + 1, arguments.steps + 1):
        if step == arguments.lose and first == 0 and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        points, inside = batch(step, rank, size)
        optimizer.zero_grad()
        loss = measure(model(points).squeeze(1), inside)
        loss.backward()
        optimizer.step()
        if step % arguments.every == 0:
            mean = loss.detach()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step}: loss {mean.item():.3f}", flush=True)
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
                save(arguments.checkpoint, step=step, **state)

    if rank == 0:
        bits = b"".join(each.detach().numpy().tobytes() for each in net.parameters())
        print(f"the parameters have checksum {zlib.crc32(bits)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
