"""Queues: leases, acks, dead letters and their redrive. The states of a job are in `shardd.topic.job_states`."""
