# SPDX-License-Identifier: Apache-2.0
"""E08: profile, change, profile again, with a log of every round."""
