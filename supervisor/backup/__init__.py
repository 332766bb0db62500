"""Backup and restore of a data directory, and commands on the files of a stopped service."""
