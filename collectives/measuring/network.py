"""The network of this process: addresses of its host, routes, and open connections."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

GET_ADDRESS = 0x8915  # SIOCGIFADDR
REQUEST = struct.Struct("16s4x4s16x")  # ifreq: the name, and the address in a sockaddr_in
ESTABLISHED = "01"

RDMA = Path("/sys/class/infiniband")

# Device files of networks that bypass the kernel's TCP.
DEVICES = re.compile(r"/dev/(infiniband/uverbs\d+|hfi1_\d+|cxi\d+|kgni\d*)$")


def addresses() -> dict[str, str]:
    """Return the addresses of this host, and the interface of each, without loopback. Local."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = REQUEST.pack(os.fsencode(name), b"")
            try:
                reply = fcntl.ioctl(asked, GET_ADDRESS, request)
            except OSError:  # the interface has no address
                continue
            found[socket.inet_ntoa(REQUEST.unpack(reply)[1])] = name
    for line in _lines("/proc/self/net/if_inet6"):
        digits, *_, name = line.split()
        found[str(IPv6Address(bytes.fromhex(digits)))] = name
    return {text: name for text, name in found.items() if not ip_address(text).is_loopback}


def route(target: str) -> str | None:
    """Return the address of this host from which the kernel would send to `target`; None without a
    route. Local.
    """
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((target, 9))  # sends nothing
        except OSError:
            return None
        return str(asked.getsockname()[0])


def connections() -> list[tuple[str, str]]:
    """Return the local and remote addresses of this process's TCP connections. Local."""
    mine = {link.removeprefix("socket:[").rstrip("]") for link in _open_files()}
    found = []
    for file in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in _lines(file)[1:]:
            words = line.split()
            if words[3] == ESTABLISHED and words[9] in mine:
                found.append((_address(words[1]), _address(words[2])))
    return sorted(set(found))


def devices() -> list[str]:
    """Return the devices of other networks that this process has open. Local."""
    return sorted({link for link in _open_files() if DEVICES.match(link)})


def rdma() -> list[str]:
    """Return the names of devices of this host that need locked memory. Local."""
    try:
        return sorted(each.name for each in RDMA.iterdir())
    except OSError:
        return []


def through(peer: dict[str, str]) -> dict[str, Any]:
    """Return the known route from this process to one of another host. Local."""
    mine = addresses()
    # Bridges of containers have the same addresses on many hosts.
    peer = {text: name for text, name in peer.items() if text not in mine}
    tcp = [
        [here, mine.get(here), there, peer[there]] for here, there in connections() if there in peer
    ]
    ways = ((route(there), there) for there in sorted(peer, key=lambda text: (":" in text, text)))
    routes = [
        [here, mine[here], there, peer[there]]
        for here, there in ways
        if here is not None and here in mine
    ]
    near = [way for way in routes if _is_near(way[0], way[2])] or routes
    return {
        "here": not peer,
        "tcp": tcp,
        "devices": devices(),
        "route": near[0] if near else None,
    }


def _is_near(here: str, there: str) -> bool:
    """Return whether two addresses look like those of one network."""
    first, second = ip_address(here), ip_address(there)
    if first.version != second.version:
        return False
    return first.packed[: len(first.packed) // 2] == second.packed[: len(first.packed) // 2]


def _address(text: str) -> str:
    """Read an address of the kernel's tables: hexadecimal words in the host's byte order."""
    digits = text.partition(":")[0]
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    if len(packed) == 4:
        return str(IPv4Address(packed))
    whole = IPv6Address(packed)
    return str(whole.ipv4_mapped or whole)


def _open_files() -> list[str]:
    """Return the targets of this process's descriptors."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(each))
        except OSError:  # closed in the meantime, such as that of the folder itself
            continue
    return found


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
