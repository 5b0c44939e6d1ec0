"""Sheet 2: ping-pong. The time of a message between two ranks.

Rank 0 sends the ball, an array, to rank 1, which adds 1 and sends it back, again and again. Check
it with::

    python examples/lab/check.py ping_pong
"""


def ping_pong(comm, ball, times, clock):
    """Play `times` round trips; return the seconds that one message takes, on rank 0.

    `clock()` returns the time in seconds. Call it once before and once after the game.
    """
    start = clock()
    for _ in range(times):
        # TODO: rank 0 sends and then receives, rank 1 receives, adds 1 and then sends
        #       (comm.send(ball, 1) sends it to rank 1, comm.recv(ball, 1) fills it from rank 1)
        raise NotImplementedError("TODO")
    return clock() - start  # TODO: of one message
