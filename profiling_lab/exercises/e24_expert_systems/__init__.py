# SPDX-License-Identifier: Apache-2.0
"""E24: which finding of a rule is a cause, a symptom, a false alarm? And a rule of your own."""
