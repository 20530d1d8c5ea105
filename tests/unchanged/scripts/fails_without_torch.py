"""An error before torch is there: the traceback is the script's."""

import importlib


def load(name):
    return importlib.import_module(name)


load("a_module_that_nobody_has")
