"""From an algorithm to what the core runs: `schedule`, `proof`, `program`.

In comes a registered algorithm, for one rank of p; out go its plan, its proof and its program.
`schedule.compile` makes the plan: messages and steps over numbered blocks, in memory spaces without
addresses. `proof.check` replays the plans of all ranks. `program.pack` writes a plan as arrays of
integers for the core. Nothing here knows bytes, dtypes or MPI.
"""
