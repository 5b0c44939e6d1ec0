"""Sheet 5: a task queue.

Rank 0 hands out tasks, one at a time. A worker that is done gets the next one, so that a slow
worker does fewer. A task and a result are arrays of one number; -1 tells a worker to stop. Check it
with::

    python examples/lab/check.py task_queue
"""

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
        # TODO: if there is none, send STOP; else send the task, keep its number, and return
        #       comm.irecv(answers[worker], worker)
        raise NotImplementedError("TODO")

    requests = [None] + [give(worker) for worker in range(1, comm.size)]
    while any(each is not None for each in requests):
        worker, answer = cc.wait_any(requests)  # the first one that is done
        # TODO: keep the result, and put the request that give(worker) returns into requests
    return results


def worker(comm, work):
    """Do tasks until rank 0 tells to stop."""
    # TODO: receive a task from rank 0 (comm.recv fills an array); end if it is STOP;
    #       send work(task) back; repeat
    raise NotImplementedError("TODO")
