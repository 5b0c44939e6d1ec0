"""The examples of the language of rounds, in shared memory and by messages."""

import language
import pytest
from conftest import environment
from forms import CUT, VECTOR, WHOLE

import collectives as cc

CASES = [
    (form, name)
    for collective, name in language.EXAMPLES
    for form in (*WHOLE, *CUT, *VECTOR)
    if form.collective == collective
]


@pytest.mark.several
@pytest.mark.parametrize("shared", ["0", "auto"])
@pytest.mark.parametrize(("form", "name"), CASES)
def test_examples_are_right(form, name, shared):
    with environment(COLLECTIVES_SHM=shared):
        comm = cc.Communicator(timeout=20)
    with language.registered():
        for n in (0, 1, 7, 1000):
            case = form(comm.size, n, root=comm.size - 1)
            case.verify(case.call(comm, algorithm=name), comm.rank)
    comm.free()
