"""`python -m tinyprop`."""

import sys

from .cli import main

sys.exit(main())
