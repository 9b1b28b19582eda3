# SPDX-License-Identifier: MIT
"""The address at which servers listen and clients find them: of this host, or of the lab's second one (tests/vm/programs/apps)."""
import os

ADDRESS = os.environ.get("APPS_ADDRESS", "127.0.0.1")
