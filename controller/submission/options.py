"""Every option of a job, once: its flags, its YAML key, its check and its help.

Rule: nothing else knows a job option by name. `run`, `submit`, YAML files and scripts read this table,
so a new option is one line here, and one in `build.py` where it is no field of a job's specification.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import texts
from cotenant.controller.performance import Profile
from cotenant.controller.present.problem import Problem, suggestion
from cotenant.controller.submission import quantities
from cotenant.controller.submission.moments import begin_moment, moment
from cotenant.controller.wire import BadMessage, decode_json


class MissingFile(ValueError):
    """The file that an option names is not there."""


class BadSubmission(Problem):
    """Refused before anything was sent."""

    def __init__(
        self, message: str, hint: str = "", *, missing: bool = False, parts: Sequence[BadSubmission] = ()
    ) -> None:
        """`missing`: a file that was named is not there, which scripts can tell from a wrong value. `parts`:
        the single errors, where there are several."""
        code = "not-found" if missing else "usage"
        super().__init__(code, message, hint, [each.sentence for each in parts])


PROFILE_BYTES_MAX: Final = 1024 * 1024
PROFILE_WORDS: Final = ("auto", "never", "full")


class Option(msgspec.Struct, frozen=True):
    """An option of a submission. `parse` raises ValueError with a sentence that fits behind the option's
    name."""

    key: str
    """In YAML; with dashes it is the long flag."""
    metavar: str
    parse: Callable[[str], Any]
    help: str
    short: str = ""
    repeat: bool = False
    """May be given several times: the values are collected."""
    switch: bool = False
    """A flag without a value."""
    listed: bool = False
    """Its one value is a list between commas, which a YAML file may write as a list of its own."""

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.short, self.flag) if self.short else (self.flag,)


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed value and where it was written (the flag itself, or `FILE:LINE`), for messages."""

    value: Any
    where: str


Options = dict[str, Given]
"""By key. An option that was not given is absent."""


def choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be {' or '.join(words)}, got {quantities.quoted_text(text)}")
        return text

    return parse


def accumulate_wish(text: str) -> str:
    """`auto`, `never`, or what else is allowed: `mean`, `equivalent`, or both."""
    words = text.split(",")
    if text in ("auto", "never") or (set(words) <= {"mean", "equivalent"} and len(set(words)) == len(words)):
        return text
    raise ValueError(
        f"must be auto, mean, equivalent, mean,equivalent or never, got {quantities.quoted_text(text)}"
    )


def tri_state(text: str) -> bool | None:
    return None if text.strip().lower() == "auto" else quantities.yes_or_no(text)


def watchdog_s(text: str) -> float | None:
    """None for the host's own rule, 0 for never."""
    word = text.strip().lower()
    if word == "auto":
        return None
    return 0.0 if word in ("off", "never") else quantities.duration_s(text)


def share_wish(text: str) -> str:
    word = text.strip().lower()
    if not domain.is_share(word):
        raise ValueError(f"must be {domain.SHARE_FORMS}, got {quantities.quoted_text(text)}")
    return word


def idle_rule(text: str) -> str:
    word = text.strip().lower().replace(" ", "")
    domain.check_idle_rule(word)
    return word


def name(text: str) -> str:
    if not text or not texts.is_name(text):
        raise ValueError(f"must be 1 to 128 printable characters, got {quantities.quoted_text(text)}")
    return text


def path(text: str) -> str:
    if not text or "\0" in text or len(text) > 4096:
        raise ValueError("must be a path")
    return text


def output_path(text: str) -> str:
    if "\n" in text or "\r" in text:
        raise ValueError(f"must be a path in one line, got {quantities.quoted_text(text)}")
    return path(text)


def one_word(text: str) -> str:
    words = quantities.word_list(text)
    if len(words) != 1:
        raise ValueError(f"must be one word, got {quantities.quoted_text(text)}")
    return words[0]


def variable(text: str) -> tuple[str, str | None]:
    """`NAME=VALUE`, or `NAME` alone: the submitter's own value."""
    variable_name, equals, value = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", variable_name):
        raise ValueError(f"must be NAME=VALUE, got {quantities.quoted_text(text)}")
    return variable_name, value if equals else None


_NEEDS: Final[dict[str, Literal["ok", "any"]]] = {
    "ok": "ok", "any": "any", "afterok": "ok", "afterany": "any",
}  # fmt: skip


def dependencies(text: str) -> tuple[domain.Dependency, ...]:
    """`7`, `7,9`, `38_[0-3]`, `any:7`, and Slurm's `afterok:7:9` and `afterany:7`."""
    found = []
    for part in domain.split_words(text) or [text]:
        kind, *ids = domain.split_words(part, ":") if re.match("[a-z]+:", part) else ("ok", part)
        need = _NEEDS.get(kind)
        try:
            words = domain.read_job_words(ids)
        except ValueError:
            words = []
        if need is None or not words:
            raise ValueError(
                f"must be job ids such as 7, 7,9, 38_[0-3] or any:7, got {quantities.quoted_text(text)}"
            )
        found += [domain.Dependency(job_id=domain.JobId(str(word)), need=need) for word in words]
    return tuple(found)


def notify(text: str) -> tuple[str, ...]:
    """Kinds of messages, and addresses of mail."""
    return domain.read_notify([word for part in text.split(",") if (word := part.strip())])


def link(text: str) -> str:
    if not domain.is_link(text.replace("{job}", "")):
        raise ValueError(f"{domain.LINK_FORMS}, got {quantities.quoted_text(text)}")
    return text


def exported_names(text: str) -> tuple[str, ...]:
    """`ALL`, `NONE`, or names; `NAME=VALUE` is `--env`."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(re.fullmatch(r"[A-Za-z_]\w*", each) for each in names):
        given = quantities.quoted_text(text)
        raise ValueError(f"must be ALL, NONE or names of variables, got {given} (use --env NAME=VALUE)")
    return names


def profile(text: str) -> Profile | str:
    """`auto`, `never`, `full`, or a measured profile from a JSON file."""
    if text in PROFILE_WORDS:
        return text
    try:
        file = Path(text).expanduser()
        if file.stat().st_size > PROFILE_BYTES_MAX:
            raise ValueError(f"file {text} is larger than {PROFILE_BYTES_MAX} bytes")
        content: object = decode_json(file.read_bytes(), Any, bytes_max=PROFILE_BYTES_MAX)
        found = content.get("profile", content) if isinstance(content, dict) else content
        return msgspec.convert(found, Profile)
    except FileNotFoundError:
        raise MissingFile(f"file {text} does not exist") from None
    except OSError as error:
        raise ValueError(f"file {text} cannot be read: {error.strerror}") from None
    except (BadMessage, msgspec.ValidationError) as error:
        raise ValueError(f"file {text} is not a measured profile: {error}") from None
    except RuntimeError as error:  # `~name` of nobody.
        raise ValueError(f"file {text} cannot be read: {error}") from None


OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "gpus",
        "N|MIN-MAX|PART",
        quantities.gpu_range,
        "GPUs, one worker on each (default 1); 1-4: any number, changed as it trains; 0.5: half of one",
        short="-g",
    ),
    Option("nodes", "N", quantities.count, "spread over N hosts, equally many GPUs on each", short="-N"),
    Option("time", "TIME", quantities.time_limit_s, f"time limit: {quantities.DURATION_FORMS}", short="-t"),
    Option(
        "budget",
        "TIME",
        quantities.duration_s,
        "train so long, counted as if it were alone; then it has finished",
    ),
    Option("expect", "TIME", quantities.duration_s, "how long you expect it to train, alone"),
    Option("by", "TIME", moment, "promise that it ends by then (+2h, 14:05, ISO), or refuse it and say when"),
    Option(
        "promise",
        "",
        quantities.yes_or_no,
        "promise the earliest end that can be kept, and keep it",
        switch=True,
    ),
    Option(
        "if_possible",
        "",
        quantities.yes_or_no,
        "with --by or --promise: where no such end can be promised, submit it without one",
        switch=True,
    ),
    Option("mem", "SIZE", quantities.size_mib, "peak device memory of one worker, such as 8G or 512M"),
    Option("cpus", "N", quantities.count, "CPU cores per host"),
    Option("host_mem", "SIZE", quantities.size_mib, "main memory per host"),
    Option("name", "NAME", name, "a name to recognise it by", short="-J"),
    Option("batch_size", "N", quantities.count, "batch per worker; default: as its loader has it"),
    Option("iterations", "N", quantities.count, "optimizer steps in all; known, its end can be told"),
    Option(
        "accumulate",
        "auto|mean|equivalent|never",
        accumulate_wish,
        "whether a script's batches may be split without changing it (auto: where that is exact; equivalent: "
        "also where parts draw other random numbers; mean: also where only you say that the loss is a mean "
        "over rows; both: mean,equivalent)",
    ),
    Option(
        "checkpoint",
        "auto|never",
        choice("auto", "never"),
        "whether a script is saved and resumed without changing it (default: when asked to leave; auto: also "
        "now and then)",
    ),
    Option(
        "progress",
        "auto|never",
        choice("auto", "never"),
        "whether the steps of a torch script are counted without changing it (default: auto)",
    ),
    Option(
        "share",
        "auto|never|max=X",
        share_wish,
        "whether it may share its GPUs (auto: within the cluster's bound); max=1.1: if its steps take at "
        "most 1.1 times as long as alone (max=none: however long)",
    ),
    Option(
        "idle",
        "none|STEP:TIME,...",
        idle_rule,
        "what is done while it holds its GPUs without any kernel, step or input: warn:30m, share:1h (others "
        "may use them until it works again), stop:2h (saved and held, or cancelled); default: [idle]",
    ),
    Option(
        "class",
        "hp|spot",
        choice("hp", "spot"),
        "class hp is never preempted (default: that of the organisation, else spot)",
    ),
    Option("priority", "N", quantities.priority, "greater goes first, before the policy's order (default 0)"),
    Option("organisation", "NAME", one_word, "on whose behalf: limits and fair share may go by it"),
    Option("gpu_type", "TYPE", one_word, "only on this type (see `cotenant nodes`)"),
    Option(
        "constraint", "WORD,...", quantities.word_list, "only on hosts with all these features", listed=True
    ),
    Option("workdir", "DIR", path, "where it runs (default: here)", short="-D"),
    Option(
        "snapshot",
        "git|copy",
        choice("git", "copy"),
        "run the working tree as it is now: the files that git tracks, or all of the folder",
    ),
    Option("snapshot_add", "PATH", path, "a file or folder that the snapshot takes along", repeat=True),
    Option(
        "image",
        "NAME|FILE",
        path,
        "run in a container of this image (podman, docker or apptainer, as the host has): a name, an archive "
        "or a .sif",
    ),
    Option(
        "mount",
        "SRC[:DST[:ro]]",
        path,
        "with --image: a file or folder of the host that the container sees, besides the working directory",
        repeat=True,
    ),
    Option("output", "FILE", output_path, "its output also goes there; %j job, %a attempt, %r rank"),
    Option(
        "retries", "N", quantities.count_from_zero, "start it again after N failures of its own (default 0)"
    ),
    Option(
        "requeue_at_limit",
        "N",
        quantities.count_from_zero,
        "at its time limit save and queue again, up to N times",
    ),
    Option("env", "NAME=VALUE", variable, "set a variable; NAME alone copies yours", repeat=True),
    Option(
        "export", "NAMES", exported_names, "copy these variables as well: ALL, NONE, or names", listed=True
    ),
    Option("after", "JOB", dependencies, "only after JOB finished; any:JOB: ended at all", repeat=True),
    Option(
        "array",
        "LIST",
        quantities.array_tasks,
        "one task per index: 0-9, 1,3,7 or 0-20:5; %2: two at once",
        short="-a",
        listed=True,
    ),
    Option(
        "grid",
        "NAME=VALUES",
        quantities.grid_values,
        "one task per value, of several grids per combination: lr=.1,.01 or seed=0..4; {NAME} in the command "
        "is the value; %2: two at once",
        repeat=True,
    ),
    Option(
        "link", "URL", link, "its page elsewhere, {job} being its number (default: what W&B or MLflow prints)"
    ),
    Option(
        "notify",
        "KIND,...",
        notify,
        f"when you are told, and where: {domain.NOTIFY_FORMS} (default: as `notify.kinds` says)",
        listed=True,
    ),
    Option(
        "launch",
        "worker|host|process",
        choice("worker", "host", "process"),
        "start the command per GPU, per host, or once (default: as the script needs it)",
    ),
    Option(
        "devices_as",
        "index|uuid",
        choice("index", "uuid"),
        "what CUDA_VISIBLE_DEVICES holds (default: uuid); index: for what cannot read UUIDs, without MPS",
    ),
    Option(
        "cold", "", quantities.yes_or_no, "do not fork its ranks from one that has its packages", switch=True
    ),
    Option(
        "begin",
        "TIME",
        begin_moment,
        "not before TIME: 18:00, tomorrow 9:00, Fri 18:00, now+2h, ISO",
    ),
    Option("hold", "", quantities.yes_or_no, "do not start it before `cotenant release`", switch=True),
    Option(
        "profile",
        "auto|never|full|FILE",
        profile,
        "measure it in place (auto), never, with the full series first, or take a profile from a JSON file",
    ),
    Option(
        "watchdog",
        "auto|off|TIME",
        watchdog_s,
        "how long it may make no step and stand still before it is taken to hang",
    ),
    Option("resumable", "yes|no|auto", tri_state, "whether it can resume (default: ask the job)"),
)

BY_KEY: Final[Mapping[str, Option]] = {option.key: option for option in OPTIONS}
BY_FLAG: Final[Mapping[str, Option]] = {flag: option for option in OPTIONS for flag in option.flags}
CONTAINERS: Final = "cotenant starts containers itself: name the image with --image"


def read(option: Option, texts: tuple[str, ...], where: str) -> Given:
    """The value of an option as written, one text or (where it may repeat) several.

    Raises:
        BadSubmission: it does not parse; the message names the place.
    """
    try:
        values = tuple(option.parse(text) for text in texts)
    except ValueError as error:
        subject = where if where == option.flag else f"{where}: {option.key}"
        raise BadSubmission(f"{subject} {error}", missing=isinstance(error, MissingFile)) from None
    return Given(value=values if option.repeat else values[-1], where=where)


def merge_options(*layers: Options) -> Options:
    """Merges layers of options: later layers win; what may repeat is collected over all of them."""
    result: Options = {}
    for layer in layers:
        for key, given in layer.items():
            earlier = result.get(key)
            if earlier is not None and BY_KEY[key].repeat:
                given = Given(value=(*earlier.value, *given.value), where=given.where)
            result[key] = given
    return result


def option_of(key: str, where: str) -> Option:
    """The option with this key. Raises BadSubmission: there is none, with the nearest."""
    if key in BY_KEY:
        return BY_KEY[key]
    if key == "container":
        raise BadSubmission(f"{where}: {CONTAINERS}")
    known = [*BY_KEY, "command"]
    raise BadSubmission(
        f"{where}: unknown key {key!r}", suggestion(key.lower(), known) or f"keys are {', '.join(known)}"
    )


def flag_values(words: Sequence[str], where: str, switch: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Flags and values of `--flag value`, `--flag=value`, `-f value`, `-fvalue`; `yes` for a switch."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
        elif word.startswith("-") and len(word) > 1:
            flag, value = word[:2], word[2:].removeprefix("=")
            equals = value
        else:
            raise BadSubmission(f"{where}: {word!r} is not an option")
        if switch(flag):
            yield flag, "yes"
        elif equals:
            yield flag, value
        elif rest:
            yield flag, rest.pop(0)
        else:
            raise BadSubmission(f"{where}: {flag} needs a value")


def refuse_all(problems: Sequence[BadSubmission], subject: str) -> None:
    """Refuses a subject for its problems. Raises BadSubmission: what is wrong, all of it."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise BadSubmission(f"{subject} has {len(problems)} problems", parts=problems)
