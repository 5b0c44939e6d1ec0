"""reduce: the result on the root, None elsewhere."""

from forms import Reduce
from promises import Promises


class TestReduce(Promises):
    form = Reduce
    whole = True
