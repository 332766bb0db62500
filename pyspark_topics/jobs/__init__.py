"""Jobs of the command `topics-spark`. Other programs can call each job's `run`."""
