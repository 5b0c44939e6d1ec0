"""Arguments of users' types, whose methods raise anything: errors of the library, and no others."""

import numpy as np
import pytest

import collectives as cc
from collectives.errors import ArgumentError


class Unlucky:
    """A value that cannot be made anything of."""

    def _raise(self, *args):
        raise OSError("not this one")

    __index__ = __float__ = __iter__ = __fspath__ = _raise


BAD = Unlucky()
X = np.ones(3)

CALLS = {
    "wait_all of None": lambda comm: cc.wait_all(None),
    "wait_all": lambda comm: cc.wait_all(BAD),
    "wait_all timeout": lambda comm: cc.wait_all([], timeout=BAD),
    "name of a reduction": lambda comm: cc.reduction(lambda x, y: None, name=3),
    "explain": lambda comm: comm.explain([]),
    "explain an array": lambda comm: comm.explain(X),
    "explain bytes": lambda comm: comm.explain("allreduce", BAD),
    "plan an array": lambda comm: comm.plan(X),
    "root": lambda comm: comm.broadcast(X, root=BAD),
    "tag": lambda comm: comm.send(X, 0, tag=BAD),
    "dest": lambda comm: comm.send(X, BAD),
    "source": lambda comm: comm.recv(X, BAD),
    "prescale": lambda comm: comm.allreduce(X, prescale=BAD),
    "timeout": lambda comm: comm.allreduce(X, timeout=BAD),
    "timeout of a communicator": lambda comm: setattr(comm, "timeout", BAD),
    "counts": lambda comm: comm.allgatherv(X, counts=BAD),
    "a count": lambda comm: comm.allgatherv(X, counts=[BAD] * comm.size),
    "arrays": lambda comm: comm.allreduce_many(BAD),
    "outs": lambda comm: comm.allreduce_many([X], out=BAD),
    "path": lambda comm: comm.timeline(BAD),
    "root of objects": lambda comm: comm.broadcast_object(1, root=BAD),
    "timeout of objects": lambda comm: comm.broadcast_object(1, timeout=BAD),
    "color": lambda comm: comm.split(BAD),
    "key": lambda comm: comm.split(0, BAD),
    "shape": lambda comm: comm.empty(BAD),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_of_unusual_types(world, name):
    with pytest.raises(ArgumentError):
        CALLS[name](world.comm)
    assert world.comm.allreduce(np.ones(1))[0] == world.comm.size
