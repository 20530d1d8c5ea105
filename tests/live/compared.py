"""`python compared.py ONE OTHER`: how far apart the parameters in two files are, as JSON. The warm process
runs it: nobody has to import torch for it."""

import json
import sys

import torch

one, other = (torch.load(path, weights_only=True) for path in sys.argv[1:])
assert one.keys() == other.keys()
equal = all(torch.equal(one[key], other[key]) for key in one)
apart = max(float((one[key].double() - other[key].double()).abs().max()) for key in one)
print(json.dumps({"result": {"equal": equal, "apart": apart}}))
