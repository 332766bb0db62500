"""Storage: the log, segments and catalogs as bytes on disk, and free space. `shardd.topic` has what they mean."""
