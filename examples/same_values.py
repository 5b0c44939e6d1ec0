"""Find the first part of a model that differs between ranks.

    collectives run -n 3 examples/same_values.py

The last rank changes one weight after the ranks have compared their models once.
"""

import numpy as np

import collectives as cc

comm = cc.world()
rng = np.random.default_rng(1)
model = {"rate": 0.1, "layers": [{"weight": rng.normal(size=(4, 3))} for _ in range(2)]}
comm.same(model, "model")
if comm.rank == 0:
    print("the models are equal")

comm.barrier()
if comm.size > 1 and comm.rank == comm.size - 1:
    model["layers"][1]["weight"][2, 1] = 0.0
try:
    comm.same(model, "model")
except cc.errors.MismatchError as error:
    if comm.rank == 0:
        print(error)
