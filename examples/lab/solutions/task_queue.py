"""Sheet 5, solved."""

import numpy as np

import collectives as cc

STOP = -1.0


def master(comm, tasks):
    """Hand out the tasks; return the results in the order of the tasks."""
    results = [None] * len(tasks)
    answers = [np.empty(1) for _ in range(comm.size)]  # of each worker
    given = [0] * comm.size  # the number of the task that each worker has
    left = iter(range(len(tasks)))

    def give(worker):
        """Send the next task, and return the request of its result; or STOP, and return None."""
        number = next(left, None)
        if number is None:
            comm.send(np.array([STOP]), worker)
            return None
        given[worker] = number
        comm.send(np.array([tasks[number]]), worker)
        return comm.irecv(answers[worker], worker)

    requests = [None] + [give(worker) for worker in range(1, comm.size)]
    while any(each is not None for each in requests):
        worker, answer = cc.wait_any(requests)  # the first one that is done
        results[given[worker]] = float(answer[0])
        requests[worker] = give(worker)
    return results


def worker(comm, work):
    """Do tasks until rank 0 tells to stop."""
    task = np.empty(1)
    while True:
        comm.recv(task, 0)
        if task[0] == STOP:
            return
        comm.send(np.array([work(float(task[0]))]), 0)
