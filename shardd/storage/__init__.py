"""Bytes on the device: the log, segments, catalogs, and room for them. What they mean is for `shardd.topic`."""
