"""The modules of the included algorithms, whose import fills the table of `registry`.

`registry` imports this module when a program first asks for an algorithm.
"""

from types import ModuleType

from collectives.algorithms import registry

# All lists, tables and pictures have this order. flat comes first, because others use it.
# isort: off
from collectives.algorithms import flat, tree, kary, chain, direct, pairwise, butterfly, halving  # noqa: F401
from collectives.algorithms import ring, bruck, double_tree, scan, dissemination, near  # noqa: F401
from collectives.algorithms import swing, pat, multiplying, bine, trivance, circulant  # noqa: F401
from collectives.algorithms import stragglar, generalised  # noqa: F401
from collectives.algorithms import composition  # noqa: F401
# isort: on

# A program may have imported one of these modules before, and so changed the order.
registry.arrange([each.__name__ for each in [*globals().values()] if isinstance(each, ModuleType)])
