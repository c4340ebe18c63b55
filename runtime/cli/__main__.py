"""`python -m runtime.cli`: the command, where its script is not installed."""

from runtime.cli.main import main

main()
