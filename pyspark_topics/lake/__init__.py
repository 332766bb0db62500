"""The lake: topics as tables. `layout`, `typed`, `history` and `disk` need no engine; `delta` and `iceberg` need
Spark, `deltars` and `local` the library `deltalake`."""
