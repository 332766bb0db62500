"""Choice of the source: the server's files (option `path`, module `files`) or a running service (`url`, `feed`).

It also has the base class of their tasks. Spark takes tasks of its own class only. A process without Spark reads the
same tasks, and does not load pyspark for them, which takes a second and 60 MiB.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark_topics.offsets import Source
from pyspark_topics.options import Options, parse

if not TYPE_CHECKING and "pyspark" in sys.modules:
    from pyspark.sql.datasource import InputPartition
else:

    class InputPartition:
        """What Spark's class is: a value that is pickled."""

        def __init__(self, value: Any) -> None:
            self.value = value


def source(given: Mapping[str, str], options: Options, schema: Any) -> Source:
    """The source for parsed `options` (from `given`); `schema` has the columns to read."""
    if options.url:
        from pyspark_topics import feed
        from pyspark_topics.client import Endpoint

        return feed.Feed(Endpoint.of(given), options, schema)
    from pyspark_topics import files

    return files.Files(options, schema)


def positions(given: Mapping[str, str]) -> Source:
    """A source for the positions of topics only, not for reading."""
    return source(given, parse(given, streaming=True), None)
