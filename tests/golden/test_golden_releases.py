"""Data directories, backups and buckets as released versions left them. Every later release starts from them.

`tests.golden.make` made them with the service of that version; they never change. `next` has what this
release leaves, until it has a number.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.storage.catalog import lacking, topics_of
from tests.golden.make import KEY, ask, bucket_settings, view
from tests.support.releases import RELEASES, differences, expected, restored, topics
from tests.support.service import Service

pytestmark = pytest.mark.slow
WITHOUT_SUMS = ("0.1.0",)
"""Releases whose catalogs have no sums."""
FOUND = [(release.name, kind.name) for release in RELEASES for kind in sorted(release.iterdir()) if kind.is_dir()]


@pytest.fixture(params=FOUND, ids="-".join)
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """A service whose data directory is made from golden data. It is not running."""
    name, kind = request.param
    made = Service(tmp_path, shards=None)
    restored(name, kind, made.data_dir, tmp_path / "key")
    yield made
    made.close()


def test_a_service_starts_from_it_and_has_everything(service: Service, request: pytest.FixtureRequest) -> None:
    release, kind = request.node.callspec.params["service"]
    wanted = expected(release, kind)
    service.start()
    assert differences(wanted, view(service)) == []
    before = max(record["$seq"] for record in wanted["topics"]["plain"]["content"])
    added = ask(service, "POST", "topics/plain", {"records": [{"data": "new"}]})
    assert added["first_seq"] > before
    service.restart()  # what this release wrote is read with it
    records = ask(service, "POST", "topics/plain/diff", {"from_seq": before, "limit": 10})["records"]
    assert [record["data"] for record in records] == ["new"]
    service.stop()
    topics("verify", "--data-dir", service.data_dir)


@pytest.mark.parametrize("release", [release.name for release in RELEASES])
def test_catalogs_with_sums_and_without_are_verified(release: str, tmp_path: Path) -> None:
    restored(release, "data", tmp_path / "data", tmp_path / "key")
    found = [path.read_bytes() for path in tmp_path.glob("data/shard-*/catalog-*")]
    entries = [each for raw in found for each in topics_of(raw) if isinstance(each, dict)]
    for sums in ([b"id_sum" in raw for raw in found], ["sum" in each and all(each["sums"]) for each in entries]):
        assert set(sums) == {release not in WITHOUT_SUMS}
    assert not any(map(lacking, found))
    topics("verify", "--data-dir", tmp_path / "data")


@pytest.mark.parametrize(("release", "kind"), [each for each in FOUND if each[1] not in ("data", "backup")])
def test_a_machine_without_data_takes_over_from_its_bucket(release: str, kind: str, tmp_path: Path) -> None:
    shutil.copytree(RELEASES[0].parent / release / kind, tmp_path / "bucket")
    settings = bucket_settings(kind, tmp_path / "bucket", tmp_path / "key")
    (tmp_path / "machine").mkdir()
    wanted = expected(release, kind)
    del wanted["topics"]["copied"]["content"][1]["$seq"]  # made again, after all that the other machine may have given
    with Service(tmp_path / "machine", shards=1, **settings, TOPICS_TERM_TTL_MS="10000") as service:
        assert differences(wanted, view(service)) == []
        ask(service, "POST", "topics/plain", {"records": [{"data": "new"}]})
        service.stop()
    topics("replica", "verify", settings["TOPICS_BUCKET"], **settings)


@pytest.mark.parametrize(("release", "kind"), FOUND)
def test_spark_reads_it(release: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyspark_topics.columns import EVERYTHING, arrow_schema
    from pyspark_topics.directory import places
    from pyspark_topics.options import Topics
    from pyspark_topics.plan import read, survey

    if kind == "encrypted":
        pytest.importorskip("cryptography")
    (tmp_path / "key").write_text(KEY)
    key_file = str(tmp_path / "key") if kind in ("sealed", "encrypted") else ""
    schema = arrow_schema(EVERYTHING)
    found = places([str(RELEASES[0].parent / release / kind)], key_file=key_file)
    pieces = survey(found, Topics(frozenset(["plain", "capped"]))).pieces
    rows = [row for piece in pieces for batch in read(piece, schema) for row in batch.to_pylist()]
    for topic in ("plain", "capped"):
        content = expected(release, kind)["topics"][topic]["content"]
        assert [row["offset"] for row in rows if row["topic"] == topic] == [record["$seq"] for record in content]
