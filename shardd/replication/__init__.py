"""A copy of the log and of checkpoints in an object store, and the way back. Leaves local files to `shardd.storage`."""
