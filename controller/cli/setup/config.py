"""`cotenant config`: every setting, its value and where it comes from; `version`: what is installed here and
there.
"""

from __future__ import annotations

import ast
import inspect
import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Annotated, Any, Final, NamedTuple

from cotenant.checkpoint.talk.protocol import PROTOCOL_VERSION
from cotenant.controller.cli.frame import output
from cotenant.controller.cli.frame.command import argument
from cotenant.controller.client.asking import asking, loaded_settings
from cotenant.controller.domain import settings as decided_by
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import hint
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import value_text
from cotenant.controller.system import paths, sections, settings
from cotenant.controller.wire import WIRE_VERSION
from cotenant.controller.wire import clients as wire


class SettingRow(NamedTuple):
    key: str
    value: Any
    effective: Any
    """What an empty value means; otherwise the value."""
    origin: str
    meaning: str

    @property
    def shown(self) -> str:
        return value_text(self.value) if self.value == self.effective else f"({self.effective})"


def _listens(given: sections.Settings) -> str:
    try:
        return paths.controller_endpoint(given)
    except settings.SettingsError:  # On a machine without a controller there is nothing to set.
        return ""


WHERE_EMPTY: Final[dict[str, Callable[[sections.Settings], object]]] = {
    "controller.endpoint": paths.client_endpoint,
    "controller.listen": _listens,
    "controller.state_dir": paths.controller_state_dir,
    "controller.keys_dir": paths.keys_dir,
    "agent.controller": lambda given: ",".join(paths.agent_endpoints(given)),
    "agent.state_dir": paths.agent_state_dir,
    "checkpoint.root": paths.checkpoint_root,
    "snapshot.folder": paths.snapshot_store,
}


def config(
    key: Annotated[str, argument(metavar="KEY", help="Only this setting, or this section.")] = "",
    form: output.FormFlag = "table",
) -> None:
    """Every setting, its value, and where it comes from: flag > environment > file > default.

    A value in brackets is what an empty one amounts to. A setting is `section.key`: in a file
    `key = value` below `[section]`, in the environment COTENANT_SECTION__KEY. Files:
    /etc/cotenant/*.toml, then ~/.config/cotenant/cotenant.toml (or only the one in COTENANT_CONFIG).

    For example:

      cotenant config -o wide             with what each one means
      cotenant config agent.devices
    """
    loaded = loaded_settings()
    if "=" in key:
        raise not_set_here(loaded, *map(str.strip, key.split("=", 1)))
    meanings = setting_meanings()
    rows = [
        SettingRow(name, loaded.value(name), effective(loaded, name), origin, meanings.get(name, ""))
        for name, origin in loaded.origins.items()
        if key in ("", name, name.partition(".")[0])
    ]
    if not rows:
        raise Problem("not-found", f"there is no setting {key!r}", settings.nearest(key))
    files = [str(path) for path in loaded.files]
    output.show_listing(SETTINGS.fill(rows, files=files), form)
    if form == "table":
        hint(f"files read: {', '.join(files) or 'none'}; yours would be {settings.user_file(os.environ)}")


RESTART: Final = "sudo systemctl restart cotenant-controller cotenant-agent"


def not_set_here(loaded: settings.LoadedSettings, key: str, value: str) -> Problem:
    """Where a setting is written, and who then has to read it again."""
    if key not in loaded.origins:
        return Problem("not-found", f"there is no setting {key!r}", settings.nearest(key))
    section, _, name = key.rpartition(".")
    typed = settings.as_typed(key, value) if key in settings.types() else value
    line = f"{name} = {output.json_text(typed)}"  # Such values are the same in TOML.
    origin, of_all = loaded.origins[key], any(settings.SYSTEM_DIR in path.parents for path in loaded.files)
    file = settings.SYSTEM_DIR / "cotenant.toml" if of_all else settings.user_file(os.environ)
    place = f"below `[{section}]` in {file}"
    if origin.startswith("file "):
        place = f"in place of line {origin.rpartition(':')[2]} of {origin[5:].rpartition(':')[0]}"
    then = f"`{RESTART}`" if of_all else "`cotenant down`, and the next command starts it again"
    why = f"this shows settings and sets none: write `{line}` {place}"
    return Problem("usage", why, f"then a controller that runs has to read it: {then}; jobs run on")


COLUMNS: Final = (
    Column("SETTING", lambda r: r.key),
    Column("VALUE", lambda r: r.shown, limit=40),
    Column("ORIGIN", lambda r: r.origin, rank=1, colour=lambda r: "dim" if r.origin == "default" else "cyan"),
)
SETTINGS: Final = output.Listing(
    noun="setting",
    as_json=SettingRow._asdict,
    identity=lambda r: r.key,
    columns=COLUMNS,
    wide_columns=(*COLUMNS, Column("MEANING", lambda r: r.meaning)),
)


def effective(loaded: settings.LoadedSettings, key: str) -> Any:
    value = loaded.value(key)
    return str(WHERE_EMPTY[key](loaded.settings)) if value in ("", ()) and key in WHERE_EMPTY else value


def setting_meanings() -> dict[str, str]:
    """`section.key` -> what it means: the text below each line of the settings' definition."""
    meanings = {}
    for node in (each for of in (sections, decided_by) for each in ast.parse(inspect.getsource(of)).body):
        if isinstance(node, ast.ClassDef) and (doc := ast.get_docstring(node) or "").startswith("`["):
            section = doc.strip("`[]")
            for field, text in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(text):
                    meaning: str = ast.literal_eval(text.value)  # type: ignore[attr-defined]
                    meanings[f"{section}.{field.target.id}"] = " ".join(meaning.split())
    return meanings


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def version(form: output.FormFlag = "table", endpoint: output.EndpointFlag = None) -> None:
    """Versions of this command and of the controller.

    For example:

      cotenant version --json
    """
    controller: str | None = None
    why = ""
    if form != "id":
        try:
            with asking(endpoint, timeout_s=2.0) as client:
                controller = client.ask(wire.GetStatus()).version
        except Problem as problem:
            why = "none answers" if problem.code == "unreachable" else problem.message
    value: dict[str, Any] = {
        "schema": "version/1",
        "version": own_version(),
        "controller": controller,
        "wire": WIRE_VERSION,
        "job_protocol": PROTOCOL_VERSION,
        "python": platform.python_version(),
    }
    output.show_one(form, value, own_version(), value, lambda shown: page(shown, why))


def own_version() -> str:
    try:
        return installed("cotenant")
    except PackageNotFoundError:
        return "unknown (not installed)"


def page(value: dict[str, Any], why: str) -> str:
    """The page of versions and the controller. `why`: no controller has answered."""
    controller = value["controller"] or f"({why})"
    return f"cotenant {value['version']}\ncontroller {controller}\nPython {value['python']}"
