"""`python -m elasticdl.master` runs the master of one job."""

import sys

from elasticdl.master.main import main

sys.exit(main())
