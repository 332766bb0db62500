"""Source distribution of a project, with the same bytes each time: python tools/sdist.py PROJECT DIRECTORY

setuptools takes times and owners from the machine. Here every file has the time SOURCE_DATE_EPOCH and no owner, and
files are in the order of their names. Prints the path of the archive. The Python that runs it has the back-end.
"""

from __future__ import annotations

import gzip
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from setuptools import build_meta


def build(project: Path, directory: Path) -> Path:
    os.chdir(project)
    with tempfile.TemporaryDirectory() as work:
        name = build_meta.build_sdist(work, {"--global-option": ["--quiet"]})
        repack(Path(work, name), directory / name, int(os.environ["SOURCE_DATE_EPOCH"]))
    return directory / name


def repack(made: Path, to: Path, epoch: int) -> None:
    with (
        tarfile.open(made) as archive,
        to.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w") as again,
    ):
        for member in sorted(archive.getmembers(), key=lambda each: each.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, epoch
            plain.mode = 0o755 if member.isdir() else 0o644
            again.addfile(plain, archive.extractfile(member) if member.isfile() else None)


if __name__ == "__main__":
    sys.stdout.write(str(build(Path(sys.argv[1]), Path(sys.argv[2]))))
