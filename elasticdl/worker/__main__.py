"""`python -m elasticdl.worker` runs one worker."""

import logging
import os
import sys

from elasticdl.worker.main import main

code = main()
# All is closed by now. The interpreter's own teardown of gRPC's threads has been seen to crash, which
# would make a finished replica look like one that failed.
logging.shutdown()
sys.stdout.flush()
os._exit(code)
