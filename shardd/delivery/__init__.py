"""Delivery: diffs, long polls, reads of streams, and the scheduler that orders them."""
