"""topics as a Spark data source: `spark.read.format("topics").load("/path/to/topics-data")`.

Installed on its own on Spark clusters. It needs pyspark and pyarrow, and xxhash to be fast, and nothing of the server:
it reads the server's files directly, whether the server runs or not. Spark 4 finds `DefaultSource` by the name of this
package.
"""

from pyspark_topics.datasource import DefaultSource

__all__ = ["DefaultSource"]
