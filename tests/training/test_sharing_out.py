"""Replicas, workers and micro-batches make the update that one device makes of the whole batch."""

import numpy as np
import pytest

from tests.training.sharing_out import MICRO_BATCHES
from tests.training.workers import start_workers, wait_for_all

TOLERANCE = 1e-5
PROGRAM = ("-m", "tests.training.sharing_out")


def _updates(workers: int, devices: int, folder) -> dict[str, np.ndarray]:
    output = folder / "updates.npz"
    command = (*PROGRAM, str(devices), str(output))
    for status, _, errors in wait_for_all(start_workers(*[command] * workers)):
        assert status == 0, errors
    with np.load(output) as file:
        return dict(file)


@pytest.fixture(scope="module")
def of_one_device(tmp_path_factory):
    return _updates(1, 1, tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize(
    ("workers", "devices"),
    [(1, 1), (1, 2), (2, 1), (2, 2)],
    ids=["one device", "two devices", "two workers", "two workers with two devices each"],
)
def test_updates_are_those_of_one_device(workers, devices, of_one_device, tmp_path):
    updates = of_one_device if workers == devices == 1 else _updates(workers, devices, tmp_path)
    expected = {
        name.removeprefix("1/"): value
        for name, value in of_one_device.items()
        if name.startswith("1/")
        # Its gradient is zero but for rounding, which Adam makes as large as any other's.
        and not name.endswith("key/bias")
    }
    assert all(expected["norms"] > 0.2), "clipping should bite"
    moved = [name for name, value in expected.items() if np.any(value)]
    assert len(moved) > 20
    for count in MICRO_BATCHES:
        for name, value in expected.items():
            error = np.linalg.norm(updates[f"{count}/{name}"] - value)
            assert error <= TOLERANCE * np.linalg.norm(value), (count, name)
