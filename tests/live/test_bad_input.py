"""Mistakes at the command line, with a real controller: one line that helps, the right code, no harm done.

What each option refuses is tested in tests/controller/cli; here is one of each kind, as a person meets it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.person import Person, at_home

VERBS_OF_JOBS = ("show", "logs", "cancel", "wait")


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """With two devices, and a job on one of them that all the mistakes must not touch."""
    with at_home(tmp_path_factory.mktemp("p"), agent__devices="cpu:2") as made:
        waiter = "while [ ! -e go ]; do sleep 0.05; done; echo undisturbed"
        made.submit("-J", "bystander", "--", "sh", "-c", waiter)
        made.until_state("1", "running", "loading")
        yield made


USAGE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "verb": (("sumbit",), ("no verb 'sumbit'", "did you mean `cotenant submit`?")),
    "flag": (("submit", "--gpuz", "2", "--", "true"), ("--gpuz", "did you mean --gpus?")),
    "nothing": (("submit",), ("no command was given", "--")),
    "no GPU": (("submit", "-g", "0", "--", "true"), ("--gpus must be at least 1, got 0",)),
    "time": (("submit", "-t", "5x", "--", "true"), ("--time must be a duration (90s, 10m", "'5x'")),
    "no time": (("submit", "-t", "0", "--", "true"), ("--time must be above 0", "'0'")),
    "size": (("submit", "--mem", "3Q", "--", "true"), ("--mem must be a size such as 8G", "'3Q'")),
    "huge size": (("submit", "--host-mem", "9999T", "--", "true"), ("a size that a machine can have",)),
    "command": (("submit", "--", "nosuchcommand"), ("no command 'nosuchcommand' on your PATH",)),
    "script": (
        ("run", "--", "python3", "trian.py"),
        ("trian.py does not exist in", "did you mean train.py?"),
    ),
    "not executable": (("submit", "--", "./train.py"), ("not executable", "python ./train.py")),
    "workdir": (("submit", "--workdir", "/nowhere", "--", "true"), ("/nowhere does not exist", "--workdir")),
    "output": (("submit", "--output", "/nowhere/x", "--", "true"), ("/nowhere, does not exist", "mkdir -p")),
    "output folder": (("submit", "--output", ".", "--", "true"), ("is a folder", "name a file in it")),
    "after": (("submit", "--after", "999", "--", "true"), ("job 999", "`cotenant queue --all`")),
    "variable": (("submit", "--env", "NOT_SET", "--", "true"), ("no variable NOT_SET", "NOT_SET=VALUE")),
    "policy": (("policy", "set", "magic"), ("no policy 'magic'", "fifo")),
    "endpoint": (("queue", "--endpoint", "http://x"), ("neither ipc:///PATH nor tcp://HOST:PORT",)),
    "folder": (("submit", "folder.yaml"), ("is a folder",)),
}


@pytest.mark.parametrize("case", USAGE)
def test_a_wrong_word_is_named_with_what_to_do(person: Person, case: str) -> None:
    person.write("train.py", "print('hello')\n")
    person.write("train.yaml", "command: python3 train.py\n")
    (person.work / "folder.yaml").mkdir(exist_ok=True)
    words, says = USAGE[case]
    person(*words).refuses(2, *says)


def test_a_file_that_is_not_there_is_not_found(person: Person) -> None:
    person.write("train.yaml", "command: python3 train.py\n")
    person("submit", "trian.yaml").refuses(3, "trian.yaml does not exist", "did you mean train.yaml?")


FILES = {
    "unknown key": ("command: 'true'\ngpu: 2\n", "x.yaml:2: unknown key 'gpu'; did you mean gpus?"),
    "malformed": ("command: [unclosed\n", "not valid YAML"),
    "no command": ("gpus: 1\n", "there is no `command`"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_wrong_file_is_named_with_its_line(person: Person, case: str) -> None:
    text, says = FILES[case]
    person.write("x.yaml", text)
    person("submit", "x.yaml").refuses(2, "x.yaml", says)


def test_a_wrong_line_of_a_script_is_named(person: Person) -> None:
    person.write("job.sh", "#!/bin/sh\n#COTENANT --gpuz 2\ntrue\n")
    person("submit", "job.sh").refuses(2, "job.sh:2: #COTENANT", "did you mean --gpus?")


NEVER = {
    "too many GPUs": (("-g", "3", "--launch", "worker"), "needs 3 devices; the largest possible placement"),
    "too many GPUs of a host": (
        ("-g", "3", "--launch", "process"),
        "needs 3 devices on one host; the largest",
    ),
    "too many hosts": (("-N", "2", "--launch", "host"), "on 2 nodes"),
    "device memory": (("--mem", "9999G"), "the largest device offers"),
    "feature": (("--constraint", "fast"), "no host has the feature fast"),
    "cores": (("--cpus", "5000"), "needs 5000 cores on one host"),
}


@pytest.mark.parametrize("case", NEVER)
def test_what_can_never_run_here_is_refused_at_once(person: Person, case: str) -> None:
    flags, says = NEVER[case]
    person("submit", *flags, "--", "true").refuses(6, "it can never run here", says, "`cotenant nodes`")


@pytest.mark.parametrize("verb", VERBS_OF_JOBS)
def test_a_job_that_does_not_exist(person: Person, verb: str) -> None:
    person(verb, "99999").refuses(3, "no job 99999", "`cotenant queue --all`")


def test_what_else_does_not_exist(person: Person) -> None:
    person("nodes", "drain", "nowhere").refuses(3, "no host nowhere", "`cotenant nodes`")
    person("logs", "1", "--rank", "7").refuses(3, "job 1 has only rank 0, no rank 7")
    person("logs", "1", "--attempt", "7").refuses(3, "job 1 has had 1 attempt, there is no attempt 7")


@pytest.mark.parametrize("verb", ["queue", "submit"])
def test_no_controller(person: Person, verb: str) -> None:
    words = ("--", "true") if verb == "submit" else ()
    nobody = f"ipc://{person.home}/nobody.sock"
    answer = person(verb, *words, COTENANT_CONTROLLER__ENDPOINT=nobody)
    answer.refuses(5, f"no controller at {nobody}", "`cotenant up`")


def test_a_folder_that_is_gone(person: Person) -> None:
    gone = person.work / "gone"
    gone.mkdir()
    answer = person.shell('cd gone && rmdir ../gone && exec "$@"', "submit", "--", "true")
    answer.refuses(2, "the folder you are in does not exist any more")


def test_a_wrong_setting_is_named_by_every_verb(person: Person) -> None:
    person("queue", COTENANT_AGENT__DEVICE="cpu:2").refuses(
        2, "COTENANT_AGENT__DEVICE", "did you mean `agent.devices`?"
    )
    bad = person.write("bad.toml", "[agent]\nheartbeat_s = 0\n")
    person("queue", COTENANT_CONFIG=str(bad)).refuses(2, f"{bad}:2", "must be above 0")


def test_nothing_of_it_did_any_harm(person: Person) -> None:
    """Runs last: no mistake left a job behind, and the one that ran beside them all ends well."""
    assert person("queue", "--all", "-o", "id").out.split() == ["1"]
    person.write("go", "")
    assert person("wait", "1").code == 0
    assert person.logs("1") == "undisturbed\n"
    assert person.free_devices() == 2
