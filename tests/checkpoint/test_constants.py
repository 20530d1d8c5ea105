"""The two folders that travel into the user's environment: old enough syntax, few imports."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "checkpoint").glob("**/*.py"), *(ROOT / "gradaccum").glob("**/*.py")])
OURS_BY_FOLDER = {
    "checkpoint": ("cotenant.checkpoint",),
    "gradaccum": ("cotenant.gradaccum", "cotenant.checkpoint"),
}
"""Which of its modules gradaccum may import, `tests/house/test_imports.py` says."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_source_is_python_3_9_and_imports_only_the_standard_library_torch_and_its_own_folders(
    path: Path,
) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    own = OURS_BY_FOLDER[path.relative_to(ROOT).parts[0]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports: the folder is importable as cotenant.* only"
            names = [node.module or ""]
        else:
            continue
        for name in names:
            top = name.partition(".")[0]
            mine = any(name == each or name.startswith(f"{each}.") for each in own)
            assert mine or top == "torch" or top in sys.stdlib_module_names, f"{path.name} imports {name}"
