"""The memory of a machine, or of the control group that a process is in, and the gateways for its cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proto.model.memory_shares import DEFAULT_BYTES
from supervisor.config.machine import default_gateways, memory_bytes, usable_cores

GIB = 1 << 30


def machine(root: Path, files: dict[str, str]) -> int:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return memory_bytes(root)


MEMINFO = {"proc/meminfo": f"MemFree:   5 kB\nMemTotal:       {8 * GIB >> 10} kB\n"}


def test_without_any_limit_it_is_that_of_the_machine(tmp_path: Path) -> None:
    assert machine(tmp_path, MEMINFO) == 8 * GIB


def test_a_machine_that_says_nothing_counts_as_a_usual_one(tmp_path: Path) -> None:
    assert machine(tmp_path, {}) == 8 * DEFAULT_BYTES
    assert machine(tmp_path, {"proc/meminfo": "MemFree: 5 kB\n"}) == 8 * DEFAULT_BYTES


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({"": "max", "/a": "max", "/a/b": str(GIB)}, GIB),
        ({"": "max", "/a": str(GIB), "/a/b": str(2 * GIB)}, GIB),
        ({"": str(3 * GIB), "/a": "max", "/a/b": "max"}, 3 * GIB),
        ({"/a/b": str(64 * GIB)}, 8 * GIB),
        ({"/a/b": "nonsense"}, 8 * GIB),
        ({}, 8 * GIB),
    ],
)
def test_the_least_limit_of_a_group_and_its_parents_counts(tmp_path: Path, limits: dict[str, str], found: int) -> None:
    files = {f"sys/fs/cgroup{group}/memory.max": f"{text}\n" for group, text in limits.items()}
    assert machine(tmp_path, {**MEMINFO, "proc/self/cgroup": "0::/a/b\n", **files}) == found


def test_groups_of_the_first_version_count_too_and_other_controllers_do_not(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/c\n4:hugetlb,memory:/m\n0::/a\n",
        "sys/fs/cgroup/memory/m/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/c/memory.limit_in_bytes": "1\n",
    }
    assert machine(tmp_path, {**MEMINFO, **files}) == 2 * GIB


@pytest.mark.parametrize(
    ("cores", "gateways"), [(1, 1), (2, 1), (5, 1), (6, 2), (8, 2), (9, 3), (47, 15), (48, 16), (256, 16)]
)
def test_gateways_for_cores(cores: int, gateways: int) -> None:
    assert default_gateways(cores, 64 * GIB) == gateways


@pytest.mark.parametrize(
    ("memory", "gateways"), [(GIB // 2, 1), (GIB, 1), (3 * GIB - 1, 2), (3 * GIB, 3), (64 * GIB, 8)]
)
def test_a_container_with_little_memory_on_a_large_machine_has_few_gateways(memory: int, gateways: int) -> None:
    assert default_gateways(24, memory) == gateways


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 24),
        ({"/cpu.max": "max 100000\n", "/a/cpu.max": "max 100000\n"}, 24),
        ({"/a/cpu.max": "800000 100000\n", "/a/b/cpu.max": "max 100000\n"}, 8),
        ({"/a/b/cpu.max": "250000 100000\n"}, 2),
        ({"/a/b/cpu.max": "50000 100000\n"}, 1),
        ({"/a/b/cpu.max": "6400000 100000\n"}, 24),
        ({"/a/b/cpu.max": "nonsense\n", "/a/cpu.max": "1 0\n", "/cpu.max": "-1 100000\n"}, 24),
        ({"/cpu/c/cpu.cfs_quota_us": "300000\n", "/cpu/c/cpu.cfs_period_us": "100000\n"}, 3),
        ({"/cpu/c/cpu.cfs_quota_us": "-1\n", "/cpu/c/cpu.cfs_period_us": "100000\n"}, 24),
        ({"/cpu/cpu.cfs_quota_us": "300000\n"}, 24),
    ],
)
def test_a_quota_on_processor_time_counts_as_fewer_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(24)))
    machine(tmp_path, {"proc/self/cgroup": "5:cpuacct,cpu:/c\n4:memory:/m\n0::/a/b\n"})
    machine(tmp_path, {f"sys/fs/cgroup{name}": text for name, text in files.items()})
    assert usable_cores(tmp_path) == cores
