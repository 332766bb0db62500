"""Partition: the base class of a task, that of Spark in a process of Spark.

Spark takes tasks of its own class only. A process without Spark reads the same tasks, and does not load pyspark for
them, which takes a second and 60 MiB.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if not TYPE_CHECKING and "pyspark" in sys.modules:
    from pyspark.sql.datasource import InputPartition
else:

    class InputPartition:
        """What Spark's class is: a value that is pickled."""

        def __init__(self, value: Any) -> None:
            self.value = value
