"""From an algorithm to the program that the core runs: `schedule`, `proof`, `program`.

`schedule.compile` turns a registered algorithm into the plan of one rank: messages and steps over
numbered blocks, in memory spaces without addresses. `proof.check` replays the plans of all ranks
and returns a proof. `program.pack` writes a plan as arrays of integers, the program that the core
runs. Nothing here depends on bytes, dtypes or MPI.
"""
