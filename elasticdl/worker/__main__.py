"""`python -m elasticdl.worker` runs one worker."""

from elasticdl.job.loglines import end_process
from elasticdl.worker.main import main

end_process(main())
