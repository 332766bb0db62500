"""`python -m gateway`: started by the supervisor, never by hand."""

from __future__ import annotations

import sys

from gateway.process import run

sys.exit(run())
