# SPDX-License-Identifier: Apache-2.0
"""What the programs have in common: a process's place in its job, and models."""
