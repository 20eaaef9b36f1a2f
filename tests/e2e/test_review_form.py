"""The form in which a reviewer decides a promotion: who may, what a page under test may not, and who decides first."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
import time

import httpx
import pytest
from browser_pages import SETTINGS
from click.testing import CliRunner
from hostile import Page, Site
from processes import PATIENCE_S
from reviews import waiting

from flywheel.cli import bench, main
from flywheel.evaluation import promotion_review
from flywheel.pipeline import stage
from flywheel.utils import credentials
from flywheel.utils.errors import FlywheelError
from flywheel.utils.progress import replace_listener

pytestmark = pytest.mark.usefixtures("prefect")


def asking(ctx: stage.StageContext):
    from prefect import flow

    from flows.human_input import ask_reviewer
    from flows.run_progress import StageRecorder

    @flow(name="asks")
    def asks() -> None:
        ask_reviewer(ctx, StageRecorder(ctx))

    return asks


def paused_run(client, deadline: float):
    from prefect.client.schemas.objects import StateType

    while time.monotonic() < deadline:
        for run in client.read_flow_runs(sort="START_TIME_DESC", limit=10):
            if run.state_type == StateType.PAUSED:
                return run
    pytest.fail("the flow did not pause")


def resume(client, run, answer: dict, deadline: float) -> None:
    """Prefect shows a run as paused before the form's schema is there; until then it rejects every answer."""
    from prefect.client.schemas import SetStateStatus

    while time.monotonic() < deadline:
        result = client.resume_flow_run(run.id, run_input=answer)
        if result.status == SetStateStatus.ACCEPT:
            return
    pytest.fail(f"Prefect did not take the answer: {result.details.reason}")


# What a page does that knows where the server is and which run waits.
_ATTACK = """(async () => {
  const ask = async (path, body, mode) => (await fetch("%s/api" + path, {
    method: "POST", mode, body: JSON.stringify(body),
    headers: {"Content-Type": mode ? "text/plain" : "application/json"},
  })).status;
  const answers = [], answer = {run_input: {decision: "promote", reviewer: "the page under test", comment: ""}};
  for (const mode of [undefined, "no-cors"])
    for (const path of ["/flow_runs/filter", "/flow_runs/%s/resume"])
      answers.push(await ask(path, answer, mode).catch(() => "no answer"));
  return answers;
})()"""


async def attack_from_a_page(url: str, run: str, monkeypatch) -> list[list]:
    """What a page's script is told in the sandbox, and in a browser that nothing guards."""
    monkeypatch.syspath_prepend(str(bench.BENCHMARKS_FOLDER))
    ways, told = importlib.import_module("sandbox_loopback"), []
    with Site({"page": Page()}) as site:
        for guard in (contextlib.nullcontext, ways.unguarded):
            with guard():
                async with ways.one_tab(SETTINGS) as tab:
                    await tab.open(f"{site.url}/p/page", seed=0, allowed=(site.url,))
                    told.append(await tab.evaluate(_ATTACK % (url, run)))
    return told


def attack_by_name(url: str, run: str, **headers: str) -> set[int]:
    """The states that another client gets, such as a browser whose page gave its own name this machine's address."""
    answer = {"run_input": {"decision": "promote", "reviewer": "the page under test", "comment": ""}}
    return {
        httpx.post(f"{url}/api{path}", json=answer, headers=headers, timeout=PATIENCE_S).status_code
        for path in ("/flow_runs/filter", f"/flow_runs/{run}/resume", "/variables/")
    }


def test_a_reviewer_decides_in_prefects_form_and_nobody_without_the_secret(ws, prefect, monkeypatch):
    from prefect.client.orchestration import get_client

    ctx, failures = waiting(ws, PATIENCE_S), []

    def run() -> None:
        try:
            asking(ctx)()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with get_client(sync_client=True) as client:
        paused = paused_run(client, time.monotonic() + PATIENCE_S)
        url, served = prefect
        host, login = (
            url.removeprefix("http://"),
            credentials.basic_auth_header(credentials.workspace_credentials(served.state)),
        )
        in_sandbox, unguarded = asyncio.run(attack_from_a_page(url, str(paused.id), monkeypatch))
        assert set(in_sandbox) == {"no answer"}
        assert set(unguarded) == {"no answer", 0}  # it may send what needs no leave, and cannot read the refusal
        assert attack_by_name(url, paused.id) == {401}
        assert attack_by_name(url, paused.id, authorization=credentials.basic_auth_header("flywheel:guessed")) == {401}
        assert attack_by_name(url, paused.id, host="evil.example", authorization=login) == {421}
        assert attack_by_name(url, paused.id, origin="http://evil.example", authorization=login) == {403}
        assert attack_by_name(url, paused.id, host=host, origin="http://127.0.0.1:1", authorization=login) == {403}
        assert client.read_flow_run(paused.id).state_type == paused.state_type
        assert promotion_review.read_review(ws, 1) is None
        answer = {"decision": "promote", "reviewer": "Ada", "comment": "sites are better"}
        resume(client, paused, answer, time.monotonic() + PATIENCE_S)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert failures == []
    decided = promotion_review.read_review(ws, 1)
    assert (decided.promote, decided.reviewer, decided.comment) == (True, "ada", "sites are better")


def test_a_reviewer_who_does_not_come_is_an_error_with_a_name(ws):
    with pytest.raises(FlywheelError, match="no reviewer answered in 1 s"):
        asking(waiting(ws, 1, "fail"))()
    assert promotion_review.read_review(ws, 1) is None


def test_where_nobody_decides_the_old_model_stays_and_the_run_goes_on(ws):
    from prefect.client.orchestration import get_client

    run = asking(waiting(ws, 1)).with_options(flow_run_name="nobody comes")
    run()
    decided = promotion_review.read_review(ws, 1)
    assert (decided.promote, decided.reviewer) == (False, "nobody")
    assert decided.comment == "no reviewer answered in 1 s"
    with get_client(sync_client=True) as client:
        states = {one.name: one.state_name for one in client.read_flow_runs(sort="START_TIME_DESC", limit=5)}
    assert states["nobody comes"] == "Completed"


def test_a_decision_that_is_there_is_not_asked_for_again(ws):
    ctx = waiting(ws, 1)
    promotion_review.decide_promotion(ws, 1, promote=False, reviewer="Bo", comment="")
    asking(ctx)()
    assert promotion_review.read_review(ws, 1).reviewer == "bo"


def test_a_paused_run_sees_the_decision_of_the_command(ws):
    ctx, failures, said = waiting(ws, PATIENCE_S), [], []

    def run() -> None:
        try:
            with replace_listener(lambda stage, line: said.append((time.monotonic(), line))):
                asking(ctx)()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        paused_run(client, time.monotonic() + PATIENCE_S)
    result = CliRunner().invoke(
        main, ["review", "promotion", "-k", "1", "--keep", "--reviewer", "Bo", "-w", str(ws.root)]
    )
    assert result.exit_code == 0, result.output
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert failures == []
    assert (
        promotion_review.read_review(ws, 1).reviewer,
        promotion_review.read_review(ws, 1).promote,
        promotion_review.read_review(ws, 1).earlier,
    ) == ("bo", False, ())
    assert any("waits for a reviewer" in line for _, line in said)
    assert any("decided: keep (bo" in line for _, line in said)
