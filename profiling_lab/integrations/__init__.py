# SPDX-License-Identifier: Apache-2.0
"""The recorder with the interfaces of other libraries: torch.profiler, Hugging Face, Lightning.

Each module imports its own library; this package imports none.
"""
