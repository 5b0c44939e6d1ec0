"""Draw the trees of an allreduce that `collectives synthesize` has written.

    python examples/research/trees.py allreduce_4.py trees.svg

It needs matplotlib (``pip install matplotlib``). The first argument is the file of the algorithm,
the second one the picture.
"""

import runpy
import sys
from collections import Counter
from math import cos, pi, sin

import matplotlib.pyplot as plt

rounds = runpy.run_path(sys.argv[1])["ROUNDS"]
edges = {}  # of each block: the pairs of ranks whose sums of it are folded
for rank, of_rank in enumerate(rounds):
    for each in of_rank:
        for source, blocks in each.recv if each.fold else ():
            for block in [blocks] if isinstance(blocks, int) else blocks:
                edges.setdefault(block, set()).add(frozenset((source, rank)))

p = len(rounds)
places = [(sin(2 * pi * rank / p), cos(2 * pi * rank / p)) for rank in range(p)]
found = Counter(map(frozenset, edges.values())).most_common(6)
figure, panels = plt.subplots(1, len(found), figsize=(2.2 * len(found), 2.6), squeeze=False)
for panel, (tree, blocks) in zip(panels[0], found, strict=True):
    for pair in tree:
        ends = zip(*(places[rank] for rank in pair), strict=True)
        panel.plot(*ends, color="#145571", linewidth=2)
    for rank, (x, y) in enumerate(places):
        panel.plot(x, y, "o", color="#145571", markersize=18)
        panel.text(x, y, rank, color="white", ha="center", va="center")
    panel.set(title=f"{blocks} of {len(edges)} blocks", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3))
    panel.set_aspect("equal")
    panel.axis("off")
figure.savefig(sys.argv[2], bbox_inches="tight", metadata={"Date": None})
