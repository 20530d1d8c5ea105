"""What is measured while training, for all files of the project."""

values = {}
steps = 0


def add(name, value):
    values.setdefault(name, []).append(value)


def advance():
    global steps
    steps += 1
    return steps


def mean(name, last=None):
    chosen = values[name] if last is None else values[name][-last:]
    return sum(chosen) / len(chosen)
