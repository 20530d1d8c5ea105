"""Promise 5 under DDP: two ranks with different numbers of rows and tokens."""

from __future__ import annotations

from pathlib import Path

from tests.checkpoint.ranks import Warm, launch

RANK = Path(__file__).with_name("ddp_rank.py")


def test_two_ranks_accumulate_exactly_and_exchange_gradients_once_per_step(
    warm: Warm, tmp_path: Path
) -> None:
    for result in launch(warm, RANK, tmp_path, ranks=2).wait():
        for kind in ("mean", "sum", "token_sum"):
            assert result[kind] <= 1e-12, kind
            whole, parts = result[f"{kind} exchanges"]
            assert whole == parts > 0
        assert result["global token mean"] <= 1e-12
        assert "find_unused_parameters" in result["refusal"]
        assert "exchanges values with other ranks" in result["exchange"]
