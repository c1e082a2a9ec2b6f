"""`python -m twinbus`: the command line."""

import sys

from twinbus.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
