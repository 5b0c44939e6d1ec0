"""Secure sums: each client hides its update behind masks that cancel in the sum of all.

Each two clients of a round agree on a stream of random numbers, by a key that only they can compute
from their own private and the other's public key. One of them adds the stream to its update, and
the other subtracts it. The numbers are integers modulo 2**64, so that the masks cancel exactly, and
rank 0 learns nothing from a single update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.compression.codec import Range, parameter
from collectives.errors import ArgumentError
from collectives.federated.parameters import Parameters
from collectives.federated.strategies import Update
from collectives.federated.training import Bytes, Wire

MODULUS_BITS = 64
BITS = Range(index, lambda number: 1 <= number <= 40, "an integer from 1 to 40")
PURPOSE = b"collectives.federated: masks"


class SecureAggregation:
    """Updates of which rank 0 learns only the sum, for ``run(secure=...)``.

    A round in which an update is missing has no result, and the parameters do not change. So this
    is for clients that stay.

    Parameters
    ----------
    bits : int
        Values are sent in multiples of ``2**-bits``, rounded towards zero. The sum over a round of
        each value, times the number of samples, must be less than ``2**(63 - bits)``.

    Raises
    ------
    ArgumentError
        If `bits` is not from 1 to 40, or the package `cryptography` is missing.

    References
    ----------
    Keith Bonawitz, Vladimir Ivanov, Ben Kreuter, Antonio Marcedone, H. Brendan McMahan, Sarvar
    Patel, Daniel Ramage, Aaron Segal, Karn Seth: Practical Secure Aggregation for
    Privacy-Preserving Machine Learning, 2017, doi:10.1145/3133956.3133982
    """

    def __init__(self, bits: int = 24) -> None:
        self.bits: int = parameter(bits, "bits", BITS)
        _cryptography()

    def __repr__(self) -> str:
        return f"SecureAggregation(bits={self.bits})"

    def keys(self, clients: range) -> dict[int, Any]:
        """Return new private keys for some `clients`, by their numbers. Local."""
        x25519 = _cryptography().asymmetric.x25519
        return {client: x25519.X25519PrivateKey.generate() for client in clients}


class Masked(Wire):
    """Updates behind masks."""

    least = 2
    needs_all = True

    def __init__(
        self,
        parameters: Parameters,
        bits: int,
        private: Mapping[int, Any],
        public: Sequence[bytes],
    ) -> None:
        super().__init__(parameters)
        self._bits = bits
        self._private, self._public = private, public
        self._shared: dict[tuple[int, int], bytes] = {}
        self._elements = sum(parameters.sizes)
        self.nbytes: int = 8 * (self._elements + 1)

    def packed(self, update: Update, round: int, client: int, roster: Sequence[int]) -> Bytes:
        numbers = self._weighted(update, len(roster))
        for other in roster:
            if other < client:
                numbers -= self._stream(round, client, other)
            elif other > client:
                numbers += self._stream(round, client, other)
        return numbers.view(np.uint8)

    def unpacked(self, received: Sequence[Bytes]) -> list[Update]:
        """Return one update, the mean of all, whose count is their sum."""
        total = np.zeros(self._elements + 1, np.uint64)
        for each in received:
            total += each.view(np.uint64)
        whole = total.view(np.int64)
        count = int(whole[-1])
        means = whole[:-1] / 2.0**self._bits / max(count, 1)
        own = self._parameters
        parts = zip(np.split(means, np.cumsum(own.sizes[:-1])), own.dtypes, own.shapes, strict=True)
        return [Update([part.astype(dtype).reshape(shape) for part, dtype, shape in parts], count)]

    def _weighted(self, update: Update, clients: int) -> NDArray[np.uint64]:
        """Return the values times the count, and the count, as integers modulo 2**64."""
        flat = np.concatenate([each.reshape(-1).astype(np.float64) for each in update.arrays])
        largest = float(np.abs(flat).max(initial=1.0))
        most = 2.0 ** (MODULUS_BITS - 1 - self._bits) / clients
        if not largest * max(update.count, 1) < most:
            raise ArgumentError(
                f"a client's update has a value of {largest:.3g} with the weight {update.count}; "
                f"with {self._bits} bits of fractions and {clients} clients, the product must be "
                f"below {most:.3g}: pass fewer bits to SecureAggregation"
            )
        numbers = np.empty(self._elements + 1, np.int64)
        numbers[:-1] = np.trunc(flat * 2.0**self._bits).astype(np.int64) * update.count
        numbers[-1] = update.count
        return numbers.view(np.uint64)

    def _stream(self, round: int, client: int, other: int) -> NDArray[np.uint64]:
        """Return the mask of two clients for a round."""
        ciphers = _cryptography().ciphers
        nonce = bytes(8) + round.to_bytes(8, "little")  # the counter of blocks is in the first half
        cipher = ciphers.Cipher(ciphers.algorithms.ChaCha20(self._key(client, other), nonce), None)
        return np.frombuffer(cipher.encryptor().update(bytes(self.nbytes)), np.uint64)

    def _key(self, client: int, other: int) -> bytes:
        """Return the key that two clients share."""
        pair = min(client, other), max(client, other)
        if pair not in self._shared:
            primitives = _cryptography()
            x25519 = primitives.asymmetric.x25519
            theirs = x25519.X25519PublicKey.from_public_bytes(self._public[other])
            names = b"".join(each.to_bytes(8, "little") for each in pair)
            derive = primitives.kdf.hkdf.HKDF(primitives.hashes.SHA256(), 32, None, PURPOSE + names)
            self._shared[pair] = derive.derive(self._private[client].exchange(theirs))
        return self._shared[pair]


KEY_BYTES = 32  # of a public key


def public_of(private: Mapping[int, Any]) -> list[bytes]:
    """Return the public keys that belong to `private` ones, in the order of the clients. Local."""
    return [private[client].public_key().public_bytes_raw() for client in sorted(private)]


def _cryptography() -> Any:
    """Return ``cryptography.hazmat.primitives``."""
    try:
        import cryptography.hazmat.primitives.asymmetric.x25519
        import cryptography.hazmat.primitives.ciphers
        import cryptography.hazmat.primitives.hashes
        import cryptography.hazmat.primitives.kdf.hkdf
    except ImportError as error:
        raise ArgumentError(
            f"SecureAggregation needs the package cryptography ({error}): pip install cryptography"
        ) from error
    return cryptography.hazmat.primitives
