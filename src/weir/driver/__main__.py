"""`python -m weir.driver <job file>`, started by the supervisor."""

from weir.driver.main import main

main()
