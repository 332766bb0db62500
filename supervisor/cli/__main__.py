"""`python -m supervisor.cli`: the same as `topics`."""

from supervisor.cli.main import main

main()
