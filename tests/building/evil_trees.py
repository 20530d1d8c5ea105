"""Packed trees that no client of ours makes, by name: what each is, and in which words a job with it fails.

Rule: a tree is made on the fly as a stream of bytes, so a row may announce or hold more than a machine has.
"""

from __future__ import annotations

import gzip
import hashlib
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cotenant.controller.domain import job_spec

MIB = 1024 * 1024
CONTENT_BYTES = MIB
"""What each of them announces."""
BLOCK = tarfile.BLOCKSIZE


class EvilTree(NamedTuple):
    stream: Callable[[], Iterator[bytes]]
    says: str
    """In the reason; empty: it does no harm, and the job runs."""


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def entry(
    name: bytes = b"f", kind: bytes = tarfile.REGTYPE, *, size: int = 0, target: str = "", mode: int = 0o644
) -> bytes:
    """One header, whose numbers need not be true."""
    info = tarfile.TarInfo(name.decode(errors="surrogateescape"))
    info.type, info.linkname, info.mode, info.size = kind, target, mode, size
    return info.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape")


def long_name(name: bytes) -> bytes:
    """The header and the bytes of a name of any length; what it names follows."""
    return entry(b"long", tarfile.GNUTYPE_LONGNAME, size=len(name) + 1) + padded(name + b"\0")


def named(name: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter((long_name(name), entry()))


def of(*parts: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter(parts)


def endless_name() -> Iterator[bytes]:
    yield entry(b"long", tarfile.GNUTYPE_LONGNAME, size=400 * MIB)
    for _ in range(400):
        yield b"a" * MIB
    yield entry()


def endless_facts() -> Iterator[bytes]:
    """A header of the newer kind, which has no end either."""
    yield entry(b"facts", tarfile.XHDTYPE, size=400 * MIB)
    for _ in range(400):
        yield b"1" * MIB
    yield entry()


def nested(kind: bytes, count: int) -> Callable[[], Iterator[bytes]]:
    def headers() -> Iterator[bytes]:
        for _ in range(count):
            yield entry(b"long", kind, size=2) + padded(b"a\0")
        yield entry()

    return headers


def facts(text: bytes) -> Callable[[], Iterator[bytes]]:
    return of(entry(b"facts", tarfile.XHDTYPE, size=len(text)), padded(text), entry(), HELD)


HELD = entry(b"kept", size=3) + padded(b"hi\n")
EVIL: dict[str, EvilTree] = {
    "a name of 40 kB of folders": EvilTree(named(b"a/" * 20_000 + b"f"), "a path of more than 3,000 bytes"),
    "a name of 300 kB of folders": EvilTree(named(b"a/" * 150_000 + b"f"), "a path of more than 3,000 bytes"),
    "a name of 400 MiB": EvilTree(endless_name, "takes more than 256 MiB of memory"),
    "facts of 400 MiB": EvilTree(endless_facts, "takes more than 256 MiB of memory"),
    "600 nested names": EvilTree(nested(tarfile.GNUTYPE_LONGNAME, 600), "nested too deep"),
    "5,000 nested names": EvilTree(nested(tarfile.GNUTYPE_LONGNAME, 5000), "nested too deep"),
    "5,000 nested targets": EvilTree(nested(tarfile.GNUTYPE_LONGLINK, 5000), "nested too deep"),
    "1,000 folders deep": EvilTree(named(b"b/" * 1000 + b"f"), "more than 200 folders deep"),
    "a name of 300 characters": EvilTree(named(b"a" * 300), "a name of more than 255 bytes"),
    "a name of 255 characters, too many bytes": EvilTree(
        named("ü".encode() * 200), "a name of more than 255 bytes"
    ),
    "a link to a long name": EvilTree(
        lambda: iter(
            (
                entry(b"long", tarfile.GNUTYPE_LONGLINK, size=5000),
                padded(b"t" * 4999 + b"\0"),
                entry(b"l", tarfile.SYMTYPE),
            )
        ),
        "outside of the tree",
    ),
    "above its folder": EvilTree(of(entry(b"../evil"), HELD), "leads elsewhere"),
    "absolute": EvilTree(of(entry(b"/tmp/evil"), HELD), "leads elsewhere"),
    "through a link": EvilTree(
        of(entry(b"d", tarfile.SYMTYPE, target="/tmp"), entry(b"d/evil")), "below something that is no"
    ),
    "a hard link": EvilTree(of(entry(b"d", tarfile.LNKTYPE, target="/etc/shadow")), "no file, folder"),
    "a device": EvilTree(of(entry(b"d", tarfile.CHRTYPE)), "no file, folder"),
    "a pipe": EvilTree(of(entry(b"d", tarfile.FIFOTYPE)), "no file, folder"),
    "an old hole": EvilTree(of(entry(b"d", tarfile.GNUTYPE_SPARSE, size=512), bytes(512)), "snapshot"),
    "twice": EvilTree(of(entry(b"f"), entry(b"f")), "is there twice"),
    "more than was announced": EvilTree(
        of(entry(b"f", size=2 * MIB), bytes(2 * MIB)), "more than was announced"
    ),
    "a size of 2 to the 80": EvilTree(of(entry(b"f", size=2**80)), "more than was announced"),
    "a negative size": EvilTree(of(entry(b"f", size=-1024), HELD), "snapshot"),
    "a size that is no number": EvilTree(facts(b"12 size=abc\n"), ""),
    "a size beyond all numbers": EvilTree(facts(b"30 size=99999999999999999999999\n"), "snapshot"),
    "cut": EvilTree(of(entry(b"f", size=5000), b"x"), "the snapshot is damaged"),
    "noise": EvilTree(of(random.Random(7).randbytes(5000)), "the snapshot is damaged"),
    "bits of another user": EvilTree(of(entry(b"s", mode=0o6777), HELD), ""),
    "names for a terminal": EvilTree(of(entry(b"a\n\x1b[31mred\x1b]0;evil\x07"), HELD), ""),
    "names that are no text": EvilTree(of(entry(b"a\xff\xfe"), HELD), ""),
}


def make(stream: Callable[[], Iterator[bytes]], folder: Path) -> job_spec.CodeSnapshot:
    """Packs a stream into a folder, under its SHA-256, with what a client would say of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "made"
    with gzip.open(path, "wb", compresslevel=1) as packed:
        for part in stream():
            packed.write(part)
        packed.write(bytes(2 * BLOCK))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    size = path.stat().st_size
    path.rename(folder / sha256)
    return job_spec.CodeSnapshot(
        sha256=sha256, kind="copy", size_bytes=size, content_bytes=CONTENT_BYTES, files=1, top="/submitted"
    )
