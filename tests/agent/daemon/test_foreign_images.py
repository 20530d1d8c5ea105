"""What brings an image is its user's program: it may say anything, and an odd name is its job's failure."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from cotenant.agent.daemon.images import OUTPUT_BYTES_MAX, Images, NoImage
from cotenant.controller.domain import Launch
from tests.building.orders import order_of


def run(*command: str) -> Any:
    images = Images((), lease_left_s=lambda: None)
    return asyncio.run(
        images._run(order_of(launch=Launch(uid=os.geteuid(), gid=os.getegid())), list(command))
    )


def test_an_image_whose_name_is_no_word_is_its_jobs_failure() -> None:
    with pytest.raises(NoImage, match="embedded null byte") as refused:
        run("/bin/echo", "a\0b")
    assert refused.value.is_users


def test_it_may_say_any_amount() -> None:
    code, said = run("/bin/sh", "-c", "yes x | head -c 3000000; echo end; exit 4")
    assert code == 4 and said.endswith("end") and len(said) <= OUTPUT_BYTES_MAX
