"""Programs that go on when ranks are lost: a state that is kept, and a function that is run again.

Nothing is trained here, and no rank is started or replaced: the ranks that are left go on alone.
"""

from collectives.elastic.running import run
from collectives.elastic.state import State

__all__ = ["State", "run"]
