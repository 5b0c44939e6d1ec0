"""The program of each rank that tries a wheel: calls, whose results are compared with NumPy's."""

import shutil

import numpy as np

import collectives as cc
from collectives import background

for compiler in ("cc", "gcc", "clang"):
    assert shutil.which(compiler) is None, f"{compiler} is on PATH"
comm = cc.world()
r, p = comm.rank, comm.size
for dtype in ("int8", "int64", "float16", "float32", "float64", "longdouble", "complex128"):
    for n in (1, 7, 1000, 300_000):
        every = [(np.arange(n) % 5 + k).astype(dtype) for k in range(p)]
        assert np.array_equal(cc.allreduce(every[r]), sum(every)), (dtype, n)
        assert np.array_equal(cc.iallreduce(every[r], op=cc.PROD).wait(), np.prod(every, 0)), dtype
assert np.array_equal(cc.allgather(np.array([r])).ravel(), np.arange(p))
assert cc.broadcast_object({"from": r}, root=p - 1) == {"from": p - 1}
with cc.shared_arrays():
    shared = np.full(50_000, float(r))
assert cc.allreduce(shared)[-1] == p * (p - 1) / 2
assert background.submit("allreduce", np.full(1000, 1.0)).wait()[0] == p
cc.barrier()
if r == 0:
    print(comm.transport, flush=True)
