"""Observation: metrics, the request log and spans. Reads state and decides nothing."""
