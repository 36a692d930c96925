# SPDX-License-Identifier: Apache-2.0
"""Traces of AMD's rocprofv3: the rocpd database and the JSON file. Both become `Records`."""

METADATA = "rocpd_metadata"
"""how the name of a table begins that every rocpd database has"""
ROOT = "rocprofiler-sdk-tool"
"""the only member of the JSON file"""
