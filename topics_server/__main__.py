"""`python -m topics_server`: the same as `topics`."""

from topics_server import main

main()
