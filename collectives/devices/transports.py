"""The transports of arrays in the memory of devices, and the choice among them.

A row of `TRANSPORTS` has the functions of a transport: `probe` tests whether a process can use it,
`facts` and `difference` return and compare the facts that all ranks need, and `run` runs a call.
The ranks of a communicator exchange the answers once for each device, before the first call that
depends on them, so that all ranks choose alike. A probe raises no error but those of the engine, if
it communicates with the other ranks itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from collectives import _core
from collectives.algorithms.bits import ANY, SIZE
from collectives.algorithms.spec import Collective
from collectives.devices import cuda_aware_mpi, direct, ipc, nccl, staging
from collectives.devices.driver import Driver
from collectives.devices.requests import AgreedCall, DeviceCall
from collectives.errors import ArgumentError
from collectives.text.words import grouped, plain, ranks

VARIABLE = "COLLECTIVES_DEVICE_TRANSPORT"
RECORD = 4096  # bytes that each rank sends to the others
MOST = 300  # characters of a reason


class Transport(NamedTuple):
    """A way to move the data of arrays of devices."""

    name: str
    summary: str  # in some words
    is_automatic: bool  # whether calls use it that do not ask for a transport
    # Return the reason why this process cannot use it on a device, or None. Called on all ranks.
    probe: Callable[[_core.Engine, Driver, int], str | None]
    run: Callable[[AgreedCall], Any]
    # Return the facts that the other ranks have to know. Called if `probe` returned None.
    facts: Callable[[Driver, int], str] = lambda driver, device: ""
    # Return the reason why the ranks cannot use it together, by the facts of all, or None.
    difference: Callable[[list[str]], str | None] = lambda told: None
    # Return whether it can run a call, the same on all ranks. If not, the next automatic one does.
    takes: Callable[[DeviceCall], bool] = lambda job: True


# A call uses the first possible and automatic one, unless it asks for another one.
TRANSPORTS = (
    Transport(
        "nccl",
        "collectives of NCCL on the stream",
        False,
        nccl.probe,
        nccl.run,
        nccl.facts,
        nccl.difference,
    ),
    Transport(
        "ipc",
        "kernels that read the device memory of other ranks",
        False,
        ipc.probe,
        lambda call: direct.run(call, call.devices.peers),
        takes=ipc.takes,
    ),
    Transport(
        "mpi",
        "messages of a CUDA-aware MPI from device to device",
        False,
        cuda_aware_mpi.probe,
        lambda call: direct.run(call, call.devices.apart[call.device]),
        takes=cuda_aware_mpi.takes,
    ),
    Transport(
        "staging",
        "pieces through pinned memory of the host",
        True,
        lambda engine, driver, device: None,
        staging.run,
    ),
)


class DeviceTransports(NamedTuple):
    """The transports of a communicator for arrays of a device, the same on all ranks.

    Attributes
    ----------
    device : int
        The number of the device on this rank.
    used : str or None
        The transport of calls that do not ask for one; None if the environment asks for one that
        is not possible.
    reasons : dict
        For each transport, the reason why it is not possible, or None.
    forced : str or None
        The transport that the environment asks for.
    """

    device: int
    used: str | None
    reasons: dict[str, str | None]
    forced: str | None = None

    def __str__(self) -> str:
        lines = [f"arrays on cuda:{self.device} go by {self.used}"]
        if self.used is None:
            lines = [f"{VARIABLE} asks for a transport of cuda:{self.device} that is not possible"]
        for row in TRANSPORTS:
            reason = self.reasons[row.name]
            state = "possible"
            if reason is not None:
                state = f"not possible: {reason}"
            elif row.name == self.used:
                state = "used"
            elif self.forced is not None:
                state = f"possible, and {VARIABLE} asks for {self.forced}"
            elif not row.is_automatic:
                state = f"possible, with algorithm={row.name!r}"
            lines.append(f"  {row.name:9}{row.summary}; {state}")
        return "\n".join(lines)


class Transports:
    """The transports on which the ranks of a communicator have agreed."""

    def __init__(self, forced: str) -> None:
        self.forced: str | None = None if forced == "auto" else forced
        self.agreed: dict[int, DeviceTransports] = {}

    def asked(self, algorithm: str | None, contract: Collective, bits: str) -> str | None:
        """Return the transport that a call or the environment asks for. Local."""
        wanted = algorithm if algorithm == "nccl" else self.forced
        if wanted == "nccl" and algorithm not in (None, "nccl"):
            raise ArgumentError(
                f"algorithm is {algorithm!r}, and {VARIABLE}=nccl runs the collectives of NCCL, "
                f"which chooses by itself; omit algorithm, or unset the variable"
            )
        if self.forced not in (None, wanted):
            raise ArgumentError(f"algorithm is {algorithm!r}, and {VARIABLE} is {self.forced!r}")
        if wanted == "nccl" and bits == SIZE and contract.reduces:
            raise ArgumentError(
                f"bits is {bits!r}, and 'nccl' chooses its algorithm by size in {contract.name}; "
                f"pass another algorithm, unset {VARIABLE}, or pass bits={ANY!r}"
            )
        return wanted

    def of(self, call: AgreedCall) -> Transport:
        """Return the transport of a call. The first call for a device that depends on the possible
        transports is collective: the ranks wait for each other.
        """
        wanted = call.job.asked
        rows = [row for row in TRANSPORTS if row.is_automatic or row.name == wanted]
        if wanted == "staging" or len(rows) == 1:
            return rows[-1]  # staging, which is always possible
        reasons = self.survey(call.engine, call.driver, call.device).reasons
        if wanted is not None and reasons[wanted] is not None:
            name = VARIABLE if self.forced == wanted else "algorithm"
            raise ArgumentError(
                f"{name} is {wanted!r}, which is not possible here: {reasons[wanted]}"
            )
        rows.sort(key=lambda row: row.name != wanted)
        return next(row for row in rows if reasons[row.name] is None and row.takes(call.job))

    def survey(self, engine: _core.Engine, driver: Driver, device: int) -> DeviceTransports:
        """Return the possible transports. The first call for a device is collective; later ones
        are local.
        """
        if device not in self.agreed:
            told = _told(engine, [_probed(row, engine, driver, device) for row in TRANSPORTS])
            reasons = {
                row.name: _reason(row, [each[i] for each in told])
                for i, row in enumerate(TRANSPORTS)
            }
            names = [row.name for row in TRANSPORTS if row.is_automatic]
            names = names if self.forced is None else [self.forced]
            used = next((name for name in names if reasons[name] is None), None)
            self.agreed[device] = DeviceTransports(device, used, reasons, self.forced)
        return self.agreed[device]


def stages(job: DeviceCall) -> bool:
    """Return whether a call goes through pinned memory, unless another automatic transport is
    possible. The same on all ranks.
    """
    rows = [row for row in TRANSPORTS if row.name == job.asked != "staging"]
    return not any(row.takes(job) for row in rows)


# A rank's answer for a transport: the reason why it cannot use it, or else its facts.
Told = tuple[str | None, str]


def _probed(row: Transport, engine: _core.Engine, driver: Driver, device: int) -> Told:
    reason = row.probe(engine, driver, device)
    if reason is None:
        try:
            return None, row.facts(driver, device)
        except Exception as error:
            reason = plain(error)
    return reason[:MOST] or "for an unknown reason", ""


def _told(engine: _core.Engine, mine: list[Told]) -> list[list[Told]]:
    """Return the answers of all ranks for all transports. Collective."""
    record = json.dumps(mine).encode()
    if len(record) > RECORD:  # characters beyond ASCII take more room
        record = json.dumps([(None if r is None else ascii(r)[:MOST], f) for r, f in mine]).encode()
    row = np.frombuffer(record.ljust(RECORD), np.uint8)
    everybody = np.empty((engine.size, RECORD), np.uint8)
    engine.announce("device_transports", row, everybody)
    return [json.loads(bytes(each)) for each in everybody]


def _reason(row: Transport, told: list[Told]) -> str | None:
    """Return the reason why the ranks cannot use a transport, or None."""
    reasons = grouped((rank, reason) for rank, (reason, _) in enumerate(told) if reason is not None)
    if reasons:
        return "; ".join(f"{reason} ({ranks(mask)})" for reason, mask in reasons.items())
    return row.difference([facts for _, facts in told])
