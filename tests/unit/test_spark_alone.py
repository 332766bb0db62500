"""The package works with only pyspark and pyarrow installed, as on a cluster."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import py4j
import pyarrow
import pyspark
import pytest

import pyspark_topics
from tests.support.bucket_scene import BucketScene
from tests.support.programs import UNMEASURED
from tests.support.scene import Scene

ROOT = Path(__file__).parents[2]
READ = """
import json, sys
known = {*sys.stdlib_module_names, *sys.modules}  # some systems have Python load modules of theirs at its start
sys.path[:] = json.loads(sys.argv[1]) + [path for path in sys.path if "-packages" not in path]
import pyspark_topics.jobs.cli
from pyspark_topics.columns import spark_schema
from pyspark_topics.datasource import Reader
from pyspark_topics.options import parse
given = {"path": sys.argv[2]}
reader = Reader(given, spark_schema(parse(given)))
rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
known |= {"__main__", "__mp_main__", "pyspark", "py4j", "pyarrow", "pyspark_topics"}
others = {name.partition(".")[0] for name in sys.modules} - known
print(json.dumps([sorted(row["value"].decode() for row in rows), sorted(others)]))
"""


@pytest.mark.parametrize("kind", [Scene, BucketScene])
def test_nothing_but_pyspark_and_pyarrow_is_needed_to_read(tmp_path: Path, kind: type[Scene]) -> None:
    scene = kind(tmp_path / "scene", cold_dir="")
    scene.shard.append("t", *range(50))
    scene.checkpoint()
    scene.shard.append("t", "more")
    scene.settle()
    site = tmp_path / "site"
    site.mkdir()
    for module in (pyspark, pyarrow, py4j):
        (site / module.__name__).symlink_to(Path(str(module.__file__)).parent)
    for libraries in Path(str(pyarrow.__file__)).parents[1].glob("pyarrow.libs"):
        (site / libraries.name).symlink_to(libraries)
    shutil.copytree(Path(str(pyspark_topics.__file__)).parent, site / "pyspark_topics")
    done = subprocess.run(
        [sys.executable, "-I", "-c", READ, json.dumps([str(site)]), scene.options["path"]],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
        env=UNMEASURED,
    )
    assert done.returncode == 0, done.stderr
    values, others = json.loads(done.stdout)
    assert values == sorted([*map(str, range(50)), '"more"'])
    assert [name for name in others if not name.startswith(("_", "cython", "Cython"))] == []


def test_the_project_leaves_the_package_to_its_own_distribution_and_agrees_with_it() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    alone = tomllib.loads((ROOT / "packages" / "pyspark-topics" / "pyproject.toml").read_text())
    assert alone["project"]["requires-python"] == whole["project"]["requires-python"]
    wanted = {*whole["project"]["optional-dependencies"]["spark"]}
    assert wanted == {need for need in alone["project"]["dependencies"] if need.startswith("py")}
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "pyspark_topics").rglob("__init__.py")}
    packages = {str(folder).replace("/", ".") for folder in folders}
    assert set(alone["tool"]["setuptools"]["packages"]) == packages
    (others,) = re.findall(r"^NAMES = (.*)$", (ROOT / "setup.py").read_text(), re.M)
    assert not packages & set(ast.literal_eval(others))
    assert not alone["project"]["scripts"].keys() & whole["project"]["scripts"].keys()


LOADED = """
import json, sys
from pyspark.sql.datasource import EqualTo, GreaterThan, IsNotNull, StringStartsWith
from pyspark_topics.datasource import DefaultSource
source = DefaultSource({"path": sys.argv[1], "startingTimestamp": "1"})
schema = source.schema()
made = sorted(sys.modules)
tagged = [IsNotNull(("tag",)), EqualTo(("node",), "n"), StringStartsWith(("tag",), "k"), GreaterThan(("offset",), 1)]
for filters in [], tagged:
    reader = source.reader(schema)
    reader.pushFilters(filters)
    parts = reader.partitions()
    planned = sorted(sys.modules)
    assert any(batch.num_rows for part in parts for batch in reader.read(part))
print(json.dumps([made, planned]))
"""


def test_each_process_of_spark_loads_what_it_needs(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", cold_dir="")
    tagged = [{"data": n, "tag": f"k{n}", "node": "n"} for n in range(9)]
    for topic, config in (("t", {}), ("capped", {"cap_records": 5, "ttl_ms": 10**12}), ("sized", {"cap_bytes": 200})):
        scene.shard.call("append", topic, {"records": tagged, "config": config})
        scene.checkpoint()
        for match in ("k5", ["tag", "Glob", "k8*"]):
            scene.shard.call("delete_records", topic, {"match": match})
        scene.shard.append(topic, *range(3))
    scene.settle()
    # pyarrow imports pandas as soon as it is given a value of Python, which takes longer than a plan.
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas/__init__.py").write_text("raise SystemExit('pandas was imported')")
    command = [sys.executable, "-c", LOADED, scene.options["path"]]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    making, planning = (set(modules) for modules in json.loads(done.stdout))
    elsewhere = {f"pyspark_topics.{name}" for name in ("writer", "client", "feed", "stream", "bucket", "replica")}
    assert not making & (elsewhere | {"pyspark_topics.files", "pyspark_topics.rows", "pyarrow.compute", "pyarrow.fs"})
    assert not planning & (elsewhere - {"pyspark_topics.stream"} | {"pyarrow.fs"})
