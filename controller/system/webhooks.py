"""URLs of webhooks, and the files that hold them. Rule: a user's own goes only to hosts that the site allows,
by https; else the controller would send to whatever it can reach and its users cannot.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

SLACK: Final = "slack+"
SLACK_HOST: Final = "hooks.slack.com"
SECRET_BYTES_MAX: Final = 4096


class Webhook(NamedTuple):
    """The parts of a URL."""

    is_secure: bool
    host: str
    port: int
    path: str
    is_slack: bool
    """It takes `{"text": ...}` and nothing else."""


def read_webhook(url: str) -> Webhook:
    """Takes a URL apart. Raises ValueError: what is wrong with it, without the URL, which is a secret."""
    try:
        parts = urlsplit(url.removeprefix(SLACK))
        port = parts.port
    except ValueError:
        raise ValueError("the webhook's URL cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("a webhook must be https://HOST/... or slack+https://HOST/...")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("a webhook's URL must be visible ASCII characters without a blank")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    is_secure = parts.scheme == "https"
    is_slack = url.startswith(SLACK) or parts.hostname == SLACK_HOST
    return Webhook(is_secure, parts.hostname, port or (443 if is_secure else 80), path, is_slack)


def webhook_problem(url: str, hosts: Sequence[str]) -> str:
    """Why a user's own webhook is refused; empty: it is not. `hosts`: those that the site allows."""
    try:
        found = read_webhook(url)
    except ValueError as error:
        return str(error)
    if not found.is_secure:
        return "your webhook must be https"
    allowed = [each.lower() if ":" in each else f"{each.lower()}:443" for each in hosts]
    if f"{found.host}:{found.port}" in allowed:
        return ""
    there = ", ".join(hosts) or "none"
    return f"your webhook is on {found.host}:{found.port}; this site allows {there} (notify.webhook_hosts)"


def read_secret(path: str) -> str:
    """What a file holds that its owner alone may read. Raises ValueError: why it is not taken."""
    try:
        place = Path(path).expanduser()
        if mode := stat.S_IMODE(place.stat().st_mode) & 0o077:
            raise ValueError(f"{path} can be read by others (mode {mode:03o} too much): chmod 600 {path}")
        with place.open(encoding="utf-8") as file:
            found = file.read(SECRET_BYTES_MAX).strip()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, RuntimeError):
        raise ValueError(f"{path} cannot be read") from None
    if not found:
        raise ValueError(f"{path} is empty")
    return found
