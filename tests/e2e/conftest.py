"""A service that the tests of one module share. Each test uses only topics of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import Service

# The Spark sessions of the tests are short: compiling their code well costs a third of their time and saves nothing.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory: Path = tmp_path_factory.mktemp("service")
    with Service(directory, TOPICS_ALLOWED_HOSTS="topics.example.com") as running:
        yield running
