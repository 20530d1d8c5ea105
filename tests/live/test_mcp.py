"""`cotenant mcp` as the SDK's own client uses it, with a real controller and agent."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.building.limits import within_s
from tests.live.person import COTENANT, Person, at_home

SECRET = "hush-hush-42"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    settings = {"agent__devices": "cpu:1", "profiler__seconds": "0", "controller__eta_share": "0.1"}
    with at_home(tmp_path_factory.mktemp("h"), **settings) as someone:
        yield someone


class Agent:
    """A client that calls tools."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        result = await self._client.call_tool(name, arguments)
        assert not result.is_error, result.content
        return dict(result.structured_content)

    async def fails(self, name: str, **arguments: Any) -> str:
        result = await self._client.call_tool(name, arguments)
        assert result.is_error, result.structured_content
        return str(result.content)

    async def previewed(self, verb: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the preview said, and what came of the change."""
        preview = await self.call(f"preview_{verb}", **arguments)
        return preview, await self.call(verb, **arguments, token=preview["token"])


def test_an_agent_asks_submits_reads_sets_and_cancels(person: Person) -> None:
    server = StdioServerParameters(
        command=COTENANT[0], args=[*COTENANT[1:], "mcp", "--allow-writes"], env=person.env, cwd=person.work
    )

    async def work() -> None:
        with (person.home / "mcp.log").open("w") as log:
            async with Client(stdio_client(server, errlog=log)) as client:
                await use(Agent(client), person)

    anyio.run(work)
    assert "Traceback" not in (person.home / "mcp.log").read_text()


async def use(agent: Agent, person: Person) -> None:
    assert (await agent.call("queue"))["jobs"] == []
    assert [len(node["devices"]) for node in (await agent.call("nodes"))["nodes"]] == [1]
    assert (await agent.call("report"))["schema"] == "report/1"
    assert (await agent.call("what_if", command=["sleep", "60"]))["at_once"]
    refused = await agent.fails("preview_submit", command=["sleep", "1"], options={"gpus": 64})
    assert "never-fits" in refused and "largest possible placement here has 1" in refused

    printing = {"command": ["python", "-c", "import os; print('key', len(os.environ['MY_TOKEN'])); 1 / 0"]}
    printing["options"] = {"env": [f"MY_TOKEN={SECRET}"], "name": "breaks"}  # type: ignore[assignment]
    preview, submitted = await agent.previewed("submit", **printing)
    assert preview["dry_run"] and preview["would_submit"]["jobs"] == 1 and preview["foreseen"]["rows"]
    (job,) = submitted["jobs"]
    await asyncio.to_thread(person, "wait", job)
    output = (await agent.call("logs", job=job, lines=5))["output"]
    assert output[-1] == "ZeroDivisionError: division by zero"
    details = await agent.call("job", job=job)
    assert details["state"] == "failed" and details["spec"]["launch"]["secrets"] == ["MY_TOKEN"]
    assert SECRET not in json.dumps([preview, submitted, details, await agent.call("queue", ended=True)])

    sleeping = {"command": ["sleep", "600"], "options": {"array": "0-1", "share": "never"}}
    _, submitted = await agent.previewed("submit", **sleeping)
    first, second = submitted["jobs"]
    await asyncio.to_thread(person.until_state, first, "loading", "running")
    assert (await agent.call("explain", job=second))["state"] in ("queued", "blocked")
    assert {each["job"] for each in (await agent.call("eta"))["etas"]} == {first, second}
    preview, changed = await agent.previewed("set", jobs=[second], changes={"priority": 3})
    assert preview["jobs"] == [{"job": second, "changes": {"priority": {"old": 0, "new": 3}}}]
    assert person.job(second)["priority"] == 3 and changed["lines"] == [f"job {second}: priority 0 -> 3"]

    array = first.partition("_")[0]
    stale = (await agent.call("preview_cancel", jobs=[array]))["token"]
    preview, _ = await agent.previewed("cancel", jobs=[second])
    (cancelled,) = preview["jobs"]
    assert cancelled["consequence"] == "It leaves the queue and is not started again."
    assert "does not hold any more" in await agent.fails("cancel", jobs=[array], token=stale)
    assert person.job(first)["state"] in ("loading", "running")
    await agent.previewed("cancel", jobs=[first])
    await asyncio.to_thread(person.until_state, first, "cancelled")
    assert (await agent.call("queue"))["jobs"] == []


@pytest.mark.parametrize("end", ["standard input ends", "SIGTERM"])
def test_standard_output_is_the_protocol_alone_and_the_server_ends(person: Person, end: str) -> None:
    server = subprocess.Popen(
        [*COTENANT, "mcp"],
        env={**person.env, "COTENANT_CONTROLLER__ENDPOINT": "ipc:///nowhere/c.sock"},
        cwd=person.work,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(INITIALIZE) + "\n")
        server.stdin.flush()
        assert json.loads(server.stdout.readline())["result"]["serverInfo"]["name"] == "cotenant"
        if end == "SIGTERM":
            server.send_signal(signal.SIGTERM)
            server.wait(within_s(30))
        out, err = server.communicate(timeout=within_s(30))
        assert (out, err) == ("", "")
        assert server.returncode == (-signal.SIGTERM if end == "SIGTERM" else 0)
    finally:
        server.kill()
        server.communicate()


def test_a_key_that_nobody_would_look_at_is_refused(person: Person, tmp_path: Path) -> None:
    person("mcp", "--key", str(tmp_path / "user-ann.key")).refuses(2, "on a Unix socket the account decides")
