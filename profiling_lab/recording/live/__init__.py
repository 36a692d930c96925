# SPDX-License-Identifier: Apache-2.0
"""Recording windows of a running job: it listens on a private socket, and `profiling-lab attach` connects."""
