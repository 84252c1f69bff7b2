"""`python -m harness.report`."""

import sys

from harness.report.page_writer import main

sys.exit(main())
