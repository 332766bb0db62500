"""The pipeline's jobs: what `topics-spark` runs. Programs of one's own can call each job's `run`."""
