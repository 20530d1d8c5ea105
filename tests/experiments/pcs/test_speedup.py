"""How fast a job is on a share of devices, and up to how many they are well used."""

import pytest

from experiments.pcs.fluid import Speedup

VGG = Speedup((1.0, 1.82, 2.39, 3.477, 3.945, 4.558, 5.397, 6.614))
"""Efficiency 1, .91, .80, .87, .79, .76, .77, .83."""


@pytest.mark.parametrize(
    ("zeta", "cap"),
    [(1.0, 1), (0.92, 1), (0.9, 2), (0.8, 2), (0.79, 4), (0.77, 5), (0.5, 8), (0.0, 8), (-1, 8)],
)
def test_a_cap_ends_before_the_first_number_of_devices_that_is_not_efficient(zeta: float, cap: int) -> None:
    assert VGG.cap(zeta) == cap


@pytest.mark.parametrize(
    ("gpus", "pace"), [(0.0, 0.0), (0.25, 0.25), (1.0, 1.0), (1.5, 1.41), (8, 6.614), (9, 6.614)]
)
def test_between_two_numbers_of_devices_the_pace_is_linear(gpus: float, pace: float) -> None:
    assert VGG.pace_on(gpus) == pytest.approx(pace)


def test_a_curve_that_makes_no_sense_is_refused() -> None:
    for values in ((), (0.9, 1.0), (1.0, -1.0)):
        with pytest.raises(ValueError, match="begins with 1"):
            Speedup(values)
