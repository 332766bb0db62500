"""Claims about the flights example, on generated flights; `make demo-spark` uses the real ones."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.spark import ROOT

pytestmark = pytest.mark.spark
HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)


def made_up(path: Path, count: int) -> None:
    chance = random.Random(1)
    lines = [HEADER]
    for number in range(count):
        late = chance.choice(["NA", chance.randrange(-20, 200)])
        carrier = chance.choice(["UA", "AA", "B6", "9E"])
        origin, dest = chance.choice(["EWR", "JFK", "LGA"]), chance.choice(["IAH", "MIA", "BQN", "ATL", "ORD"])
        lines.append(
            f"2013,{1 + number % 12},{1 + number % 28},517,515,{late},NA,819,{late},{carrier},{number},N14228,"
            f"{origin},{dest},NA,1400,5,15,2013-01-01 05:00:00"
        )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", "\n".join(lines))


def test_the_flights_go_through_spark_and_come_out_the_same(tmp_path: Path) -> None:
    made_up(tmp_path / "flights.csv.zip", 5000)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/flights/spark_demo.py"), "--csv", str(tmp_path / "flights.csv.zip")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PROOF 5,000 flights of 4 carriers" in done.stdout
