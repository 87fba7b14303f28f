"""What a run reports of the steps since the last report, and of held-out text."""

import time
from dataclasses import dataclass

from kzoo.training.metrics import bits_per_token
from kzoo.training.step import StepMetrics


@dataclass
class Interval:
    """Sums over the steps between two reports."""

    steps: int = 0
    skipped_steps: int = 0
    loss: float = 0.0
    correct: float = 0.0
    targets: float = 0.0
    tokens: float = 0.0
    positions: float = 0.0
    gradient_norm: float = 0.0
    seconds: float = 0.0

    def add(self, metrics: StepMetrics) -> None:
        # What is not a number would make sums that are none.
        if not metrics.finite:
            self.skipped_steps += 1
            return
        self.steps += 1
        for name in ("loss", "correct", "targets", "tokens", "positions", "gradient_norm"):
            setattr(self, name, getattr(self, name) + float(getattr(metrics, name)))

    def shown(self) -> dict[str, float]:
        """What the progress line shows."""
        targets = max(1.0, self.targets)
        return {
            "loss": self.loss / targets,
            "accuracy": self.correct / targets,
            "tokens_per_second": self.tokens / max(self.seconds, 1e-9),
        }

    def report(self) -> dict[str, float]:
        """What is written about the interval; tokens are those that are no padding."""
        report = self.shown()
        report["bits_per_token"] = bits_per_token(report["loss"])
        report["gradient_norm"] = self.gradient_norm / max(1, self.steps)
        report["padding_share"] = 1 - self.tokens / max(1.0, self.positions)
        report["skipped_steps"] = self.skipped_steps
        return report


class Pause:
    """Time since it was made, without what is spent inside of it (`with pause: …`)."""

    def __init__(self):
        self._started = time.perf_counter()
        self._entered = 0.0

    def running_seconds(self) -> float:
        return time.perf_counter() - self._started

    def __enter__(self) -> None:
        self._entered = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._started += time.perf_counter() - self._entered


def held_out_line(step: int, measured: dict[str, float]) -> str:
    """What is printed of a measurement on held-out text."""
    losses = {
        name.removeprefix("loss/"): value
        for name, value in measured.items()
        if name.startswith("loss/")
    }
    return (
        f"step {step:,}: held-out loss {measured['loss']:.3f}, accuracy "
        f"{measured['accuracy']:.1%} ("
        + ", ".join(f"{language} {loss:.2f}" for language, loss in losses.items())
        + ")"
    )
