"""Draw a training step on a GPU, as the profiler of torch records it.

    mpiexec -n 2 python benchmarks/gpu_picture.py docs/howto/gpu_step.svg

Each rank trains ResNet-50 on random images with Horovod's optimizer of this library. Ranks of a
host share its GPUs. The rows of the picture are the kernels of the model, the copies of gradients
to the host, and those of their averages back. Of the steps that are recorded, the fastest one of
rank 0 is drawn. It also prints the time from the first copy to the last one, and how much of it
is after the end of the backward pass.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile
from torchvision.models import resnet50
from turns import options, say

import collectives.torch as hvd
from collectives.picture import colours, plots

Spans = list[tuple[float, float]]  # begin and end, in ms
ROWS = {
    "kernels": colours.LIGHT[5],
    "copies to the host": colours.LIGHT[1],
    "copies from the host": colours.LIGHT[7],
}


def row_of(event: dict) -> str | None:
    """Return the row of an event of the profiler, if it has one."""
    if event.get("cat") == "kernel":
        return "kernels"
    if event.get("cat") == "gpu_memcpy":
        return {"DtoH": "copies to the host", "HtoD": "copies from the host"}.get(
            event["name"].split()[1]
        )
    return None


def recorded(step) -> dict[str, Spans]:
    """Return what the GPU did in a step, row by row."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    rows: dict[str, Spans] = {name: [] for name in ROWS}
    for event in events:
        row = row_of(event)
        if row is not None:
            rows[row].append((event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3))
    first = min(begin for spans in rows.values() for begin, _ in spans)
    return {
        name: sorted((begin - first, end - first) for begin, end in spans)
        for name, spans in rows.items()
    }


def joined(spans: Spans, gap: float = 0.0) -> Spans:
    """Return spans of which those that overlap, or are at most a gap apart, are one."""
    made: Spans = []
    for begin, end in spans:
        if made and begin <= made[-1][1] + gap:
            made[-1] = made[-1][0], max(made[-1][1], end)
        else:
            made.append((begin, end))
    return made


def draw(rows: dict[str, Spans], path: Path, caption: str) -> None:
    """Draw the rows of a step."""
    figure, axes = plots.subplots(figsize=(9, 2.2))
    for place, (name, spans) in enumerate(rows.items()):
        bars = [(begin, end - begin) for begin, end in joined(spans, 0.02)]
        axes.broken_barh(bars, (place - 0.35, 0.7), color=ROWS[name])
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="ms", title=caption)
    plots.save(figure, str(path))


def main() -> None:
    """Record steps, and draw one on rank 0."""
    arguments: argparse.Namespace = options(__doc__, path=Path, steps=5, batch=32)
    hvd.init()
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    torch.manual_seed(hvd.rank())
    net = resnet50().cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    images = torch.randn(arguments.batch, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (arguments.batch,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()

    times = []
    for _ in range(20):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    steps = [recorded(step) for _ in range(arguments.steps)]
    rows = min(steps, key=lambda rows: max(end for spans in rows.values() for _, end in spans))
    if hvd.rank() == 0:
        name = torch.cuda.get_device_name()
        draw(rows, arguments.path, f"A step of ResNet-50 on rank 0 of {hvd.size()}, {name}")
    say(f"median step without the profiler: {sorted(times[10:])[5] * 1e3:.1f} ms")
    copies = [span for name in list(ROWS)[1:] for span in rows[name]]
    begin, end = min(copies)[0], max(end for _, end in copies)
    backward = max(finish for start, finish in rows["kernels"] if start < end)
    say(f"copies and collectives: {end - begin:.1f} ms, {end - backward:.1f} of it after backward")


if __name__ == "__main__":
    main()
