"""The choice of NCCL for the tensors on CUDA of a group with the backend ``"collectives"``.

``COLLECTIVES_DEVICE_TRANSPORT=nccl`` asks for it, as it does for arrays of devices. It is torch's
own backend for NCCL, and not `devices.nccl`: it orders its work with torch's streams, keeps torch's
memory until that is done, and needs no CuPy. The ranks agree when a group is made. Where it is not
possible, calls with tensors on CUDA raise an error that gives the reason on all ranks, and others
run as ever.
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
    """Return whether the environment asks for NCCL, which is the same on all ranks. Local."""
    return comm._devices.transport == "nccl"


def problem() -> str | None:
    """Return why this process cannot use NCCL by torch, or None. Local."""
    if not dist.is_nccl_available():
        return f"torch {torch.__version__} has no NCCL"
    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def version() -> int:
    """Return the version of torch's NCCL, such as 22703. Local."""
    major, minor, patch = torch.cuda.nccl.version()[:3]
    return int(10000 * major + 100 * minor + patch)


def may_share() -> bool:
    """Return whether this rank says that ranks may share a GPU. Local."""
    return os.environ.get(nccl.SHARING) == "1"


def facts(device: Any) -> str:
    """Return what the other ranks need to know of this one, whose tensors are on a device; on the
    current one if that is None. Local.
    """
    number = torch.cuda.current_device() if device is None else device
    gpu = torch.cuda.get_device_properties(number)
    return json.dumps([f"{gpu.uuid} of {platform.node()}", version(), may_share()])


def refusal(comm: Communicator, device: Any = None) -> str | None:
    """Return why the ranks cannot use NCCL by torch, or None. Collective."""
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
    """Return the error of ranks that cannot use NCCL: how it was asked for, and before `what` they
    have to choose their devices. Local.
    """
    return ArgumentError(
        f"{asked}, which is not possible for tensors on {DEVICE} here: {reason}; call "
        f"torch.cuda.set_device with a device of its own on each rank before {what}, or unset the "
        f"variable"
    )


class Refused:
    """Stands for a group that is not possible: its calls raise the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def _get_backend(self, device: Any) -> NoReturn:
        raise RuntimeError(self.reason)

    def __getattr__(self, name: str) -> NoReturn:
        raise impossible(f"{VARIABLE} is 'nccl'", self.reason, "the group is made")
