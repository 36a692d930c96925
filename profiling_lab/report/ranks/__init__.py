# SPDX-License-Identifier: Apache-2.0
"""The reports of a job: its ranks and its collectives."""
