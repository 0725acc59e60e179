"""`python -m elasticdl` is the `elasticdl` command."""

from __future__ import annotations

import sys

from elasticdl.cli.main import main

sys.exit(main())
