"""Check and time a solution of a KernelBench-style problem: `python run_eval.py --help`."""

import sys

from harness.run.entry import main

if __name__ == "__main__":
    sys.exit(main())
