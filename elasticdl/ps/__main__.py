"""`python -m elasticdl.ps` runs one parameter server."""

import sys

from elasticdl.ps.main import main

sys.exit(main())
