"""`python -m tinyprop`."""

import sys

from tinyprop_command import main

sys.exit(main())
