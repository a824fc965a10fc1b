#!/usr/bin/env python3
"""Exit with 0 if the server at HEADSYNC_URL (http://127.0.0.1:8080 by default) answers /healthz, else with 1."""

import os
import sys
import urllib.request

try:
    url = os.environ.get("HEADSYNC_URL", "http://127.0.0.1:8080")
    with urllib.request.urlopen(f"{url}/healthz", timeout=2) as response:
        sys.exit(response.status != 200)
except OSError as error:
    sys.exit(f"{url}/healthz: {error}")
