"""Spanning trees of least cost, on a matrix of the costs from each rank to each other."""

from __future__ import annotations

import numpy as np

from collectives.synthesis.matrices import Matrix, Numbers

Parents = Numbers  # the parent of each rank; -1 for the root


def spanning(costs: Matrix, root: int) -> Parents:
    """Return the spanning tree of least cost of symmetric `costs`, hung up at `root`.

    Where costs are equal, ranks hang as near to the root as possible.
    """
    p = len(costs)
    parent = np.full(p, root)
    parent[root] = -1
    far = np.zeros(p, np.int64)
    best = costs[root].astype(float)
    out = np.ones(p, bool)
    out[root] = False
    best[root] = np.inf
    for _ in range(p - 1):
        v = int(np.where(out, best, np.inf).argmin())
        out[v] = False
        far[v] = far[parent[v]] + 1
        near = costs[v]
        nearer = out & ((near < best) | ((near == best) & (far[v] < far[parent])))
        best[nearer] = near[nearer]
        parent[nearer] = v
    return parent


def arborescence(costs: Matrix, root: int) -> Parents:
    """Return the tree out of `root` of least cost, by Chu, Liu and Edmonds."""
    p = len(costs)
    costs = costs.astype(float)
    np.fill_diagonal(costs, np.inf)
    costs[:, root] = np.inf
    parent: Parents = costs.argmin(axis=0)
    parent[root] = -1
    cycle = _cycle(parent)
    if cycle is None:
        return parent
    # Contract the cycle to one node, which is the last.
    inside = np.zeros(p, bool)
    inside[cycle] = True
    outer = np.flatnonzero(~inside)
    m = len(outer)
    small = np.full((m + 1, m + 1), np.inf)
    small[:m, :m] = costs[np.ix_(outer, outer)]
    into = costs[np.ix_(outer, cycle)] - costs[parent[cycle], cycle]
    small[:m, m] = into.min(axis=1)
    entry = cycle[into.argmin(axis=1)]
    leave = costs[np.ix_(cycle, outer)]
    small[m, :m] = leave.min(axis=0)
    exit_ = cycle[leave.argmin(axis=0)]
    found = arborescence(small, int(np.flatnonzero(outer == root)[0]))
    result: Parents = parent.copy()
    for k, node in enumerate(outer):
        up = found[k]
        result[node] = -1 if up < 0 else exit_[k] if up == m else outer[up]
    above = found[m]
    result[entry[above]] = outer[above]
    return result


def _cycle(parent: Parents) -> Parents | None:
    """Return the nodes of a cycle, if there is one."""
    state = np.zeros(len(parent), np.int64)
    for start in range(len(parent)):
        path = []
        node = start
        while node >= 0 and state[node] == 0:
            state[node] = 1
            path.append(node)
            node = int(parent[node])
        if node >= 0 and state[node] == 1:
            return np.array(path[path.index(node) :])
        state[path] = 2
    return None


def edges(parent: Parents) -> tuple[Parents, Parents]:
    """Return the edges of a tree, from parents to children."""
    children = np.flatnonzero(parent >= 0)
    return parent[children], children


def depth(parent: Parents) -> int:
    """Return how far the farthest node of a tree is from its root."""
    above, far = parent[parent >= 0], 0
    while len(above):
        above, far = parent[above], far + 1
        above = above[above >= 0]
    return far


def centered(parent: Parents) -> Parents:
    """Return the tree with the same edges whose root is nearest to all nodes."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import shortest_path

    up, down = edges(parent)
    p = len(parent)
    graph = csr_matrix((np.ones(len(up)), (up, down)), (p, p))
    far, before = shortest_path(graph, "D", False, return_predecessors=True)
    root = int(far.max(axis=1).argmin())
    return np.where(np.arange(p) == root, -1, before[root]).astype(np.int64)
