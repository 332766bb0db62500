"""topics as a Spark data source: `spark.read.format("topics").load("/path/to/topics-data")`.

The package is installed alone on Spark clusters. It needs pyspark and pyarrow, uses xxhash for speed, and needs nothing
of the server. It reads the server's files directly, whether the server runs or not. Spark 4 finds `DefaultSource` by
the name of this package. `DefaultSource` is imported at first use, so that `topics-spark` can report a missing pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_topics.datasource import DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_topics.datasource import DefaultSource

    return DefaultSource
