"""What a host sends and receives: interfaces, and InfiniBand's own counters in words of four bytes."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from cotenant.profiler.indicators.cpu import network


def port(
    root: Path, device: str, *, speaks: str, sent: str, received: str, nets: tuple[str, ...] = ()
) -> None:
    folder = root / device / "ports" / "1"
    (folder / "counters").mkdir(parents=True)
    (folder / "link_layer").write_text(f"{speaks}\n")
    (folder / "counters" / "port_xmit_data").write_text(f"{sent}\n")
    (folder / "counters" / "port_rcv_data").write_text(f"{received}\n")
    for name in nets:
        (root / device / "device" / "net" / name).mkdir(parents=True)


def test_without_infiniband_it_is_what_the_interfaces_count(tmp_path: Path) -> None:
    before = psutil.net_io_counters()
    found = network(tmp_path / "none")
    assert found.sent >= before.bytes_sent and found.received >= before.bytes_recv


def test_a_port_counts_words_and_its_interfaces_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lo, *_ = psutil.net_io_counters(pernic=True).values()
    nics = {
        "eth0": lo._replace(bytes_sent=100, bytes_recv=200),
        "ib0": lo._replace(bytes_sent=7, bytes_recv=7),
    }
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic=False, nowrap=True: nics)
    port(tmp_path, "mlx5_0", speaks="InfiniBand", sent="1000", received="2000", nets=("ib0",))
    port(tmp_path, "mlx5_1", speaks="Ethernet", sent="5", received="5", nets=("eth0",))
    port(tmp_path, "mlx5_2", speaks="InfiniBand", sent="N/A (no PMA)", received="", nets=("eth0",))
    assert network(tmp_path) == (100 + 4000, 200 + 8000)
