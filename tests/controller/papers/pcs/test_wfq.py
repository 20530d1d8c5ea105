"""How PCS's classes divide devices, and the form of its configurations."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.papers.pcs import (
    WfqConfig,
    class_shares,
    divide,
    parse_published,
    published_form,
    published_named,
)


class Vgg:
    """Efficiency 1, .91, .80, .87, .79, .76, .77, .83 on 1, 2 ... devices."""

    SPEEDUPS = (1.0, 1.82, 2.39, 3.477, 3.945, 4.558, 5.397, 6.614)

    def cap(self, zeta: float) -> int:
        """Devices before the first number that is less efficient."""
        return next((gpus for gpus, pace in enumerate(self.SPEEDUPS) if pace / (gpus + 1) < zeta), 8)


VGG = Vgg()


@pytest.mark.parametrize(
    ("demands", "weights", "shares"),
    [
        ([100, 100], [0.75, 0.25], [48, 16]),
        ([0, 100], [0.9, 0.1], [0, 64]),
        ([10, 100, 100], [0.5, 0.25, 0.25], [10, 27, 27]),
        ([1, 2], [0.5, 0.5], [1, 2]),
        ([40, 100, 1], [0.6, 0.3, 0.1], [40, 23, 1]),  # 63 by weights 6 to 3 would be 42: 40 are enough.
        ([0, 0], [0.5, 0.5], [0, 0]),
    ],
)
def test_a_class_gets_its_weight_or_all_it_can_use(
    demands: list[float], weights: list[float], shares: list[float]
) -> None:
    assert class_shares(demands, weights, 64) == pytest.approx(shares)


@given(
    demands=st.lists(st.integers(0, 90), min_size=1, max_size=6),
    weights=st.lists(st.floats(0.001, 1.0), min_size=6, max_size=6),
)
def test_nothing_is_left_over_and_no_class_gets_more_than_it_can_use(
    demands: list[int], weights: list[float]
) -> None:
    found = class_shares(demands, weights[: len(demands)], 64)
    assert sum(found) == pytest.approx(min(64, sum(demands)))
    assert all(share <= demand + 1e-9 for share, demand in zip(found, demands, strict=True))


def test_caps_are_relaxed_for_the_whole_class_until_its_share_is_used_up() -> None:
    assert divide(3.5, [VGG, VGG, VGG], 0.9, 0.05) == [2, 1.5]
    assert divide(7.0, [VGG, VGG, VGG], 0.9, 0.11) == [4, 3]
    assert divide(24.0, [VGG, VGG, VGG], 0.9, 0.05) == [8, 8, 8]


def test_a_job_belongs_to_the_first_class_whose_threshold_is_not_below_its_size() -> None:
    config = WfqConfig(thresholds_gpu_s=(100.0, 2000.0), weights=(0.6, 0.3, 0.1))
    assert [config.class_of(size) for size in (1, 100, 101, 2000, 2001, 1e12)] == [0, 0, 1, 1, 2, 2]


PUBLISHED = {
    "num_classes": 3,
    "class_thresholds": [2139, 1533489, "inf"],
    "class_rates": [0.93993994, 0.0570570571, 0.003003003],
    "clip_demand_factor": 0.6326,
    "delta": 0.50166,
}


def test_a_published_configuration_comes_back_as_it_was() -> None:
    config = parse_published(PUBLISHED)
    assert config.zeta_min == 0.6326
    assert published_form(config) == PUBLISHED
    assert WfqConfig.parse(config.as_parameters()) == config
    assert published_named({"configs": {"a": PUBLISHED, "b": PUBLISHED}}, "b") == config
    assert published_named({"only": PUBLISHED}) == config
    assert parse_published(json.loads(json.dumps(published_form(config)))) == config


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "no JSON object"),
        ({"configs": {"a": PUBLISHED, "b": PUBLISHED}}, "a, b"),
        (PUBLISHED | {"class_thresholds": [1, 2]}, "inf"),
        (PUBLISHED | {"class_rates": [1.0]}, "thresholds between"),
        (PUBLISHED | {"class_rates": [1.0, 2.0, 0.0]}, "above 0"),
        (PUBLISHED | {"class_thresholds": [5, 5, "inf"]}, "must rise"),
        (PUBLISHED | {"class_rates": None}, "no configuration"),
        (PUBLISHED | {"delta": 0}, "delta above 0"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_said(value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        published_named(value)
