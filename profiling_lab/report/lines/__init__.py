# SPDX-License-Identifier: Apache-2.0
"""Lines as rows: GPU time, as a tree of calls, and host time from samples."""
