"""The record of installed files, as pip writes it, and as other programs may leave it."""

from __future__ import annotations

from pathlib import Path

import pytest

import topics_server


def site(path: Path, record: str, **sizes: int) -> Path:
    for name, size in sizes.items():
        (path / name).mkdir()
        (path / name / "a.py").write_bytes(b"x" * size)
    info = path / "topics_server-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(record)
    return path


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ("proto/a.py,sha256=x,3\n", []),
        ("proto/a.py,sha256=x,4\n", [("proto", "proto/a.py")]),
        ("proto/b.py,sha256=x,3\n", [("proto", "proto/b.py")]),
        ("other/b.py,sha256=x,3\n", []),
        ("proto/a.py,,\n", []),
        ("../../../bin/topics,sha256=x,223\n", []),
        ('"proto/a,b.py",sha256=x,3\n', []),
        ("", []),
        ("\n\n", []),
        ("proto/a.py\n", []),
        ("proto/a.py,sha256=x,-4\n", []),
        ("proto/a.py,sha256=x,many\n", []),
    ],
)
def test_a_file_of_another_size_is_found_and_a_record_that_says_nothing_is_not_believed(
    tmp_path: Path, record: str, found: list[tuple[str, str]]
) -> None:
    where = site(tmp_path, record, proto=3)
    assert list(topics_server._written_over(where)) == [(package, where / name) for package, name in found]


def test_a_checkout_has_no_record(tmp_path: Path) -> None:
    assert list(topics_server._written_over(tmp_path)) == []
