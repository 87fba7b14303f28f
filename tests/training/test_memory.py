"""What may still be taken: of the machine, and of every group that the process is in."""

import pytest

from kzoo.training import memory

GIB = 1 << 30


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A machine with 8 GiB free."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    monkeypatch.setattr(memory, "_MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_MOUNT", tmp_path / "mount")
    return tmp_path


def write_group(folder, files: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def version_2(limit: object, used: int, cached: int = 0) -> dict[str, object]:
    statistics = f"active_file {cached}\ninactive_file 0"
    return {"memory.max": limit, "memory.current": used, "memory.stat": statistics}


def test_without_groups_it_is_what_the_machine_has(system):
    assert memory.available_memory_bytes() == 8 * GIB


def test_the_lowest_limit_up_the_tree_holds(system):
    (system / "groups").write_text("0::/job/step\n")
    write_group(system / "mount/job/step", version_2("max", GIB))
    write_group(system / "mount/job", version_2(4 * GIB, 2 * GIB, cached=GIB))
    assert memory.available_memory_bytes() == 3 * GIB
    write_group(system / "mount/job/step", version_2(2 * GIB, GIB))
    assert memory.available_memory_bytes() == GIB


def test_in_a_container_the_mount_is_the_group(system):
    (system / "groups").write_text("0::/machine/slice/container\n")
    write_group(system / "mount", version_2(4 * GIB, GIB))
    assert memory.available_memory_bytes() == 3 * GIB


def test_the_older_version_has_other_names(system):
    (system / "groups").write_text("5:cpu,cpuacct:/job\n4:memory:/job\n1:name=systemd:/\n")
    statistics = f"active_file 5\ntotal_active_file {GIB}\ntotal_inactive_file 0"
    files = {"memory.limit_in_bytes": 4 * GIB, "memory.usage_in_bytes": 3 * GIB}
    write_group(system / "mount/memory/job", {**files, "memory.stat": statistics})
    assert memory.available_memory_bytes() == 2 * GIB


def test_no_limit_is_not_one_of_a_small_number(system):
    (system / "groups").write_text("4:memory:/\n")
    files = {"memory.limit_in_bytes": (1 << 63) - 4096, "memory.usage_in_bytes": GIB}
    write_group(system / "mount/memory", {**files, "memory.stat": "total_active_file 0"})
    assert memory.available_memory_bytes() == 8 * GIB
