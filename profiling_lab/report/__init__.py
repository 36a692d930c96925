# SPDX-License-Identifier: Apache-2.0
"""How results look: tables as text, markdown, CSV and JSON."""
