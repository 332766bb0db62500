"""topics as a Spark data source: `spark.read.format("topics").load("/path/to/topics-data")`.

Installed on its own on Spark clusters. It needs pyspark and pyarrow, and xxhash to be fast, and nothing of the server:
it reads the server's files directly, whether the server runs or not. Spark 4 finds `DefaultSource` by the name of this
package. It is imported when it is first asked for, so that `topics-spark` can say that pyspark is missing.
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
