"""HiGHS solves a program within a limit, and equal programs equally.

Rule: one thread, one seed and a model of its own for each program, so that nothing is left of the one
before. Only a proven optimum counts: what a limit cuts off depends on the machine.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from cotenant.controller.papers.rltune.placement.program import PlacementProgram

LIMIT_S: Final = 0.05
NODES_MAX: Final = 200
"""Of its search tree: reached first on a machine that is not slow, and the same on all."""
LIBRARY: Final = "highspy"


def is_installed(library: str = LIBRARY) -> bool:
    """Whether the solver's library is installed; the check imports nothing."""
    return importlib.util.find_spec(library) is not None


class Highs:
    """A solver that runs HiGHS. Implements `Solver`."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s

    def solve(self, program: PlacementProgram) -> Sequence[float] | None:
        highspy: Any = importlib.import_module(LIBRARY)  # Only who places so pays for it.
        highs = highspy.Highs()
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("random_seed", 0),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 1e-6),
            ("mip_max_nodes", NODES_MAX),
            ("presolve", "off"),  # It takes longer than what it saves of programs this small.
        ):
            highs.setOptionValue(name, value)
        highs.passModel(_model(highspy, program))
        known = program.best_fit
        highs.setSolution(len(known), np.array([*known], dtype=np.int32), np.array([*known.values()]))
        highs.setOptionValue("time_limit", highs.getRunTime() + self._limit_s)
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        return list(highs.getSolution().col_value)


def _model(highspy: Any, program: PlacementProgram) -> Any:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(program.cost), len(program.rows)
    lp.col_cost_, lp.offset_ = np.array(program.cost), program.offset
    lp.col_lower_, lp.col_upper_ = np.array(program.lower), np.array(program.upper)
    lp.row_lower_ = np.array([row.least for row in program.rows])
    lp.row_upper_ = np.array([row.most for row in program.rows])
    kinds = highspy.HighsVarType
    lp.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in program.whole]
    factors = [row.factors for row in program.rows]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *map(len, factors)]).astype(np.int32)
    lp.a_matrix_.index_ = np.array([column for row in factors for column in row], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([value for row in factors for value in row.values()])
    return lp
