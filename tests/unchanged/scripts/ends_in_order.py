"""What runs when the interpreter ends, in its order."""

import atexit
import sys
import threading
import time
import weakref

import torch


class Held:
    def __del__(self):
        print("held is freed")


def late():
    time.sleep(0.05)
    print("thread ends")


held = Held()
other = Held()
weakref.finalize(other, print, "other is finalized")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
atexit.register(print, "registered first")
atexit.register(print, "registered last")
threading.Thread(target=late).start()
del other
print("script ends", end="")
sys.stderr.write("no line break")
