"""Runs a script with the zero-code hook in a process that has torch already, and says what the hook did.

`hooked.py SCRIPT ARGS`: the last line printed is JSON. Counting parts is the test's business, so the scripts
stay as their authors wrote them.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

from cotenant.checkpoint import zerocode as reporting
from cotenant.gradaccum import PROGRESS, zerocode
from cotenant.gradaccum.zerocode import forward


def main() -> None:
    sys.argv = sys.argv[1:]
    told: dict[str, Any] = {"parts": 0}
    part = forward._Part.__call__

    def counted(self: Any, *leaves: Any) -> Any:
        told["parts"] += self._split._forward.__name__ != "still"  # Those of a check.
        return part(self, *leaves)

    forward._Part.__call__ = counted  # type: ignore[method-assign]
    script = types.ModuleType("__main__")
    script.__file__, sys.modules["__main__"] = sys.argv[0], script
    words = [word for word in os.environ.get("COTENANT_ZERO_CODE", "").split(",") if word]
    standing = zerocode.install(None, words) if words else None
    if standing is not None:
        reporting.install(standing, words)
    try:
        exec(compile(Path(sys.argv[0]).read_text(), sys.argv[0], "exec"), vars(script))
    finally:
        told["refused"] = standing.refused if standing is not None else None
        told["completed"] = PROGRESS.completed
        print(json.dumps({"result": told}), flush=True)


if __name__ == "__main__":
    main()
