"""On-disk format: the frame of the WAL and of segments."""
