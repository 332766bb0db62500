"""Command line `topics`: parses options, calls the other packages, prints results and returns exit statuses."""
