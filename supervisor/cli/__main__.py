"""`python -m supervisor.cli`: the same as `topics`."""

from supervisor.cli.start import main

main()
