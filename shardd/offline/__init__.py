"""Tools for the files of a stopped service: `python -m shardd.offline`."""
