"""The operations that NCCL runs on tensors on CUDA, selected by Horovod's variables or this
library's.

Horovod reads ``HOROVOD_GPU_OPERATIONS`` and similar variables when it is built. Here `init` reads
them, and the ranks agree. If NCCL is not possible, tensors are copied through host memory, and the
results are the same.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NamedTuple

from collectives import background
from collectives.communicator import Communicator
from collectives.process import environment
from collectives.process.agreement import agreed_terms
from collectives.text import logs
from collectives.text.words import plain

# Horovod's names of operations, and the corresponding kinds of submissions.
KINDS = {
    "ALLREDUCE": "allreduce",
    "ALLGATHER": "allgatherv",
    "BROADCAST": "broadcast",
    "ALLTOALL": "alltoallv",
    "REDUCESCATTER": "reduce_scatterv",
}
VARIABLES = tuple(f"HOROVOD_GPU_{name}" for name in ("OPERATIONS", *KINDS))
OWN = "COLLECTIVES_DEVICE_TRANSPORT"
BY_HOST = "tensors on devices travel through host memory"


class Choice(NamedTuple):
    """The use of NCCL, as all ranks have agreed.

    Attributes
    ----------
    kinds : tuple of str
        The kinds of submissions for which NCCL was requested.
    asked : str
        The setting that requested it.
    version : int
        The version of NCCL; 0 if none is used.
    reason : str or None
        The reason why NCCL is not possible.
    """

    kinds: tuple[str, ...] = ()
    asked: str = ""
    version: int = 0
    reason: str | None = None

    def attach(self, comm: Communicator) -> None:
        """Make NCCL run the submissions of a communicator, if possible. Collective."""
        background.start(comm)
        group: Any = comm._background
        must = self.reason is not None and self.asked.startswith(OWN) and _is_torch_here()
        kinds = self.kinds if comm.size > 1 and (self.version or must) else ()
        earlier = group.nccl
        if kinds == (() if earlier is None else earlier.kinds):
            return
        group.nccl = _torch().Nccl(comm, kinds, self.asked, self.reason) if kinds else None
        if earlier is not None:
            earlier.stop(0)


def variables() -> dict[str, str]:
    """Return Horovod's variables that are set. Local."""
    return {name: value for name in VARIABLES if (value := environment.text(name))}


def asks_for_nccl(value: str) -> bool:
    """Return whether the value of a variable selects NCCL. Local."""
    return value.upper() == "NCCL"


def agreed(comm: Communicator) -> Choice:
    """Agree on the submissions that NCCL takes; log and return them.
    Collective: the ranks must have the same settings.
    """
    transport, found = comm._devices.transport, variables()
    kinds: tuple[str, ...] = ()
    asked = f"{OWN} is 'nccl'"
    if transport == "nccl":
        kinds = tuple(KINDS.values())
    elif transport == "auto":
        usual = found.get(VARIABLES[0], "")
        chosen = {kind: found.get(f"HOROVOD_GPU_{name}", usual) for name, kind in KINDS.items()}
        kinds = tuple(kind for kind, value in chosen.items() if asks_for_nccl(value))
        asked = next((f"{k} is {v!r}" for k, v in found.items() if asks_for_nccl(v)), "")
    problem, facts = _here() if kinds else (None, None)
    terms = {"the work of NCCL, by HOROVOD_GPU_OPERATIONS and its kin,": ", ".join(kinds) or None}
    told = agreed_terms(comm.allgather_object, "init", None, terms, (problem, facts))
    choice = Choice(kinds, asked)
    if kinds:
        choice = _possible(choice, told, comm)
    _log(choice, found)
    return choice


def _possible(choice: Choice, told: list[tuple[str | None, Any]], comm: Communicator) -> Choice:
    """Return the choice with the version of NCCL, or the reason why NCCL is not possible."""
    reason = next(
        (f"{problem} (rank {rank})" for rank, (problem, _) in enumerate(told) if problem), None
    )
    if reason is None and comm.bits != "any":
        reason = f"bits is {comm.bits!r}, which NCCL cannot keep"
    if reason is None:
        reason = _torch().difference([facts for _, facts in told])
    if reason is not None:
        return choice._replace(reason=reason)
    return choice._replace(version=told[0][1][3])


def _log(choice: Choice, found: dict[str, str]) -> None:
    """Log the transport of tensors on devices, if a setting has requested NCCL."""
    if choice.version:
        logs.note(
            "INFO",
            f"{choice.asked}: NCCL {choice.version} carries tensors on CUDA in "
            f"{', '.join(choice.kinds)}",
        )
    for name, value in found.items():
        if not asks_for_nccl(value):
            logs.note("INFO", f"{name} is {value!r}: {BY_HOST}")
        elif choice.reason is not None:
            logs.note("INFO", f"{name} is {value!r}: {BY_HOST}, because {choice.reason}")


def outlook() -> str:
    """Describe whether NCCL can send tensors of this process. Local."""
    try:
        import_module("collectives.torch")
        problem, _ = _here()
    except ImportError as error:
        problem = plain(error)
    if problem is not None:
        return f"{BY_HOST}, because {problem}"
    return "NCCL carries tensors of torch on CUDA, if each rank has a GPU of its own"


def _is_torch_here() -> bool:
    return "collectives.torch" in sys.modules


def _torch() -> Any:
    """Return the module for torch's NCCL; torch must be loaded."""
    return import_module("collectives.torch.nccl")


def _here() -> tuple[str | None, Any]:
    """Return the reason why this process cannot use NCCL, or None; and the facts for the other
    ranks.
    """
    if not _is_torch_here():
        return "collectives.torch is not imported", None
    try:
        problem = _torch().choice.problem()
        return (problem, None) if problem is not None else (None, _torch().facts())
    except Exception as error:  # the driver's; the others must not wait
        return plain(error), None
