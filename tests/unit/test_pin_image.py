"""tools/pin-image.sh: base images are written into the Dockerfile with the digests that the registry has for them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy/container/Dockerfile"
DIGEST, OTHER = f"sha256:{'a1' * 32}", f"sha256:{'b2' * 32}"


def pin(directory: Path, file: Path, answer: str) -> subprocess.CompletedProcess[str]:
    """Run the tool with a `docker` that answers so for each image, and writes down what it was asked."""
    docker = directory / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" >> {directory}/asked\n{answer}\n')
    docker.chmod(0o755)
    environment = os.environ | {"PATH": f"{directory}:{os.environ['PATH']}"}
    command = [ROOT / "tools/pin-image.sh", file]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def images(file: Path) -> list[str]:
    return re.findall(r"^FROM (.*)$", file.read_text(), re.M)


def test_every_base_image_gets_its_digest_and_the_rest_stays(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_bytes(DOCKERFILE.read_bytes())
    before = [each.partition("@")[0].partition(" ")[0] for each in images(file)]
    done = pin(tmp_path, file, f"echo {DIGEST}")
    assert done.returncode == 0, done.stderr
    assert [each.partition(" ")[0] for each in images(file)] == [f"{each}@{DIGEST}" for each in before]
    assert images(file)[0].endswith(" AS build")
    strip = re.compile(r"^(FROM [^ @\n]*)@\S+", re.M)
    assert strip.sub(r"\1", file.read_text()) == strip.sub(r"\1", DOCKERFILE.read_text())
    assert all(line.split()[-1] in before for line in (tmp_path / "asked").read_text().splitlines())
    again = pin(tmp_path, file, f"echo {OTHER}")
    assert again.returncode == 0, again.stderr
    assert [each.partition(" ")[0] for each in images(file)] == [f"{each}@{OTHER}" for each in before]


@pytest.mark.parametrize("answer", ["exit 1", "echo", "echo sha256:123", f"echo '{DIGEST} and more'"])
def test_without_a_digest_nothing_is_changed(tmp_path: Path, answer: str) -> None:
    file = tmp_path / "Dockerfile"
    file.write_bytes(DOCKERFILE.read_bytes())
    assert pin(tmp_path, file, answer).returncode != 0
    assert file.read_bytes() == DOCKERFILE.read_bytes()
