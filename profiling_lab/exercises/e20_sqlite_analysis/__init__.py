# SPDX-License-Identifier: Apache-2.0
"""E20: five questions to a recording, in SQL."""
