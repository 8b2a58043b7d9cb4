"""`python -m verification [NAME ...]`."""

import sys

from verification.runner import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
