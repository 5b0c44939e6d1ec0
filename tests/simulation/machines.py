"""Random machines and sizes to simulate, for `collectives.simulate` and for the plain simulator."""

import dataclasses

import networks

from collectives.topology import FatTree, Flat, Hosts, Links, Torus


def some_rate(rng):
    """Return seconds per byte, of all messages alike or of each by its length."""
    if rng.random() < 0.7:
        return rng.uniform(0.001, 0.1)
    sizes = sorted(rng.sample(range(1, 2000), rng.randrange(1, 4)))
    return [(size, rng.uniform(0.001, 0.1)) for size in sizes]


def some_flat(rng, gamma, **more):
    p, alpha, beta = rng.randrange(1, 17), rng.uniform(1, 5), some_rate(rng)
    network = networks.flat(p, alpha, beta, gamma)
    return Flat(p, alpha, beta, gamma, **more), network


def some_hosts(rng, gamma, **more):
    hosts = rng.randrange(1, 6)
    ranks = rng.randrange(1, 16 // hosts + 1)
    memory = rng.choice([None, rng.uniform(0.001, 0.1)])
    inside = rng.uniform(0.1, 2), some_rate(rng)
    ends = rng.uniform(1, 5), rng.uniform(0.001, 0.1), gamma, inside, memory
    return Hosts(hosts, ranks, *ends, **more), networks.hosts(hosts, ranks, *ends)


def some_fat_tree(rng, gamma, **more):
    hosts = rng.randrange(2, 9)
    ranks = rng.randrange(1, 16 // hosts + 1)
    switch = rng.randrange(1, 4), rng.uniform(0.5, 4)
    memory = rng.choice([None, rng.uniform(0.001, 0.1)])
    inside = rng.uniform(0.1, 2), rng.uniform(0.001, 0.1)
    ends = rng.uniform(1, 5), rng.uniform(0.001, 0.1), gamma, inside, memory
    tree = FatTree(hosts, ranks, *switch, *ends, **more)
    return tree, networks.fat_tree(hosts, ranks, *switch, *ends)


def some_torus(rng, gamma, **more):
    shapes = [(5,), (2, 3), (4, 4), (3, 1, 2), (2, 2, 2), (3, 5), (2, 2, 4), (7, 2), (16,)]
    ends = rng.choice(shapes), rng.uniform(1, 5), rng.uniform(0.001, 0.1), gamma
    hop = rng.uniform(0, 1)
    return Torus(*ends, hop=hop, **more), networks.torus(*ends, hop=hop)


def some_links(rng, gamma, **more):
    p = rng.randrange(1, 17)
    betas = {f"wire {k}": rng.uniform(0.001, 0.1) for k in range(rng.randrange(0, 7))}
    pairs = [(s, d) for s in range(p) for d in range(p) if s != d]
    route = {
        pair: (
            rng.uniform(0.5, 5),
            rng.sample(list(betas), rng.randrange(0, min(4, len(betas) + 1))),
        )
        for pair in pairs
    }
    network = networks.Network(
        p,
        gamma,
        lambda s, d: networks.Way(route[s, d][0], 0.0, tuple(route[s, d][1])),
        {name: 1 / beta for name, beta in betas.items()},
    )
    ways = route if rng.random() < 0.5 else lambda s, d: route[s, d]
    return Links(p, betas, ways, gamma, **more), network


MACHINES = [some_flat, some_hosts, some_fat_tree, some_torus, some_links]


def some_machine(rng, algorithm):
    """Return a machine that the algorithm runs on, in both languages."""
    while True:
        gamma = rng.choice([0.0, rng.uniform(0.001, 0.1), some_rate(rng)])
        call = rng.choice([0.0, rng.uniform(1, 50)])
        delay = call % 20  # no number of its own: so the machines stay those that they were
        topology, network = rng.choice(MACHINES)(rng, gamma, call=call, delay=delay)
        if algorithm.refusal(topology.p) is None:
            ranks = topology.ranks if isinstance(topology, Hosts) else 1
            network = networks.delayed(network, delay, ranks)
            return topology, dataclasses.replace(network, call=call)


def some_options(rng, algorithm, p):
    """Return bytes, and the options of `simulate`, for at most 12 segments."""
    nblocks = algorithm.blocks(p) // algorithm.collective.parts(p)
    nblocks *= algorithm.collective.per_array(p)
    nbytes = rng.choice([0, 1, rng.randrange(100), rng.randrange(10_000), 24 * nblocks])
    longest = -(-nbytes // nblocks)
    segment = rng.choice([0, rng.randrange(-(-longest // 12), longest + 2)]) if longest else 0
    root = rng.randrange(p) if algorithm.collective.rooted else 0
    return nbytes, {"root": root, "segment": segment, "window": rng.randrange(1, 6)}
