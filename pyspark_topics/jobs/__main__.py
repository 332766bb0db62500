"""Entry point for spark-submit and `python -m pyspark_topics.jobs`."""

import sys

from pyspark_topics.jobs.cli import main

sys.exit(main())
