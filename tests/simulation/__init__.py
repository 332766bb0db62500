"""Simulations of protocols over seeds: no processes, no files, no clocks."""
