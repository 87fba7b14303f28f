"""In which order the windows of one language are read: a new permutation for every epoch."""

import functools

from kzoo.corpora.random_bits import RandomBits

_ROUNDS = 6
_MASK_64 = 2**64 - 1


class EpochOrder:
    """Where the k-th draw from a language finds its window.

    Draw k belongs to epoch `k // num_windows`, and each epoch reads every window exactly once, in
    an order of its own. Nothing is stored: an order is a Feistel network over the smallest power
    of two that holds the windows, walked until it lands on one of them (less than twice on
    average), so that any draw is found in constant time and memory, however large the corpus.

    Args:
        num_windows: at least 1.
        seed: of the run.
        language: name; a language keeps its order whatever other languages are there.
    """

    def __init__(self, num_windows: int, seed: int, language: str):
        self.num_windows = num_windows
        self.seed = seed
        self.language = language

    def locate(self, draw: int) -> tuple[int, int]:
        """The epoch and the index of the window, in [0, num_windows), of one draw."""
        epoch, place = divmod(draw, self.num_windows)
        keys = _round_keys(self.seed, self.language, epoch)
        return epoch, permute(place, self.num_windows, keys)


@functools.lru_cache(maxsize=4096)
def _round_keys(seed: int, language: str, epoch: int) -> tuple[int, ...]:
    return tuple(RandomBits(seed, "order", language, epoch).raw(_ROUNDS).tolist())


def permute(place: int, size: int, keys: tuple[int, ...]) -> int:
    """The image of `place` under a permutation of [0, size) that `keys` determine.

    Args:
        place: in [0, size).
        size: at least 1.
        keys: one 64-bit integer for every round.
    """
    num_bits = (size - 1).bit_length()
    right_bits = (num_bits + 1) // 2
    right_mask = (1 << right_bits) - 1
    left_mask = (1 << (num_bits - right_bits)) - 1
    while True:
        left, right = place >> right_bits, place & right_mask
        for round_number, key in enumerate(keys):
            if round_number % 2 == 0:
                right ^= _mix(left ^ key) & right_mask
            else:
                left ^= _mix(right ^ key) & left_mask
        place = left << right_bits | right
        if place < size:
            return place


def _mix(value: int) -> int:
    """SplitMix64's finaliser (Steele et al. 2014): every output bit depends on every input bit."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK_64
    return value ^ value >> 31
