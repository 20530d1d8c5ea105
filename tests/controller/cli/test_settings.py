"""Settings: flag > environment > file > default; a mistake names file, line and the nearest key."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from cotenant.controller.domain import OrganisationSettings
from cotenant.controller.system import paths, settings
from cotenant.controller.system.sections import Settings


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_stronger_layer_wins_and_the_origin_says_which(tmp_path: Path) -> None:
    first = written(tmp_path / "10.toml", '[agent]\ndevices = "cpu:1"\nhost = "a"\n[policy]\nname = "sjf"\n')
    second = written(tmp_path / "20.toml", '[policy]\nname = "srtf"\nageing_s = 5\n')
    loaded = settings.load(
        flags={"agent.devices": "cpu:3", "agent.host": None},
        files=[first, second],
        environ={"COTENANT_AGENT__DEVICES": "cpu:2", "COTENANT_POLICY__AGEING_S": "7.5"},
    )
    assert loaded.settings.agent.devices == "cpu:3"
    assert loaded.origins["agent.devices"] == "flag"
    assert loaded.settings.agent.host == "a"
    assert loaded.origins["agent.host"] == f"file {first}:3"
    assert loaded.settings.policy.name == "srtf"
    assert loaded.settings.policy.ageing_s == 7.5
    assert loaded.origins["policy.ageing_s"] == "environment COTENANT_POLICY__AGEING_S"
    assert loaded.origins["controller.lease_s"] == "default"


def test_without_anything_the_defaults_hold() -> None:
    assert settings.load(files=[], environ={}).settings == Settings()


def test_every_key_can_come_from_the_environment() -> None:
    for key, kind in settings.types().items():
        variable = "COTENANT_" + key.replace(".", "__").upper()
        text = {str: "x", bool: "true", tuple[str, ...]: "a,b"}.get(kind, "4")
        text = (
            "false" if key in ("launch.warm", "policy.promises") else text
        )  # Those that are on by themselves.
        text = "user ann jobs=1" if key == "limits.exceptions" else text
        text = "0.4" if key in ("controller.eta_share", "policy.late_share", "sharing.guest_min") else text
        text = {
            "notify.kinds": "end,fail", "notify.mail": "a@b", "notify.sender": "a@b", "notify.smtp": "m:25"
        }.get(key, text)  # fmt: skip
        text = "stop:4h" if key.startswith("idle.") else text
        text = "postgresql://db/x" if key == "controller.journal" else text
        text = get_args(kind)[-1] if get_origin(kind) is Literal else text
        loaded = settings.load(files=[], environ={variable: text})
        assert loaded.origins[key] == f"environment {variable}"
        assert loaded.value(key) != getattr(getattr(Settings(), key.split(".")[0]), key.split(".")[1])


@pytest.mark.parametrize("probe_s", [0.4, 61.0])
def test_the_driver_is_asked_neither_all_the_time_nor_hardly_ever(probe_s: float) -> None:
    with pytest.raises(settings.SettingsError, match=r"agent\.probe_s must be 0\.5 to 60"):
        settings.load({"agent.probe_s": probe_s}, files=[], environ={})


def test_organisations_have_sections_of_their_own(tmp_path: Path) -> None:
    first = written(tmp_path / "10.toml", '[organisations.vision]\nclass = "spot"\nquota_devices = 4\n')
    second = written(
        tmp_path / "20.toml",
        '[organisations.vision]\nquota_devices = 8\n[organisations."speech.eu"]\nclass = "hp"\n',
    )
    loaded = settings.load(files=[first, second], environ={})
    assert loaded.settings.organisations == {
        "vision": OrganisationSettings(job_class="spot", quota_devices=8),
        "speech.eu": OrganisationSettings(job_class="hp"),
    }
    assert loaded.origins["organisations.vision.quota_devices"] == f"file {second}:2"
    assert loaded.value("organisations.vision.class") == "spot"
    assert loaded.value("organisations.speech.eu.class") == "hp"


WRONG = {
    "an organisation's key": (
        "[organisations.a]\nquota = 3\n",
        ":2: unknown setting `organisations.a.quota`",
    ),
    "an organisation's class": (
        "[organisations.a]\nclass = 'low'\n",
        ":2: `organisations.a.class` must be one of hp, spot, got 'low'",
    ),
    "a negative quota": ("[organisations.a]\nquota_devices = -1\n", "must be 0 or more"),
    "an organisation's bound": (
        "[organisations.a]\nshare_max = 0.5\n",
        ":2: organisations.a.share_max must be 1.01 to 10 (or 0",
    ),
    "an organisation that is no section": ("[organisations]\na = 3\n", "`a` must be a section, written"),
    "organisations that are no section": ("organisations = 3\n", "must be sections, written [organisations"),
    "an organisation of two words": ("[organisations.'a b']\nclass = 'hp'\n", "no name of an organisation"),
    "unknown key": ("[controller]\n\nleas_s = 3\n", ":3: unknown setting `controller.leas_s`; did you mean"),
    "another section's key": ("[agent]\nname = 'x'\n", ":2: unknown setting `agent.name`; did you mean"),
    "unknown section": ("# x\n[controler]\n", ":2: unknown section [controler]"),
    "wrong type": ("[agent]\ndevices = 2\n", ":2: `agent.devices` must be text, got 2"),
    "text for a number": ("[controller]\nlease_s = '300'\n", ":2: `controller.lease_s` must be a number"),
    "out of range": ("[agent]\nheartbeat_s = 0\n", ":2: `agent.heartbeat_s` must be above 0"),
    "negative": ("[policy]\nageing_s = -1\n", ":2: `policy.ageing_s` must be 0 or more"),
    "none of the choices": ("[mps]\nmode = 'on'\n", ":2: `mps.mode` must be one of auto, off, per-device"),
    "above its largest": (
        "[profiler]\nseconds = 1e6\n",
        ":2: profiler.seconds must be 0 to 86400, got 1000000.0",
    ),
    "endless": ("[controller]\nlease_s = 1e300\n", ":2: `controller.lease_s` is too large"),
    "a huge count": (
        "[controller]\nkeep_ended = 99999999999999999999\n",
        "`controller.keep_ended` is too large",
    ),
    "two lines": ('[agent]\nhost = "a\\nb"\n', ":2: `agent.host` must be one line of text"),
    "a NUL": ('[agent]\nfeatures = ["a\\u0000"]\n', ":2: `agent.features` must be one line of text"),
    "true": ("[agent]\ndevices = true\n", ":2: `agent.devices` must be text, got true"),
    "a date": ("[agent]\ndevices = 2024-01-01\n", ":2: `agent.devices` must be text, got 2024-01-01"),
    "not a number": ("[policy]\nageing_s = nan\n", "must be 0 or more"),
    "not TOML": ("[policy\n", "not valid TOML"),
    "a key outside any section": ("devices = 'cpu:2'\n", "unknown section [devices]"),
}


@pytest.mark.parametrize(("text", "says"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path / "cotenant.toml", text)
    with pytest.raises(settings.SettingsError) as error:
        settings.load(files=[path], environ={})
    assert str(path) in str(error.value)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_variable_is_an_error_with_a_hint() -> None:
    with pytest.raises(settings.SettingsError, match=r"AGENT__DEVICE: .*did you mean `agent.devices`\?"):
        settings.load(files=[], environ={"COTENANT_AGENT__DEVICE": "cpu:2"})


def test_the_jobs_own_variables_are_not_settings() -> None:
    settings.load(files=[], environ={"COTENANT_JOB": "7", "COTENANT_CHECKPOINT_ROOT": "/x"})


def test_default_files_are_the_users_own_or_the_one_named(tmp_path: Path) -> None:
    (tmp_path / "cotenant").mkdir()
    own = written(tmp_path / "cotenant" / "cotenant.toml", "[policy]\nname = 'sjf'\n")
    assert list(settings.default_files({"XDG_CONFIG_HOME": str(tmp_path)}))[-1] == own
    assert list(settings.default_files({"COTENANT_CONFIG": "/x/y.toml"})) == [Path("/x/y.toml")]


def test_the_runtime_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = paths.runtime_dir()
    assert folder == tmp_path / "cotenant"
    folder.chmod(0o755)
    paths.runtime_dir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_without_a_session_the_folder_is_by_uid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert paths.runtime_dir() == tmp_path / f"cotenant-{os.getuid()}"


def test_a_link_in_its_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cotenant").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(paths.PathError, match="not a folder"):
        paths.runtime_dir()


def test_clients_reach_a_wildcard_address_on_this_host() -> None:
    loaded = settings.load(flags={"controller.endpoint": "tcp://*:7070"}, files=[], environ={})
    assert paths.client_endpoint(loaded.settings) == "tcp://127.0.0.1:7070"


def test_config_says_where_a_setting_is_written(
    at_home: Path, cotenant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COTENANT_CONFIG")
    result = cotenant("config", "limits.user_devices=4")
    file = at_home / ".config/cotenant/cotenant.toml"
    assert (result.code, f"write `user_devices = 4` below `[limits]` in {file}" in result.err) == (2, True)
    file.parent.mkdir(parents=True)
    file.write_text("[limits]\nuser_jobs = 3\nuser_devices = 2\n")
    assert f"in place of line 3 of {file};" in cotenant("config", "limits.user_devices=4").err
    assert 'write `shell = "warn:1h"`' in cotenant("config", "idle.shell=warn:1h").err
    assert "did you mean `limits.user_devices`?" in cotenant("config", "limits.user_devcies=4").err


def test_the_command_of_the_page_for_one_box_can_be_given_twice(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/one-box.md").read_text()
    (command,) = (line for line in page.splitlines() if line.startswith("printf") and "limits" in line)
    here = command.replace("sudo ", "").replace("/etc/cotenant", str(tmp_path))
    for _ in range(2):
        subprocess.run(["/bin/sh", "-c", here], check=True, stdout=subprocess.DEVNULL)
    (file,) = tmp_path.glob("*.toml")
    assert settings.load(files=[file], environ={}).settings.limits.user_devices == 4
