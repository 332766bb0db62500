"""What one topic is, in memory, and all topics by name. Changing it is for `shardd.changes` and the operations."""
