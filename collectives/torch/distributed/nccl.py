"""The choice of NCCL for the tensors on CUDA of a group with the backend ``"collectives"``.

``COLLECTIVES_DEVICE_TRANSPORT=nccl`` selects it, as for arrays of devices. It is torch's own
backend for NCCL, and not `devices.nccl`: it orders its work with torch's streams, keeps torch's
memory until the work is done, and needs no CuPy. The ranks agree when a group is made. If NCCL is
not possible, calls with tensors on CUDA raise an error with the reason on all ranks, and other
calls run as usual.
"""

from __future__ import annotations

import json
import os
import platform
from typing import Any, NoReturn

import torch
from torch import distributed as dist

from collectives.communicator import Communicator
from collectives.devices import nccl
from collectives.errors import ArgumentError
from collectives.text.words import grouped, plain, ranks

VARIABLE = "COLLECTIVES_DEVICE_TRANSPORT"
DEVICE, BACKEND = "cuda", "nccl"


def is_asked_for(comm: Communicator) -> bool:
    """Return whether the environment selects NCCL: the same on all ranks. Local."""
    return comm._devices.transport == "nccl"


def problem() -> str | None:
    """Return the reason why this process cannot use torch's NCCL, or None. Local."""
    if not dist.is_nccl_available():
        return f"torch {torch.__version__} has no NCCL"
    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def version() -> int:
    """Return the version of torch's NCCL, such as 22703. Local."""
    major, minor, patch = torch.cuda.nccl.version()[:3]
    return int(10000 * major + 100 * minor + patch)


def may_share() -> bool:
    """Return whether this rank's environment allows ranks to share a GPU. Local."""
    return os.environ.get(nccl.SHARING) == "1"


def facts(device: Any) -> str:
    """Return the facts about this rank for the others; its tensors are on `device`, or on the
    current one if that is None. Local.
    """
    number = torch.cuda.current_device() if device is None else device
    gpu = torch.cuda.get_device_properties(number)
    return json.dumps([f"{gpu.uuid} of {platform.node()}", version(), may_share()])


def refusal(comm: Communicator, device: Any = None) -> str | None:
    """Return the reason why the ranks cannot use torch's NCCL, or None. Collective."""
    mine, known = None, ""
    try:
        mine = problem()
        known = facts(device) if mine is None else ""
    except Exception as error:  # the driver's; the others must not wait
        mine = plain(error)
    told = comm.allgather_object((mine, known))
    reasons = grouped((rank, each) for rank, (each, _) in enumerate(told) if each is not None)
    if reasons:
        return "; ".join(f"{reason} ({ranks(mask)})" for reason, mask in reasons.items())
    return nccl.difference([each for _, each in told])


def impossible(asked: str, reason: str, what: str) -> ArgumentError:
    """Return the error of ranks that cannot use NCCL: `asked` is the setting that selects it, and
    the ranks have to choose their devices before `what`. Local.
    """
    return ArgumentError(
        f"{asked}, which is not possible for tensors on {DEVICE} here: {reason}; call "
        f"torch.cuda.set_device with a device of its own on each rank before {what}, or unset the "
        f"variable"
    )


class Refused:
    """A stand-in for a group that is not possible: its calls raise an error with the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def _get_backend(self, device: Any) -> NoReturn:
        raise RuntimeError(self.reason)

    def __getattr__(self, name: str) -> NoReturn:
        raise impossible(f"{VARIABLE} is 'nccl'", self.reason, "the group is made")
