# SPDX-License-Identifier: Apache-2.0
"""E06: occupancy and divergence."""
