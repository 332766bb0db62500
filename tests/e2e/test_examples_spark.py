"""The Spark examples start as their page in the documentation says, and find what is there, on generated flights."""

from __future__ import annotations

import random
import subprocess
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.test_examples_browser import START_S, example, recipe
from tests.e2e.test_spark_flights import HEADER
from tests.support.console import accessible
from tests.support.service import until
from tests.support.spark import ROOT

pytestmark = pytest.mark.spark
DAYS = range(8, 13)
PER_DAY = 60


def made_up(path: Path) -> Counter[tuple[int, str]]:
    """Five days of flights by twelve aircraft. Some are cancelled, others do not land. Returns the number of flights by
    day and airport."""
    chance = random.Random(20)
    lines, counted = [HEADER], Counter[tuple[int, str]]()
    for day in DAYS:
        for number in range(PER_DAY):
            delay = chance.choice(["NA", *range(-10, 90)])
            air_time = "NA" if delay == "NA" or chance.random() < 0.1 else chance.randrange(40, 400)
            scheduled = chance.randrange(24) * 100 + chance.randrange(60)
            origin, tail = chance.choice(["EWR", "JFK", "LGA"]), chance.randrange(12)
            counted[day, origin] += 1
            lines.append(
                f"2013,7,{day},NA,{scheduled},{delay},NA,819,NA,UA,{day * 1000 + number},N{tail},{origin},ORD,"
                f"{air_time},1400,5,15,2013-07-{day:02} 05:00:00"
            )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join(lines))
    return counted


@pytest.mark.parametrize(
    ("name", "proof"),
    [
        ("spark-sessions", "sessions of"),
        pytest.param("spark-join", "did not, each told once", marks=pytest.mark.long),
    ],
)
def test_what_spark_finds_is_what_plain_python_finds(name: str, proof: str, tmp_path: Path) -> None:
    made_up(tmp_path / "flights.csv.zip")
    command = recipe(name, f"--csv {tmp_path}/flights.csv.zip")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("PROOF ")
    assert proof in last
    # Something is found, and something has not ended or did not land.
    assert not {"0", str(len(DAYS) * PER_DAY)} & set(last.split())


def test_the_page_shows_the_report_of_each_day_that_is_over_once(tmp_path: Path) -> None:
    counted = made_up(tmp_path / "flights.csv.zip")
    with example("spark-report", tmp_path, f"--csv {tmp_path}/flights.csv.zip --speed 5") as running:
        page = running.open()
        over = len(DAYS) - 1
        reports = "document.getElementById('count')?.textContent"
        until(lambda: page.js(reports) == str(3 * over), "the reports", START_S)
        rows = page.js("[...document.querySelectorAll('tbody tr')].map(row => [...row.cells].map(c => c.innerText))")
        assert [row[0] for row in rows] == [f"2013-07-{day:02}" for day in reversed(DAYS[:over])]
        for day, row in zip(reversed(DAYS[:over]), rows, strict=True):
            for airport, cell in zip(("EWR", "JFK", "LGA"), row[1:], strict=True):
                assert cell.endswith(f"cancelled of {counted[day, airport]}")
        accessible(page)
