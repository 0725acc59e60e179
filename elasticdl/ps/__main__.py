"""`python -m elasticdl.ps` runs one parameter server."""

from elasticdl.job.loglines import end_process
from elasticdl.ps.main import main

end_process(main())
