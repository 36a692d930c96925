# SPDX-License-Identifier: Apache-2.0
"""Hardware counters of the GPUs that the program uses, sampled without replay (`record --counters`)."""
