"""`--image` and `--mount` as they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.controller.domain import Mount, SlurmScript
from cotenant.controller.submission.containers import container_of
from cotenant.controller.submission.options import BadSubmission
from cotenant.controller.submission.recording import record

HERE = Path("/home/ann/p")


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("pytorch/pytorch:2.9", "pytorch/pytorch:2.9"),
        ("docker://ghcr.io/a/b@sha256:" + "0" * 64, "ghcr.io/a/b@sha256:" + "0" * 64),
        ("localhost:5000/a", "localhost:5000/a"),
        ("a.sif", "/home/ann/p/a.sif"),
        ("../b.tar", "/home/ann/b.tar"),
    ],
)
def test_names_and_files(text: str, image: str) -> None:
    container = container_of({"image": text}, HERE, None)
    assert container is not None and container.image == image


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/data", Mount(source="/data", target="/data")),
        ("data:ro", Mount(source="/home/ann/p/data", target="/home/ann/p/data", read_only=True)),
        ("/data:/d", Mount(source="/data", target="/d")),
        ("/data:/d:ro", Mount(source="/data", target="/d", read_only=True)),
    ],
)
def test_mounts(text: str, mount: Mount) -> None:
    container = container_of({"image": "a", "mount": (text,)}, HERE, None)
    assert container is not None and container.mounts == (mount,)


BAD_MOUNTS = (
    *("/proc:/x", "/x:/sys", "/dev/nvidia0", "/a:/etc", "/a:/", "/a:b", "a:/b:/c:ro", ":"),
    *("/:/host", "//:/host", "//dev:/d", "/x://proc", "/x:/./sys/fs", "/a:/usr/.", "/a://run/"),
)


@pytest.mark.parametrize("text", BAD_MOUNTS)
def test_mounts_that_are_refused(text: str) -> None:
    with pytest.raises(BadSubmission):
        container_of({"image": "a", "mount": (text,)}, HERE, None)


@pytest.mark.parametrize("image", ["-v", "a b", "oci-archive:/etc/x", "/etc/passwd", "a:b:c"])
def test_images_that_are_refused(image: str) -> None:
    with pytest.raises(BadSubmission):
        container_of({"image": image}, HERE, None)


def test_what_goes_with_no_container() -> None:
    with pytest.raises(BadSubmission, match="mounts nothing"):
        container_of({"mount": ("/a",)}, HERE, None)
    with pytest.raises(BadSubmission, match="#SBATCH"):
        container_of({"image": "a"}, HERE, SlurmScript())


def test_the_hosts_paths_stay_outside() -> None:
    environ = {"PATH": "/x", "LD_LIBRARY_PATH": "/y", "HOME": "/z", "LANG": "C", "VIRTUAL_ENV": "/v"}
    assert record(environ, ("ALL",), of_host=False).open == {"LANG": "C"}
    assert record(environ, (), (("PATH", "/mine"),), of_host=False).open == {"PATH": "/mine"}
