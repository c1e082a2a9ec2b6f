"""`python -m twinbus`: the command line; and the file that `spark-submit` is given.

Run as a file, Python looks for modules in our folder first, where `queue` or `config` would be
ours and not whose they are.
"""

import sys

if not __package__:
    del sys.path[0]

from twinbus.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
