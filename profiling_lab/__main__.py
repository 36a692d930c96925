# SPDX-License-Identifier: Apache-2.0
"""`python -m profiling_lab` is the same as `profiling-lab`."""

import sys

from profiling_lab.cli import main

sys.exit(main())
