# SPDX-License-Identifier: Apache-2.0
"""The recorder in the form that other libraries' users know: torch.profiler, Hugging Face, Lightning.

Each module imports its library at its own import; this package imports none.
"""
