"""How often each language is read, and which language stands at which position."""

import math

import numpy as np

from kzoo.corpora.random_bits import RandomBits
from kzoo.errors import KzooError

PERIOD = 2**20
# Near PERIOD divided by the golden ratio, odd, and with small partial quotients throughout (none
# above 3): successive multiples of it fill the period as evenly as multiples can.
_STRIDE = 648_053


def language_probabilities(sizes: dict[str, int], exponent: float) -> dict[str, float]:
    """The share of each language in training: p_l proportional to n_l^exponent.

    Source: RemBERT paper, equation 1 (n = sentences, exponent 0.5).

    Args:
        sizes: how much there is of each language, at least 1.
        exponent: 0 gives every language the same share, 1 a share proportional to its size.

    Returns:
        The probabilities, in the order of `sizes`; they sum to 1.

    Raises:
        KzooError: there is no language, one is empty, or the exponent is negative or not finite.
    """
    if not sizes:
        raise KzooError("the training examples hold no language; prepare at least one")
    if empty := [language for language, size in sizes.items() if size <= 0]:
        raise KzooError(
            f"nothing to train on for language {', '.join(map(repr, empty))} "
            f"(sizes: {sizes}); add text for it, or leave it out"
        )
    if not (math.isfinite(exponent) and exponent >= 0):
        raise KzooError(f"sampling_exponent must be a number from 0 up, but is {exponent}")
    # Relative to the largest size: large exponents must not overflow.
    largest = max(sizes.values())
    weights = {language: (size / largest) ** exponent for language, size in sizes.items()}
    total = math.fsum(weights.values())
    return {language: weight / total for language, weight in weights.items()}


class Interleave:
    """An endless sequence of languages with exact shares and random access.

    The sequence repeats after 2^20 positions. Within a period every language has its share to
    within one position (10^-6), but at least one position; and the positions of a language are
    spread so evenly that any stretch, such as one batch or the slice of one worker, holds about
    the shares of the whole. A language's draws are numbered from 0 in the order of their positions.

    Takes 6 MB.

    Args:
        probabilities: of each language; they sum to 1.
        seed: shifts the sequence.
    """

    def __init__(self, probabilities: list[float], seed: int):
        self._counts = apportion(probabilities, PERIOD)
        shift = int(RandomBits(seed, "mixture").integers(PERIOD, 1)[0])
        slots = (np.arange(PERIOD) * _STRIDE + shift) % PERIOD
        ends = np.cumsum(self._counts)
        language_of_slot = np.repeat(np.arange(len(ends), dtype=np.uint16), self._counts)
        self._languages = language_of_slot[slots]
        by_language = np.argsort(self._languages, kind="stable")
        self._draws = np.empty(PERIOD, np.int32)
        self._draws[by_language] = np.arange(PERIOD) - np.repeat(ends - self._counts, self._counts)

    def locate(self, position: int) -> tuple[int, int]:
        """The language (an index into `probabilities`) at a position, and which of its draws."""
        period, offset = divmod(position, PERIOD)
        language = int(self._languages[offset])
        return language, period * int(self._counts[language]) + int(self._draws[offset])


def apportion(probabilities: list[float], total: int) -> np.ndarray:
    """Shares out `total` positions, at least one to each.

    Args:
        probabilities: they sum to 1.
        total: at least as many as there are probabilities.

    Returns:
        int64 `[len(probabilities)]`, summing to `total`; each within one of its exact share, unless
        shares below one position had to be rounded up at the cost of the large ones.
    """
    exact = np.asarray(probabilities, np.float64) * total
    counts = np.maximum(np.floor(exact), 1).astype(np.int64)
    while missing := total - int(counts.sum()):
        # Largest remainders, one position a round: who is furthest below (or above) its share.
        if missing > 0:
            counts[np.argmax(exact - counts)] += 1
        else:
            counts[np.argmax(np.where(counts > 1, counts - exact, -np.inf))] -= 1
    return counts
