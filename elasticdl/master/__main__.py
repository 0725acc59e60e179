"""`python -m elasticdl.master` runs one master."""

from elasticdl.job.loglines import end_process
from elasticdl.master.main import main

end_process(main())
