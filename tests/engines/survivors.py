"""An elastic job for the tests of engines."""

from __future__ import annotations

import os
import signal

import numpy as np

import collectives as cc
from collectives import elastic


def go_on() -> tuple[int, int, float]:
    """Count to 20 on three ranks, of which one is lost; return rank, size and the sum."""

    def count(state: elastic.State) -> float:
        while state.step < 20:
            if state.step == 12 and cc.rank() == 1 and state.comm.size == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            state.total += float(state.comm.allreduce(np.ones(1))[0]) / state.comm.size
            state.step += 1
            if state.step % 5 == 0:
                state.commit()
        return state.total

    state = elastic.State(total=0.0, step=0)
    result = elastic.run(state, count)
    return state.comm.rank, state.comm.size, result
