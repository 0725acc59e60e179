"""`python -m elasticdl.worker` runs one worker."""

import sys

from elasticdl.worker.main import main

sys.exit(main())
