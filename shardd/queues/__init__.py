"""Leases, acks, dead letters and their redrive. The states of a job are `shardd.topic.job_table`."""
