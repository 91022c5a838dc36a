"""`python -m weir` is `weir`."""

from weir.cli import main

main()
