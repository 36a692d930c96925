# SPDX-License-Identifier: Apache-2.0
"""Two programs recorded in turns: A B B A A B, each run in processes of its own, for `profiling-lab ab`."""
