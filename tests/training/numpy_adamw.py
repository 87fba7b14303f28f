"""AdamW in a few lines of NumPy, to compare the fused one with."""

from collections.abc import Sequence

import numpy as np


class NumpyAdamW:
    """The formulas of `kzoo.training.optimizer.AdamW`, in float64.

    Attributes:
        weights: the values so far.
    """

    def __init__(
        self,
        weights: Sequence[np.ndarray],
        decays: Sequence[bool],
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float,
        clip_norm: float | None,
        rate_factors: Sequence[float] | None = None,
    ):
        self.weights = [weight.astype(np.float64) for weight in weights]
        self._m = [np.zeros_like(weight) for weight in self.weights]
        self._v = [np.zeros_like(weight) for weight in self.weights]
        self._decays = decays
        self._rate_factors = rate_factors or [1.0] * len(weights)
        self._settings = beta_1, beta_2, epsilon, weight_decay, clip_norm

    def update(self, gradients: Sequence[np.ndarray], step: int, rate: float) -> float:
        """Makes update `step`, counted from 0; returns the global norm before clipping."""
        beta_1, beta_2, epsilon, weight_decay, clip_norm = self._settings
        gradients = [gradient.astype(np.float64) for gradient in gradients]
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
        factor = 1.0 if clip_norm is None else min(1.0, clip_norm / norm)
        correction = np.sqrt(1 - beta_2 ** (step + 1)) / (1 - beta_1 ** (step + 1))
        for i, gradient in enumerate(gradients):
            own_rate = rate * self._rate_factors[i]
            if self._decays[i]:
                self.weights[i] *= 1 - own_rate * weight_decay
            self._m[i] = beta_1 * self._m[i] + (1 - beta_1) * factor * gradient
            self._v[i] = beta_2 * self._v[i] + (1 - beta_2) * (factor * gradient) ** 2
            self.weights[i] -= own_rate * correction * self._m[i] / (np.sqrt(self._v[i]) + epsilon)
        return float(norm)
