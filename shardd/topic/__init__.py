"""The state of a topic in memory, and the directory of all topics. `shardd.changes` and the operations change it."""
