"""What the rows of a batch hold that a loss may weigh differently: labels, masks, padding.

Rule: a check on a few rows says something about rows like these. Which labels occur, and whether rows differ
in how many of their values are masked, decides over class weights, `ignore_index` and masked means; so the
rows of a check differ in these as much as the batch allows, and a batch that holds something that no checked
one held is checked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import torch

from cotenant.gradaccum.rows import columns_of

DISTINCT_MAX: Final = 4096
"""Values of whole numbers that are told apart, in each tensor of the batches. Of more (the words of a
vocabulary) the smallest and the greatest count: padding and what is ignored are among these."""
FLOATS_MAX: Final = 16
"""A tensor of floats with more values than this is no mask and no label."""
SAMPLE: Final = 1024
GROUP_MIN: Final = 3

Fact = tuple[str, str, object]
"""Where, of which kind, and which value."""


class SeenLabels:
    """What the batches that were checked have held."""

    def __init__(self) -> None:
        self._known: set[Fact] = set()
        self._many: set[str] = set()
        """Tensors of too many values."""

    def new_rows(self, batch: Any, rows: int) -> torch.Tensor | None:
        """Which rows (a mask) hold what no batch before has held; None: there is nothing new. A fact of all
        rows together marks all of them."""
        found: torch.Tensor | None = None
        for where, table in columns_of(batch, rows):
            for fact in self._facts(where, table):
                if fact in self._known:
                    continue
                self._known.add(fact)
                holds = _rows_with(table, fact)
                found = holds if found is None else found | holds
        return found

    def _facts(self, where: str, table: torch.Tensor) -> Iterator[Fact]:
        values = None if where in self._many else _distinct(table)
        if values is None:
            self._many.add(where)
            if table.is_floating_point():
                yield from ((where, name, True) for name, holds in _float_facts(table) if holds)
                return
            values = [table.min().item(), table.max().item()]
        yield from ((where, "value", value) for value in values)
        if table.shape[1] > 1:
            for value in values if len(values) <= FLOATS_MAX else (values[0], values[-1]):
                counts = (table == value).sum(1)
                if counts.min() != counts.max():
                    yield where, "uneven", value


def _float_facts(table: torch.Tensor) -> Iterator[tuple[str, bool]]:
    yield "a number", True
    yield "zero", bool((table == 0).any())
    yield "negative", bool((table < 0).any())
    yield "not finite", not bool(torch.isfinite(table).all())


def _rows_with(table: torch.Tensor, fact: Fact) -> torch.Tensor:
    name, value = fact[1], cast(float, fact[2])
    if name == "value":
        return torch.eq(table, value).any(1).cpu()
    return torch.ones(len(table), dtype=torch.bool)


def _distinct(table: torch.Tensor) -> list[Any] | None:
    """The values of a tensor, in ascending order; None: they are too many."""
    if not table.is_floating_point():
        values = torch.unique(table)
        return values.tolist() if len(values) <= DISTINCT_MAX else None
    flat = table.flatten()
    values = torch.unique(flat[:: max(1, len(flat) // SAMPLE)])
    if len(values) > FLOATS_MAX or not bool(torch.isfinite(values).all()):
        return None
    values = torch.unique(flat)
    return values.tolist() if len(values) <= max(2, min(FLOATS_MAX, len(flat) // 2)) else None


# --- Rows for a check ------------------------------------------------------------------------------


def choose_rows(batch: Any, rows: int, count: int, new: torch.Tensor | None = None) -> torch.Tensor:
    """`count` rows of a batch that differ as much as possible, in their order: some of the `new` ones, of
    each value at least one, the rarest first, and those with the most and the fewest of it."""
    if rows <= count:
        return torch.arange(rows)
    chosen: dict[int, None] = {}
    if new is not None and bool(new.any()):
        chosen.update(dict.fromkeys(_spread(torch.nonzero(new).flatten(), count // 2)))
    for row in _telling_rows(batch, rows, count):
        chosen.setdefault(row)
    for row in _spread(torch.arange(rows), count):
        chosen.setdefault(row)
    return torch.tensor(sorted(list(chosen)[:count]))


def _spread(rows: torch.Tensor, count: int) -> list[int]:
    """`count` of some rows, from all over them."""
    at = torch.linspace(0, len(rows) - 1, max(1, min(count, len(rows)))).round().long()
    return [int(row) for row in rows[at]]


def _telling_rows(batch: Any, rows: int, count: int) -> Iterator[int]:
    found: list[tuple[int, int]] = []
    for _, table in columns_of(batch, rows):
        values = _distinct(table)
        if values is None and table.is_floating_point():
            continue
        for value in (table.min(), table.max()) if values is None else _some(values, count):
            counts = (table == value).sum(1)
            how_many = int((counts > 0).sum())
            found += [(how_many, int(counts.argmax())), (how_many, int(counts.argmin()))]
    yield from (row for _, row in sorted(found))


def _some(values: list[Any], count: int) -> list[Any]:
    """The least, the greatest, and some between."""
    return [values[at] for at in sorted(set(_spread(torch.arange(len(values)), 4 * count)))]


def groups_of(batch: Any, rows: int, size: int) -> list[list[int]]:
    """The rows in groups of rows that differ, of `size` at most, but for the smallest: two rows are the same
    in many ways, since each is as rare as the other."""
    count = max(1, min(-(-rows // size), rows // GROUP_MIN))
    order = orders_of(batch, rows, 2)[-1]
    return [order[start::count] for start in range(count)]


def orders_of(batch: Any, rows: int, most: int) -> list[list[int]]:
    """Some orders of the rows in which their first and their last differ in their labels, in how much of them
    is masked, or in their inputs; the present order is the first."""
    orders = [list(range(rows))]
    keys = []
    for _, table in columns_of(batch, rows):
        values = _distinct(table)
        keys.append((values is None, table.sum(1, dtype=torch.float64)))
        for value in () if values is None else (values[0], values[-1]):
            keys.append((False, (table == value).sum(1, dtype=torch.float64)))
    for _, key in sorted(keys, key=lambda each: each[0]):  # SeenLabels and masks before inputs.
        order = [int(row) for row in torch.argsort(key, stable=True)]
        if order not in orders and len(orders) < most:
            orders.append(order)
    return orders
