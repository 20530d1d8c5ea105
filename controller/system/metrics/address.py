"""Where the metrics of a process can be read: `HOST:PORT`, `[IPv6]:PORT`, or a port alone.

Rule: a port alone is this machine's loopback. To let the network read it, give an address.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

from cotenant.controller.domain import texts

LOOPBACK: Final = "127.0.0.1"
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


class MetricsProblem(Exception):
    """Why there are no metrics, in one line with what to do."""


class Address(NamedTuple):
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str, key: str) -> Address:
    """Reads the address that setting `key` gives.

    Raises:
        MetricsProblem: it makes no sense; the text says what would.
    """
    host, colon, port = text.strip().rpartition(":")
    host = host if colon else LOOPBACK
    if host.startswith("[") and host.endswith("]"):
        host, good = host[1:-1], _is_ip(host[1:-1])
    else:
        good = ":" not in host and (_is_ip(host) or _is_name(host))
    if not good or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise MetricsProblem(
            f"{key} = {text!r}: write PORT (this machine only), HOST:PORT or [IPv6]:PORT, such as 9741 or "
            "0.0.0.0:9741"
        )
    return Address(host, int(port))


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and not texts.is_whole_number(text.replace(".", ""))
