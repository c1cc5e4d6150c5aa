"""`python -m trainrig`: the command line, for an interpreter whose scripts are not on the path."""

from trainrig.cli import main

main()
