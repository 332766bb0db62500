"""Free memory of the heap: how much is kept, and when it is given back to the system."""

from __future__ import annotations

import pytest

from proto.process import allocator


def test_little_free_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "free_bytes", lambda: allocator.KEPT_BYTES)
    assert allocator.trim_heap() is False


def test_free_memory_is_counted_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    if not allocator.free_bytes():
        pytest.skip("the C library does not tell")
    blocks = [bytes(10_000) for _ in range(10_000)]
    kept = blocks[::100]  # what settles between
    before = allocator.free_bytes()
    del blocks
    assert allocator.free_bytes() > before + 50_000_000
    monkeypatch.setattr(allocator, "KEPT_BYTES", 0)
    monkeypatch.setattr(allocator._After, "free", 0)
    assert allocator.trim_heap() is True
    assert len(kept) == 100


def test_the_heap_is_looked_through_again_when_more_was_freed_or_used_since(monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1 << 20
    looks = iter(
        [
            # free, resident → trimmed
            (100 * mib, 200 * mib, True),  # as found; then as left:
            (90 * mib, 110 * mib, None),
            (91 * mib, 111 * mib, False),  # holes that were given back are free still
            (150 * mib, 111 * mib, True),  # freed after the last time, e.g. messages that a hung shard kept
            (140 * mib, 60 * mib, None),
            (141 * mib, 61 * mib, False),
            (141 * mib, 90 * mib, True),  # used and freed in between
            (139 * mib, 60 * mib, None),
            (33 * mib, 61 * mib, False),  # in use again
            (45 * mib, 61 * mib, True),  # and freed
            (7 * mib, 50 * mib, None),
            (7 * mib, 99 * mib, False),  # little is kept
        ]
    )
    now = (0, 0)

    def look() -> bool | None:
        nonlocal now
        *now, trimmed = next(looks)  # type: ignore[assignment]
        return trimmed  # type: ignore[return-value]

    class C:
        @staticmethod
        def malloc_trim(_: int) -> int:
            assert look() is None
            return 1

    monkeypatch.setattr(allocator, "_c", C)
    monkeypatch.setattr(allocator, "free_bytes", lambda: now[0])
    monkeypatch.setattr(allocator, "resident_bytes", lambda: now[1])
    monkeypatch.setattr(allocator._After, "free", 0)
    monkeypatch.setattr(allocator._After, "resident", 0)
    for _ in range(8):
        trimmed = look()
        assert allocator.trim_heap() is trimmed
    assert next(looks, None) is None
