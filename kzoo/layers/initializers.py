"""How weights start."""

import keras

STANDARD_DEVIATION = 0.02


def truncated_normal() -> keras.initializers.Initializer:
    """A new truncated normal initializer of standard deviation 0.02, as in BERT.

    An instance gives the same values at every call, so each weight needs one of its own.
    """
    return keras.initializers.TruncatedNormal(stddev=STANDARD_DEVIATION)
