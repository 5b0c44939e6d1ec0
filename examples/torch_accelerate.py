"""A classifier trained by Hugging Face's accelerate, with this library between the ranks.

    collectives run --no-mpi -n 2 examples/torch_accelerate.py
    torchrun --nproc-per-node 2 examples/torch_accelerate.py

It needs torch and accelerate (``pip install torch accelerate``). The losses are the same on any
number of ranks, up to rounding.
"""

import argparse

import torch
from accelerate import Accelerator

import collectives.torch

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--backend", default="collectives", help="or gloo, to compare")
parser.add_argument("--epochs", type=int, default=3)
arguments = parser.parse_args()

# The group that an Accelerator finds is the one that it uses.
if arguments.backend == "collectives":
    collectives.torch.init_process_group()
else:
    torch.distributed.init_process_group(arguments.backend)
accelerator = Accelerator(cpu=True)

torch.manual_seed(1)
x = torch.randn(96, 8)
y = (x.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
data = torch.utils.data.TensorDataset(x, y)
# Each rank has a part of each batch of 24.
loader = torch.utils.data.DataLoader(data, batch_size=24 // accelerator.num_processes)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(arguments.epochs):
    losses = []
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), "mean"))
    accelerator.print(f"epoch {epoch}: loss {torch.stack(losses).mean():.4f}")
accelerator.print(f"{accelerator.num_processes} ranks, {torch.distributed.get_backend()}")
accelerator.end_training()  # which destroys the group
