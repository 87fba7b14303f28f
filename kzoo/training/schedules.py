"""The learning rate as a function of the step alone."""

import math
from collections.abc import Callable

from kzoo.errors import KzooError

SCHEDULES = ("constant", "linear", "cosine", "warmup_stable_decay")


def learning_rate_schedule(
    schedule: str,
    *,
    peak: float,
    train_steps: int,
    warmup_steps: int = 0,
    decay_steps: int | None = None,
    end: float = 0.0,
) -> Callable[[int], float]:
    """The rate of each update.

    In the warm-up, update `step` (counted from 0) has the rate peak · (step + 1) / warmup_steps,
    so the first update already learns and update `warmup_steps - 1` has the peak.

    Args:
        schedule: how the rate goes on after the warm-up: `constant`; `linear` or `cosine` from
            `peak` to `end`, which update `train_steps` would have; `warmup_stable_decay` keeps the
            peak and goes linearly to `end` over the last `decay_steps` updates.
        peak: the highest rate.
        train_steps: updates in the whole run, whatever number of attempts it takes.
        warmup_steps: updates of the warm-up.
        decay_steps: updates of the decay (`warmup_stable_decay` only).
        end: the rate at which the decay aims.
    """
    if schedule not in SCHEDULES:
        raise KzooError(f"schedule must be one of {', '.join(SCHEDULES)}; received {schedule!r}")
    if schedule == "warmup_stable_decay" and not decay_steps:
        raise KzooError("schedule warmup_stable_decay needs decay_steps of 1 or more")
    holds_peak = schedule == "warmup_stable_decay"
    decay_begins = train_steps - decay_steps if holds_peak else warmup_steps

    def rate(step: int) -> float:
        if step < warmup_steps:
            return peak * (step + 1) / warmup_steps
        if schedule == "constant" or step < decay_begins:
            return peak
        done = min(1.0, (step - decay_begins) / max(1, train_steps - decay_begins))
        share = (1 + math.cos(math.pi * done)) / 2 if schedule == "cosine" else 1 - done
        return end + (peak - end) * share

    return rate
