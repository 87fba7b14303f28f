"""Random numbers that are a function of a key, and stay so from one version of NumPy to the next.

Every random decision about the data is drawn from a key that says what it is for (seed, purpose,
language, epoch, window …), so that no state has to be carried along, saved or kept in step between
workers. NumPy promises the raw integers of a bit generator for ever, but not what the methods of
`Generator` make of them; what is made of them is therefore written out here.
"""

import hashlib
import operator

import numpy as np

RAW_VALUES = 2**64


class RandomBits:
    """A stream of random integers, determined by its key alone.

    The key is hashed (BLAKE2b) into the 128-bit key of a Philox-4x64 counter-based generator, so
    that keys as close as (seed, 1) and (seed, 2) give unrelated streams. A stream costs about
    15 microseconds to open.

    >>> RandomBits(0, "masking", "de", 3).raw(2).tolist() == (
    ...     RandomBits(0, "masking", "de", 3).raw(2).tolist())
    True

    Args:
        *key: integers (64-bit, signed) and strings. Their order and their types matter.
    """

    def __init__(self, *key: int | str):
        self._generator = np.random.Philox(key=_hash(key))

    def raw(self, count: int) -> np.ndarray:
        """The next `count` integers of the stream, uniform in [0, 2^64); uint64 `[count]`."""
        return self._generator.random_raw(count)

    def uniform(self, count: int) -> np.ndarray:
        """`count` numbers uniform in [0, 1), multiples of 2^-53; float64 `[count]`."""
        return (self.raw(count) >> np.uint64(11)) * 2.0**-53

    def integers(self, bound: int, count: int) -> np.ndarray:
        """`count` integers uniform in [0, bound) without bias; int64 `[count]`.

        Raw integers beyond the last whole multiple of `bound` are drawn again.

        Args:
            bound: from 1 to 2^63.
            count: how many.
        """
        last = np.uint64(RAW_VALUES - RAW_VALUES % bound - 1)
        bits = self.raw(count)
        while (rejected := bits > last).any():
            bits[rejected] = self.raw(int(rejected.sum()))
        return (bits % np.uint64(bound)).astype(np.int64)


def _hash(key: tuple[int | str, ...]) -> np.ndarray:
    """The key as uint64 `[2]`: two keys that differ in any part or type are hashed apart."""
    digest = hashlib.blake2b(digest_size=16)
    for part in key:
        if isinstance(part, str):
            data = part.encode()
            digest.update(b"s" + len(data).to_bytes(8, "little") + data)
        else:
            digest.update(b"i" + operator.index(part).to_bytes(8, "little", signed=True))
    return np.frombuffer(digest.digest(), "<u8").astype(np.uint64)
