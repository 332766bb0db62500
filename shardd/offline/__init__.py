"""Tools on the files of a stopped service: `python -m shardd.offline`."""
