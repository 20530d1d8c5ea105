"""A job that trains nothing: it never imports torch."""

import json
import random
import sys

random.seed(2)
rows = sorted(random.sample(range(1000), 10))
with open("rows.json", "w") as file:
    json.dump(rows, file)
print(rows, "torch" in sys.modules, "socket" in sys.modules)
sys.exit(5)
