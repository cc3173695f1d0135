"""`python -m prproduct`: the command line."""

from prproduct.cli import main

main()
