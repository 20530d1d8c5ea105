"""Settings of the interpreter that a script can ask for before it does anything."""

import faulthandler
import gc
import signal
import sys
import threading
import warnings

print(sys.flags, sys.argv, sys.warnoptions, sys._xoptions)
print(
    faulthandler.is_enabled(),
    [signal.getsignal(each) for each in (signal.SIGSEGV, signal.SIGTERM, signal.SIGINT)],
)
print(signal.getsignal(signal.SIGRTMIN + 13), threading.active_count(), gc.isenabled(), gc.get_threshold())
print([each[:3] for each in warnings.filters])
print(sys.stdin.read(), sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through)
print(sorted(globals()), __name__, __spec__, sys.getrecursionlimit(), sys.excepthook is sys.__excepthook__)
