"""A copy of the log and of checkpoints in an object store, which machine holds a shard, and the way back.

Leaves local files to `shardd.storage`.
"""
