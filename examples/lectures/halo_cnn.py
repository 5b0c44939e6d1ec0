"""Model parallelism in space: a convolutional network whose images are cut into strips of rows.

An image that is too large for one machine is divided: rank r has some rows of it, and the same rows
of each layer's output. A convolution of 3 x 3 needs one more row above and below, which the
neighbours have. They are exchanged before each convolution (a halo exchange)::

    rank 0   rows 0 .. 15                     its last row goes to rank 1
             ---------------------------
    rank 1   row 15 of rank 0                 the halo above
             rows 16 .. 31
             row 32 of rank 2                 the halo below
             ---------------------------
    rank 2   rows 32 .. 47                    its first row goes to rank 1

In the backward pass, the gradient of a row in a halo goes back to the rank that has the row, which
adds it to its own. This is the same exchange in the other direction. All ranks have the same
weights; each rank computes their gradients from its rows, and an allreduce adds them up. So the
results of both passes are those of one process, up to rounding. Run it on any number of ranks up to
8::

    collectives run -n 4 examples/lectures/halo_cnn.py

It needs torch (``pip install torch``).
"""

import argparse

import torch
from torch.nn import functional

import collectives as cc

IMAGES, COLOURS, SIZE = 4, 3, 32
POOLED = 4  # rows that two layers of pooling reduce to one; a strip has a multiple of them
CLASSES, RATE = 5, 0.01


class Exchanged(torch.autograd.Function):
    """A strip with one row of each neighbour, above and below; zeros at the edges of the image."""

    @staticmethod
    def forward(ctx, x):
        above, below = neighbours()
        halo = torch.zeros_like(x[:, :, :1])
        top = cc.sendrecv(x[:, :, -1:].contiguous(), below, halo.clone(), above)
        bottom = cc.sendrecv(x[:, :, :1].contiguous(), above, halo.clone(), below)
        return torch.cat((top, x, bottom), 2)

    @staticmethod
    def backward(ctx, grad):
        above, below = neighbours()
        mine = grad[:, :, 1:-1].contiguous()
        halo = torch.zeros_like(mine[:, :, :1])
        # Gradients that the neighbours have computed for the rows that they have borrowed.
        mine[:, :, -1:] += cc.sendrecv(grad[:, :, :1].contiguous(), above, halo.clone(), below)
        mine[:, :, :1] += cc.sendrecv(grad[:, :, -1:].contiguous(), below, halo.clone(), above)
        return mine


class Summed(torch.autograd.Function):
    """The sum of the ranks' results for their rows. All ranks compute the same from it, so
    that each has its whole gradient already."""

    @staticmethod
    def forward(ctx, x):
        return cc.allreduce(x.detach())

    @staticmethod
    def backward(ctx, grad):
        return grad


def neighbours():
    """Return the ranks above and below; None at the edges."""
    r, p = cc.rank(), cc.size()
    return (r - 1 if r > 0 else None), (r + 1 if r < p - 1 else None)


def parameters():
    """Return the weights: three convolutions, and a matrix. They are the same on all ranks."""
    torch.manual_seed(3)
    shapes = (8, COLOURS, 3, 3), (16, 8, 3, 3), (16, 16, 3, 3), (16, CLASSES)
    return [
        (torch.randn(*shape) * (2 / shape[1:].numel()) ** 0.5).requires_grad_()
        for shape in map(torch.Size, shapes)
    ]


def scores(weights, x, is_cut):
    """Return the scores of some images; `x` has all of their rows, or those of this rank."""
    first, second, third, last = weights
    for number, kernel in enumerate((first, second, third)):
        if is_cut:  # rows come from the neighbours, and columns at the edge are zeros
            x = functional.conv2d(Exchanged.apply(x), kernel, padding=(0, 1))
        else:
            x = functional.conv2d(x, kernel, padding=1)
        x = functional.relu(x)
        if number < 2:
            x = functional.max_pool2d(x, 2)
    x = x.sum((2, 3)) / (SIZE // POOLED) ** 2
    return (Summed.apply(x) if is_cut else x) @ last


def step(weights, x, labels, is_cut):
    """Make one step of training; return the scores, the loss and the gradient of the images."""
    x = x.clone().requires_grad_()
    made = scores(weights, x, is_cut)
    loss = functional.cross_entropy(made, labels)
    gradients = torch.autograd.grad(loss, [*weights, x])
    *gradients, image = gradients
    if is_cut:  # all ranks have the same scores, and so the whole gradient of the last matrix
        gradients[:-1] = cc.allreduce_many(gradients[:-1])
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight -= RATE * gradient
    return made.detach(), float(loss.detach()), image


def furthest(pairs):
    """Return the largest difference between tensors, relative to the largest element."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=3, help="of training")
    steps = parser.parse_args().steps
    r, p = cc.rank(), cc.size()
    if p > SIZE // POOLED:
        raise SystemExit(f"images of {SIZE} rows are cut for {SIZE // POOLED} ranks at most")
    torch.set_num_threads(1)  # ranks share the cores of a host
    torch.set_default_dtype(torch.float64)

    torch.manual_seed(7)
    images = torch.randn(IMAGES, COLOURS, SIZE, SIZE)  # a large program would load its rows only
    labels = torch.arange(IMAGES) % CLASSES
    first, last = (SIZE // POOLED * k // p * POOLED for k in (r, r + 1))
    mine = images[:, :, first:last]

    weights, whole = parameters(), parameters()
    worst = 0.0
    for number in range(1, steps + 1):
        made, loss, image = step(weights, mine, labels, is_cut=True)
        want, loss_of_one, whole_image = step(whole, images, labels, is_cut=False)
        pairs = [(made, want), (image, whole_image[:, :, first:last])]
        pairs += [(a.detach(), b.detach()) for a, b in zip(weights, whole, strict=True)]
        worst = max(worst, furthest(pairs))
        if r == 0:
            print(f"step {number}: loss {loss:.6f}, in one process {loss_of_one:.6f}", flush=True)

    parts = cc.gather_object((first, last))
    worst = float(cc.allreduce(worst, op=cc.MAX))
    if r == 0:
        for rank, (begin, end) in enumerate(parts):
            print(f"rank {rank} has rows {begin:2} to {end - 1:2}")
        print(f"scores, gradients and weights differ from those of one process by {worst:.0e}")
    if not worst < 1e-12:
        raise SystemExit("the result of the divided network is wrong")


if __name__ == "__main__":
    main()
