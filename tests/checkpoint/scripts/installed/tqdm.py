"""Stands for tqdm where it is not installed: a bar around an iterable, whose `__iter__` is a generator."""

import sys


class tqdm:
    def __init__(self, iterable=None, desc=None, total=None, leave=True, **_):
        self.iterable = iterable
        self.desc = desc or ""
        self.total = total if total is not None or not hasattr(iterable, "__len__") else len(iterable)
        self.leave = leave
        self.n = 0
        self.postfix = ""

    def __len__(self):
        return self.total

    def __iter__(self):
        iterable = self.iterable
        n = self.n
        try:
            for obj in iterable:
                yield obj
                n += 1
                self.n = n
        finally:
            self.n = n
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def update(self, n=1):
        self.n += n

    def set_postfix(self, ordered_dict=None, **values):
        self.postfix = ", ".join(
            f"{name}={value}" for name, value in {**(ordered_dict or {}), **values}.items()
        )

    def set_postfix_str(self, text=""):
        self.postfix = text

    def set_description(self, desc=None):
        self.desc = desc or ""

    def close(self):
        sys.stderr.write(f"{self.desc}: {self.n}/{self.total} {self.postfix}\n")

    @classmethod
    def write(cls, text, file=None):
        (file or sys.stdout).write(text + "\n")


def trange(*args, **kwargs):
    return tqdm(range(*args), **kwargs)
