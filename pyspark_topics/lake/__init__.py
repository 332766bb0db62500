"""The lake: topics as Delta tables. `layout` and `typed` are the engine-free definitions, the others need Spark."""
