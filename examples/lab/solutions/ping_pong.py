"""Sheet 2, solved."""


def ping_pong(comm, ball, times, clock):
    """Play `times` round trips; return the seconds that one message takes, on rank 0."""
    start = clock()
    for _ in range(times):
        if comm.rank == 0:
            comm.send(ball, 1)
            comm.recv(ball, 1)
        else:
            comm.recv(ball, 0)
            ball += 1
            comm.send(ball, 0)
    return (clock() - start) / (2 * times)
