"""Random training loops: what scripts are made of (models, losses, optimizers, data, forms of the loop), put
together by a seed, with traits of `traits.txt` among it. Pure.

Rule: one number is one script, whatever else is generated; every script runs by itself, in less than a second
of one core. One that does not is our fault and counted as such.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from textwrap import indent
from typing import Final

from tests.unchanged.traits import END, HEAD, Trait, merged, model_of, setup_of, tidied

TRAITS_MAX: Final = 5
LAYERS: Final = (
    "nn.Tanh()",
    "nn.ReLU()",
    "nn.GELU()",
    "nn.LayerNorm(8)",
    "nn.GroupNorm(2, 8)",
    "nn.BatchNorm1d(8)",
    "nn.Dropout(0.2)",
    "nn.AlphaDropout(0.1)",
    "nn.RReLU()",
    "nn.Linear(8, 8)",
    "nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))",
    "nn.Identity()",
    "nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 2, 3, padding=1), nn.Flatten())",
    "nn.Sequential(nn.Unflatten(1, (2, 4)), nn.TransformerEncoderLayer(4, 2, 8), nn.Flatten())",
)
LOSSES: Final = (
    "nn.functional.mse_loss({out}, y)",
    "nn.functional.smooth_l1_loss({out}, y)",
    "nn.functional.huber_loss({out}, y, reduction='sum') / len(y)",
    "nn.functional.binary_cross_entropy_with_logits({out}, (y > 0).to(y))",
    "(({out} - y) ** 2).mean() + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())",
    "criterion({out}, y)",
)
OPTIMIZERS: Final = (
    "torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)",
    "torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)",
    "torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)",
    "torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))",
    "torch.optim.RMSprop(model.parameters(), lr=0.005, centered=True)",
    "torch.optim.NAdam(model.parameters(), lr=0.01)",
    "torch.optim.RAdam(model.parameters(), lr=0.01)",
    "torch.optim.Adagrad(model.parameters(), lr=0.02)",
    "torch.optim.Adadelta(model.parameters())",
    "torch.optim.Adamax(model.parameters(), lr=0.01)",
    "torch.optim.ASGD(model.parameters(), lr=0.01)",
    "torch.optim.Rprop(model.parameters(), lr=0.005)",
    "torch.optim.SGD([{'params': [p], 'lr': 0.01 * (i + 1)} for i, p in enumerate(model.parameters())])",
    "torch.optim.Adafactor(model.parameters(), lr=0.01)",
)
DATA: Final = (
    "TensorDataset(torch.randn(48, 6), torch.randn(48, 1))",
    "TensorDataset(torch.randn(45, 6), torch.randn(45, 1))",
    "[(torch.randn(6), torch.randn(1)) for _ in range(40)]",
    "torch.utils.data.Subset(TensorDataset(torch.randn(60, 6), torch.randn(60, 1)), list(range(5, 45)))",
    "torch.utils.data.ConcatDataset([TensorDataset(torch.randn(9, 6), torch.randn(9, 1)) for _ in range(5)])",
    "torch.utils.data.random_split(TensorDataset(torch.randn(60, 6), torch.randn(60, 1)), [40, 20])[0]",
)
WHOLE: Final = DATA[:1]
LOADERS: Final = (
    "shuffle=True",
    "shuffle=False",
    "shuffle=True, drop_last=True",
    "shuffle=True, generator=torch.Generator().manual_seed(5)",
    "sampler=torch.utils.data.WeightedRandomSampler(torch.rand(40), 40)",
    "sampler=torch.utils.data.RandomSampler(data, replacement=True, num_samples=40)",
    "sampler=torch.utils.data.SubsetRandomSampler(list(range(0, 40)))",
    "shuffle=True, num_workers=2",
    "shuffle=True, num_workers=1, persistent_workers=True",
)
SCHEDULERS: Final = (
    ("after", "StepLR(optimizer, 4)"),
    ("after", "ExponentialLR(optimizer, 0.98)"),
    ("after", "OneCycleLR(optimizer, 0.05, total_steps=500, cycle_momentum=False)"),
    ("after", "CyclicLR(optimizer, 0.001, 0.02, 5, cycle_momentum=False)"),
    ("after", "LambdaLR(optimizer, lambda k: 1 / (1 + 0.05 * k))"),
    ("after", "PolynomialLR(optimizer, 100)"),
    ("late", "CosineAnnealingWarmRestarts(optimizer, 2)"),
    ("late", "CosineAnnealingLR(optimizer, 4)"),
    ("late", "MultiStepLR(optimizer, [1, 3])"),
    ("late", "ReduceLROnPlateau(optimizer, patience=0)"),
)
CLIPS: Final = (
    "nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
    "nn.utils.clip_grad_value_(model.parameters(), 0.1)",
    "for p in model.parameters():\n    if p.grad is not None:\n        p.grad += torch.rand_like(p.grad) / 9",
)
CLEARS: Final = ("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)", "model.zero_grad()")
EPOCHS: Final = (
    "range(4)",
    "range(3)",
    "range(1, 4)",
    "[0, 1, 2]",
    "(0, 2, 1)",
    "reversed(range(4))",
    "list(range(3))",
)


def generate(seed: int, number: int, traits: Sequence[Trait]) -> str:
    """The script of that number."""
    draw = random.Random(f"{seed}/{number}")
    chosen = _chosen(draw, traits)
    code = merged(chosen)
    given = {place for trait in chosen for place in trait.code}
    _draw_data(draw, code, given)
    if "optimizer" not in given:
        code["optimizer"] = draw.choice(OPTIMIZERS[:3] if "model" in given else OPTIMIZERS)
    if "step" not in given:
        code["step"] = _step(draw)
    if "epochs" not in given:
        code["epochs"] = draw.choice(EPOCHS)
    code["top"] += "criterion = nn.L1Loss()\ntaken = [0]\n"
    if "optimizer" not in given and draw.random() < 0.4:
        _add_scheduler(draw, code)
    layers = ", ".join(("nn.Linear(6, 8)", *draw.sample(LAYERS, draw.randrange(1, 4))))
    form = draw.choice(IN_ONE_FUNCTION if "local" in given else FORMS)
    names = ", ".join((form.__name__, *(trait.name for trait in chosen)))
    head = f'"""{number} of seed {seed}: {names}."""\n\n' + HEAD.format(seed=draw.randrange(100))
    return tidied(head + code["top"] + model_of(code, layers) + form(draw, code))


def _chosen(draw: random.Random, traits: Sequence[Trait]) -> list[Trait]:
    chosen: list[Trait] = []
    for trait in draw.sample(traits, draw.randrange(TRAITS_MAX + 1)):
        if trait.goes_with(chosen):
            chosen.append(trait)
    return chosen


def _draw_data(draw: random.Random, code: dict[str, str], given: set[str]) -> None:
    if "data" not in given:
        code["data"] = draw.choice(WHOLE if given & {"whole", "loader"} else DATA)
        if "loader" not in given:
            code["loader"] = f"DataLoader(data, batch_size=8, {draw.choice(LOADERS)})"
        if "whole" in given and "loader" not in given:
            code["loader"] = "DataLoader(data, batch_size=8, shuffle=True)"


def _step(draw: random.Random) -> str:
    """From clearing the gradients to the optimizer's step."""
    loss = draw.choice(LOSSES)
    clip = [draw.choice(CLIPS)] if draw.random() < 0.3 else []
    turns = draw.choice((1, 1, 1, 2, 3))
    passes = ["out = model(x)"]
    if draw.random() < 0.2:
        passes = ["with torch.autocast('cpu', dtype=torch.bfloat16):", "    out = model(x)"]
    lines = [*passes, f"loss = {loss.format(out='out.float()')}"]
    if turns == 1:
        clear = draw.choice(
            ("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)", "model.zero_grad()")
        )
        return "\n".join((clear, *lines, "loss.backward()", *clip, "optimizer.step()"))
    step = "\n".join((*clip, "optimizer.step()", "optimizer.zero_grad()"))
    counted = ["taken[0] += 1", f"if taken[0] % {turns} == 0:", indent(step, "    ")]
    return "\n".join((*lines, f"(loss / {turns}).backward()", *counted))


def _add_scheduler(draw: random.Random, code: dict[str, str]) -> None:
    place, maker = draw.choice(SCHEDULERS)
    code["top"] += "schedulers = []\n"
    code["setup"] += f"schedulers.append(torch.optim.lr_scheduler.{maker})\n"
    code[place] += f"schedulers[0].step({'loss.item()' if 'Plateau' in maker else ''})\n"


# --- Forms of the loop ---------------------------------------------------------------------------------

Code = dict[str, str]


def _in(text: str, depth: int = 1) -> str:
    return indent(text, "    " * depth)


def _batches(code: Code, head: str = "for x, y in {}:") -> str:
    """The loop over the batches of one epoch."""
    body = "\n".join(code[place] for place in ("before", "step", "after"))
    return f"{head.format(code['batches'])}\n{_in(body)}\n"


def _epoch(code: Code, head: str = "for x, y in {}:") -> str:
    return f"{code['epoch']}\n{_batches(code, head)}{code['late']}\nprint(epoch, repr(loss.item()))\n"


def _epochs(code: Code, head: str = "for x, y in {}:", outer: str = "for epoch in {}:") -> str:
    return f"{code['start']}\n{outer.format(code['epochs'])}\n{_in(_epoch(code, head))}"


def _around(code: Code, loop: str) -> str:
    """What stands before and after the loop."""
    return setup_of(code) + "\n" + loop + END.format(end=code["end"])


def top_of_a_file(draw: random.Random, code: Code) -> str:
    return _around(code, _epochs(code))


def in_main(draw: random.Random, code: Code) -> str:
    return f"def main():\n{_in(top_of_a_file(draw, code))}\n\nif __name__ == '__main__':\n    main()\n"


def with_enumerate(draw: random.Random, code: Code) -> str:
    start = draw.choice(("", ", 1"))
    code["after"] += "if i % 3 == 0:\n    print(epoch, i, repr(loss.item()))\n"
    return _around(code, _epochs(code, f"for i, (x, y) in enumerate({{}}{start}):"))


def while_loop(draw: random.Random, code: Code) -> str:
    return _around(code, f"{code['start']}\nepoch = 0\nwhile epoch < 4:\n{_in(_epoch(code))}    epoch += 1\n")


def function_per_epoch(draw: random.Random, code: Code) -> str:
    inside = f"model.train()\n{_batches(code)}return loss\n"
    function = f"def train_epoch(model, loader, optimizer, epoch):\n{_in(inside)}\n\n"
    call = "loss = train_epoch(model, loader, optimizer, epoch)"
    turn = f"{code['epoch']}\n{call}\n{code['late']}\nprint(epoch, repr(loss.item()))\n"
    return function + _around(code, f"for epoch in {code['epochs']}:\n{_in(turn)}")


def class_with_fit(draw: random.Random, code: Code) -> str:
    made = "def __init__(self, *parts):\n    self.parts = parts\n\n"
    fit = f"def fit(self):\n{_in('model, optimizer, loader = self.parts')}\n{_in(_epochs(code))}\n\n"
    return f"class Fitting:\n{_in(made + fit)}" + _around(code, "Fitting(model, optimizer, loader).fit()\n")


def steps_in_a_range(draw: random.Random, code: Code) -> str:
    endless = f"def endless():\n    while True:\n        yield from {code['batches']}\n\n"
    body = "\n".join(code[place] for place in ("epoch", "before", "step", "after", "late"))
    turn = f"epoch = step // 6\nx, y = next(batches)\n{body}\nprint(step, repr(loss.item()))\n"
    return _around(code, f"{endless}batches = endless()\nfor step in range(20):\n{_in(turn)}")


def until_enough_steps(draw: random.Random, code: Code) -> str:
    code["after"] += "if loss.item() > 1e6 or (epoch == 3 and taken[0]):\n    break\n"
    turn = f"{_epoch(code)}epoch += 1\nif epoch == 4:\n    break\n"
    return _around(code, f"{code['start']}\nepoch = 0\nwhile True:\n{_in(turn)}")


def progress_bar(draw: random.Random, code: Code) -> str:
    loop = _epochs(code, "for x, y in tqdm({}, disable=True, desc=f'epoch {{epoch}}'):")
    return f"from tqdm import tqdm\n\n{_around(code, loop)}"


def zipped_epochs(draw: random.Random, code: Code) -> str:
    return _around(code, _epochs(code, outer="for epoch, rate in zip({}, (0.01, 0.02, 0.005)):"))


FORMS: Final[Sequence[Callable[[random.Random, Code], str]]] = (
    top_of_a_file,
    top_of_a_file,
    in_main,
    in_main,
    with_enumerate,
    while_loop,
    function_per_epoch,
    class_with_fit,
    steps_in_a_range,
    until_enough_steps,
    progress_bar,
    zipped_epochs,
)
"""Those that are met most, twice."""
IN_ONE_FUNCTION: Final = [each for each in FORMS if each not in (function_per_epoch, steps_in_a_range)]
"""The loops over epochs and over batches are in the same function."""
