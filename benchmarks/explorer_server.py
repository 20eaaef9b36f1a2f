"""The explorer of a workspace, as a process: `python explorer_server.py ROOT`. It prints an entrance at once and for
each line that comes in, since one lets one reader in; it ends with its input.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flywheel.config.workspace import Workspace
from flywheel.ui.explorer.app import serve_explorer

if __name__ == "__main__":
    with serve_explorer(Workspace(Path(sys.argv[1])), 0) as served:
        print(served.entrance(), flush=True)
        for _ in sys.stdin:
            print(served.entrance(), flush=True)
