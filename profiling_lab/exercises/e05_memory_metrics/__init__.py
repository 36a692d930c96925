# SPDX-License-Identifier: Apache-2.0
"""E05: metrics of memory, one for each fault."""
