"""`python -m stagecut.cli`, the same as `stagecut`."""

from __future__ import annotations

from stagecut.cli import main

if __name__ == "__main__":
    main()
