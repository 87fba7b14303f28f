"""Large tables on their way into a file."""

import numpy as np
import tensorflow as tf


class SavedValues:
    """The values of a variable, for Keras's writer of weights.

    What a layer gives to that writer is copied, a variable even twice, before it is written: 3 GB
    for the output table of the released RemBERT. Of this it takes the memory that is there.

    Args:
        variable: what is to be saved; it must not be assigned to before that.
    """

    def __init__(self, variable):
        self._variable = variable

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        # NumPy leaves it to this method to copy; the writer only reads.
        return np.asarray(tf.convert_to_tensor(self._variable), dtype)
