"""What a script sees of its environment, but for the variables that bear our name."""

import os

for name in sorted(os.environ):
    if not name.startswith("COTENANT_") and name not in ("PYTHONPATH", "MASTER_PORT"):
        print(name, os.environ[name])
print(
    "distributed" if int(os.environ.get("RANK", -1)) != -1 else "plain", os.environ.get("LOCAL_RANK", "none")
)
