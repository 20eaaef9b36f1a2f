"""Query the catalogue for the report's figures and tables, and draw its charts of P(V = 1), success and losses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import duckdb

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store.catalog import database
from flywheel.store.schema import ALL_DOMAINS
from flywheel.ui.report import charts, replay
from flywheel.ui.report.charts import Chart, ChartMark, ChartSeries
from flywheel.ui.report.charts import tone_class as _tone
from flywheel.utils.errors import DataError, FlywheelError

Row = dict[str, Any]
_STEPS_SHOWN = 8
_QUERIES = database.read_queries("flywheel.ui.report")


def query_report_iterations(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """Query the view `iterations`, a dict by column for each iteration, oldest first.

    connection: to the catalogue. Each row also has `held_out_success` (domain -> row of the view, `all` included; empty
    where the iteration was not evaluated) and the promotion's `reason` (None where none was decided). Raises as
    `run_query`.
    """
    found = database.query_rows(
        connection, "SELECT i.*, p.reason FROM iterations i LEFT JOIN promotions p USING (iteration) ORDER BY iteration"
    )
    success = defaultdict(dict)
    for row in database.query_rows(connection, "FROM held_out_success"):
        success[row["iteration"]][row["domain"]] = row
    for row in found:
        row["held_out_success"] = success[row["iteration"]]
    return found


def list_evaluated_domains(rows: list[Row]) -> list[str]:
    """List the domains evaluated in any iteration, sorted, without `all`. rows: of `query_report_iterations`."""
    return sorted({name for row in rows for name in row["held_out_success"]} - {ALL_DOMAINS})


def draw_p_v1(connection: duckdb.DuckDBPyConnection, since: int = 0) -> Chart | None:
    """Draw P(V = 1) per iteration; None without data.

    connection: to the catalogue. since: 0: with intervals; else as curves over all iterations, without intervals.
    Raises as `run_query`.
    """
    rows = database.query_rows(connection, "FROM p_v1")
    if not rows:
        return None
    names = [ALL_DOMAINS, *sorted({row["domain"] for row in rows} - {ALL_DOMAINS})]
    by_key = {(row["iteration"], row["domain"]): row for row in rows}
    numbers = sorted({row["iteration"] for row in rows})
    title = "P(V = 1) per iteration"
    if since:
        points = {name: tuple((k, by_key[k, name]["p"]) for k in numbers if (k, name) in by_key) for name in names}
        lines = [ChartSeries(name, _tone(name), found) for name, found in points.items()]
        drawn = charts.draw_lines(lines, title=title, x_label="iteration", percent=True)
    else:
        groups = [
            (iteration_label(k), [(_tone(name), _p_v1_mark(by_key.get((k, name)), name)) for name in names])
            for k in numbers
        ]
        drawn = charts.draw_intervals(groups, title=title)
    return Chart(
        "P(V = 1) on new tasks",
        "Rollouts of the newest model, before it trains on them.",
        drawn,
        tuple((name, _tone(name)) for name in names),
    )


def draw_held_out_success(rows: list[Row], since: int = 0) -> list[Chart]:
    """Draw the held-out success before and after each iteration later than `since`, one chart per domain.

    rows: of `query_report_iterations`.
    """
    result = []
    for domain in list_evaluated_domains(rows):
        groups = []
        for row in rows:
            found = row["held_out_success"].get(domain) if row["iteration"] > since else None
            if found:
                marks = [
                    (f"{_tone(domain)} before", _success_mark(found, "before")),
                    (_tone(domain), _success_mark(found, "after")),
                ]
                groups.append((iteration_label(row["iteration"]), marks))
        cases = max(row["held_out_success"][domain]["n"] or 0 for row in rows if domain in row["held_out_success"])
        result.append(
            Chart(
                f"Held-out success, {domain}",
                f"{cases} episodes a model.",
                charts.draw_intervals(groups, title=f"Held-out success in {domain}"),
                (("before", f"{_tone(domain)} before"), ("after", _tone(domain))),
            )
        )
    return result


def draw_losses(connection: duckdb.DuckDBPyConnection, since: int = 0) -> list[Chart]:
    """Draw the losses of CT and SFT in iterations later than `since`, all but the newest one faint.

    connection: to the catalogue. Raises as `run_query`.
    """
    rows = database.query_rows(connection, _QUERIES["losses"], {"since": since})
    newest = max((row["iteration"] for row in rows), default=0)
    grouped: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        grouped[row["stage"]][row["iteration"]].append((row["step"], row["value"]))
    return [
        Chart(
            f"{stage.upper()} loss (nats)",
            "cross-entropy a trained token",
            charts.draw_lines(
                [
                    ChartSeries(iteration_label(k), _tone(stage), tuple(points), faint=k < newest)
                    for k, points in sorted(found.items())
                ],
                title=f"{stage} loss",
            ),
        )
        for stage, found in sorted(grouped.items())
    ]


def query_funnels(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """Query how many tasks and trajectories of the newest three iterations came through to the training stores.

    connection: to the catalogue. Returns a row an iteration: `iteration` (its label), `bars` and `rl` ((name, count,
    width in percent), from tasks to verified ones, and of RL), `stores` ((store, count, share in percent)), `came`
    and `stored` (numbers of trajectories). Raises as `run_query`.
    """
    by_iteration: dict[int, dict[str, int]] = defaultdict(dict)
    for row in database.query_rows(connection, "FROM funnel"):
        by_iteration[row["iteration"]][row["name"]] = row["rows"]
    result = []
    for k in sorted(by_iteration)[-3:]:
        counts = defaultdict(int, by_iteration[k])
        steps = (
            ("tasks made", "tasks"),
            ("rollouts", "rollouts"),
            *([("corrections", "corrections")] if counts["corrections"] else []),
            ("recordings", "recordings"),
            *([("annotated", "annotations")] if counts["annotations"] else []),
            *([("recordings reworded", "augmentations")] if counts["augmentations"] else []),
            ("scored", "scored"),
            ("verified, V = 1", "verified"),
        )
        after = (("tasks of RL", "rl_tasks"), ("sampled less", "rl_sampled_less"), ("episodes of RL", "rl_episodes"))
        widest = max(counts[key] for _, key in (*steps, *after)) or 1
        bars, rl = ([(name, counts[key], 100 * counts[key] / widest) for name, key in way] for way in (steps, after))
        total = counts["sft"] + counts["ct"] + counts["quarantine"]
        stores = [
            (name, counts[name], 100 * counts[name] / total if total else 0) for name in ("sft", "ct", "quarantine")
        ]
        incoming = ("rollouts", "corrections", "recordings", "annotations", "augmentations")
        came = sum(counts[name] for name in incoming)
        shown = {"iteration": iteration_label(k), "bars": bars, "stores": stores, "came": came, "stored": total}
        result.append(shown | {"rl": rl if counts["rl_tasks"] else []})
    return result


def read_made_funnels(ws: Workspace) -> list[Row]:
    """Read how many proposals became tasks, for the generated tasks that the settings name.

    These are in the folders of `synthesis.manifests` and `worlds`. Returns a row a folder (`place`) with such a record:
    its `funnel` (`read_funnel`), or the `fault` in words where it is damaged. Where the settings cannot be read there
    is one row, with a fault alone.
    """
    from flywheel.config import load_settings  # imported here, as `flywheel status` loads this module
    from flywheel.synthesis.funnel import list_funnel_folders, read_funnel

    try:
        settings = load_settings(ws.params)
    except FlywheelError as error:
        return [{"place": "", "funnel": None, "fault": str(error)}]
    rows = []
    for folder in list_funnel_folders(settings, ws.root):
        try:
            if funnel := read_funnel(folder):
                rows.append({"place": ws.relative(folder), "funnel": funnel, "fault": ""})
        except DataError as error:
            rows.append({"place": ws.relative(folder), "funnel": None, "fault": str(error)})
    return rows


def query_stage_minutes(connection: duckdb.DuckDBPyConnection, stages: Sequence[str]) -> tuple[list[int], list[Row]]:
    """Query how long the stages took, as a table of stages by iterations.

    connection: to the catalogue. stages: their order in the table. Returns the iterations, and one row per stage with
    `stage`, `minutes` (one entry per iteration; None where it did not run) and `width`, the bar of the newest
    iteration, 0 to 100. Raises as `run_query`.
    """
    rows = database.query_rows(connection, "FROM stage_minutes")
    numbers = sorted({row["iteration"] for row in rows})
    spent = {(row["stage"], row["iteration"]): row["minutes"] for row in rows}
    order = {name: number for number, name in enumerate(stages)}
    names = sorted({row["stage"] for row in rows}, key=lambda name: (order.get(name, len(order)), name))
    longest = max((spent.get((name, numbers[-1])) or 0 for name in names), default=0) or 1
    table = [
        {
            "stage": name,
            "minutes": [spent.get((name, k)) for k in numbers],
            "width": 100 * (spent.get((name, numbers[-1])) or 0) / longest,
        }
        for name in names
    ]
    return numbers, table


def query_alignment(connection: duckdb.DuckDBPyConnection, since: int = 0) -> tuple[list[Row], Row | None]:
    """Query how speech was recognized and aligned in each iteration later than `since`, with one utterance as example.

    connection: to the catalogue. Returns a row an iteration, with numbers of recordings and utterances, recognizer and
    alignment; and the row of one utterance with its `frame`, None without one. Raises as `run_query`.
    """
    table = database.query_rows(connection, _QUERIES["alignment"], {"since": since})
    figures = {
        (row["iteration"], row["name"]): row["value"]
        for row in database.query_rows(
            connection,
            "FROM metrics WHERE stage = 'ingest' AND domain = 'all' AND iteration > $since",
            {"since": since},
        )
    }
    for row in table:
        row["thoughtful"] = figures.get((row["iteration"], "steps_with_a_thought"))
    example = database.query_rows(connection, _QUERIES["utterance"], {"since": since})
    if not example:
        return table, None
    chosen = example[0]
    whole = replay.load_replay(connection, chosen["trajectory_id"])
    return table, chosen | {"frame": next(frame for frame in whole.frames if frame.number == chosen["step"])}


def pick_replays(
    connection: duckdb.DuckDBPyConnection, domains: Sequence[str], since: int = 0
) -> list[tuple[str, replay.Replay]]:
    """Pick up to five trajectories of iterations later than `since`, of different kinds and as new as possible.

    connection: to the catalogue. domains: of each of the first two a verified trajectory is picked. Returns pairs:
    reason of the choice, trajectory with its first eight steps. Raises as `run_query`.
    """
    kinds = (
        *(("Verified, joins SFT", f"destination = 'sft' AND domain = '{domain}'") for domain in domains[:2]),
        ("Not verified, joins CT", "destination = 'ct' AND source = 'rollout'"),
        ("Human demonstration, joins CT", "destination = 'ct' AND source = 'recording'"),
        ("Held-out episode, never routed", "stage = 'evaluate'"),
        ("Verified, joins SFT", "destination = 'sft'"),
        ("Not verified, joins CT", "destination = 'ct'"),
        ("Set aside", "destination = 'quarantine'"),
    )
    chosen: dict[str, str] = {}
    for why, condition in kinds:
        found = database.query_rows(connection, _QUERIES["replays"].format(condition=condition), {"since": since})
        fresh = next((row["trajectory_id"] for row in found if row["trajectory_id"] not in chosen), None)
        if fresh and len(chosen) < 5:
            chosen[fresh] = why
    loaded = ((why, replay.load_replay(connection, name, _STEPS_SHOWN)) for name, why in chosen.items())
    return [(why, one) for why, one in loaded if one]


def query_people_work(connection: duckdb.DuckDBPyConnection, ws: Workspace, since: int = 0) -> Row:
    """Query what people recorded, annotated and reviewed in iterations later than `since`, and how far they agree.

    connection: to the catalogue of `ws`. Returns `work`, rows by kind of work and skill; `agreement`, figures of
    reviewers' agreement by question, where two answered; `fault`, in words, where a file of people's verdicts is
    damaged, so that the report is written all the same; "": none is. Raises as `run_query` for other damaged files.
    """
    from flywheel.recordings.reviewing import measure_review_agreement  # imports numpy

    try:
        work = database.query_rows(connection, _QUERIES["people_work"], {"since": since})
        agreement = {name: one for name, one in measure_review_agreement(ws).items() if one.n}
    except DataError as error:
        if "reviews/" not in str(error.where):
            raise
        return {"work": [], "agreement": {}, "fault": str(error)}
    return {"work": work, "agreement": agreement, "fault": ""}


_LEAST_HEADROOM, _LEAST_LIVE_GROUPS = 0.05, 0.3  # below them RL has little to learn from
_TEMPLATES_SHOWN = 4  # at each end


def query_headroom(connection: duckdb.DuckDBPyConnection, since: int = 0) -> Row:
    """Query how much RL has to learn from (view `headroom`) in iterations later than `since`.

    connection: to the catalogue. Returns `domains`, its rows of whole domains; of the newest iteration `most` and
    `least`, up to four templates each with the most and the least headroom, none of them twice, and `poor`, the rows of
    domains (without `all`) with a headroom below 0.05 or a share of live groups below 0.3. Raises as `run_query`.
    """
    domains = database.query_rows(connection, _QUERIES["headroom"], {"since": since})
    templates = database.query_rows(connection, _QUERIES["headroom_templates"], {"since": since})
    newest = domains[-1]["iteration"] if domains else 0
    poor = [
        row
        for row in domains
        if row["iteration"] == newest
        and row["domain"] != ALL_DOMAINS
        and (row["headroom"] < _LEAST_HEADROOM or row["live_groups"] < _LEAST_LIVE_GROUPS)
    ]
    most, others = templates[:_TEMPLATES_SHOWN], templates[_TEMPLATES_SHOWN:]
    return {"domains": domains, "poor": poor, "most": most, "least": others[-_TEMPLATES_SHOWN:]}


def query_variance_rises(connection: duckdb.DuckDBPyConnection, since: int = 0) -> list[Row]:
    """Query where the reward's variance within RL's groups rose above its earlier band, in iterations after `since`.

    connection: to the catalogue. Returns a row a rise: `iteration`, `stage`, `first` and `last` (steps), `limit` (of
    the band), `reached` (the highest value), `scorers` (names, without versions). Raises as `run_query`.
    """
    from flywheel.evaluation.reward_variance import find_variance_rises  # imports numpy

    found = []
    for row in database.query_rows(connection, _QUERIES["group_variance"], {"since": since}):
        for first, last, limit in find_variance_rises(row["curve"]):
            at = {"first": row["steps"][first], "last": row["steps"][last], "limit": limit}
            scorers = sorted({name.partition("@")[0] for name in row["scorers"] or ()})
            found.append({**row, **at, "reached": max(row["curve"][first : last + 1]), "scorers": scorers})
    return found


def query_reward_audit(connection: duckdb.DuckDBPyConnection, since: int = 0) -> list[Row]:
    """Query the RL runs after iteration `since` whose audit proved that failed episodes are paid (`rl.audit_fraction`).

    connection: to the catalogue. Returns a row a run: `iteration`, `stage`, `first` (step), `paid_early` and
    `paid_late` (share of failed episodes that were paid, in the first and last third of the steps), `gap_late` (share
    paid less share done), `worst` (domain/world), `scorers` (names). Raises as `run_query`.
    """
    from flywheel.evaluation.reward_audit import ALARM  # imports numpy

    return database.query_rows(connection, _QUERIES["reward_audit"], {"since": since, "alarm": ALARM})


_LISTS = ("worlds", "rises", "by_stage", "looked_at", "quarantine", "drawn_for")


def query_report_lists(connection: duckdb.DuckDBPyConnection, since: int = 0) -> dict[str, list[Row]]:
    """Query the rows of the report's simple tables, by the table's name, of iterations later than `since`.

    connection: to the catalogue. The names are `worlds` (of the newest iteration), `rises`, `by_stage`, `looked_at`,
    `quarantine` and `drawn_for`. Raises as `run_query`.
    """
    return {name: database.query_rows(connection, _QUERIES[name], {"since": since}) for name in _LISTS}


def query_model_lineage(connection: duckdb.DuckDBPyConnection, since: int = 0) -> list[list[list[Row]]]:
    """Query the ancestors of the newest promoted model, as far as iterations later than `since` made them.

    connection: to the catalogue. Returns one list per iteration, oldest first, of ranks (checkpoints of equal depth),
    each a list of checkpoints with `name`, `path`, `turn` (label of the iteration), `drew` (datasets) and `trained`
    (number of trajectories). Raises as `run_query`.
    """
    newest = database.query_rows(connection, "SELECT model FROM promotions ORDER BY iteration DESC LIMIT 1")
    if not newest:
        return []
    links = {"began from": defaultdict(list), "drew from": defaultdict(list)}
    for relation, found in links.items():
        for row in database.query_rows(connection, _QUERIES["links"], {"relation": relation, "since": since}):
            found[row["child"]].append(row["parent"])
    parents, drew = links.values()
    depth = {newest[0]["model"]: 0}
    queue = [newest[0]["model"]]
    while queue:
        name = queue.pop(0)
        for parent in sorted(parents[name]):
            if depth.get(parent, -1) < depth[name] + 1:
                depth[parent] = depth[name] + 1
                queue.append(parent)
    counts = database.query_rows(connection, _QUERIES["trained"], {"shown": list(depth)})
    trained = {row["checkpoint"]: row["n"] for row in counts}
    ranks: dict[int, list[Row]] = defaultdict(list)
    for path, rank in sorted(depth.items()):
        folder, _, name = path.rpartition("/")
        turn = folder.removeprefix("models/iteration=") if "iteration=" in folder else ""
        node = {"path": path, "name": name, "turn": turn, "drew": drew[path], "trained": trained.get(path, 0)}
        ranks[rank].append(node)
    turns: dict[str, list[list[Row]]] = defaultdict(list)
    for rank in sorted(ranks, reverse=True):
        turns[ranks[rank][0]["turn"]].append(ranks[rank])
    return [turns[key] for key in sorted(turns)]


def _p_v1_mark(row: Row | None, name: str) -> ChartMark | None:
    if row is None or row["p"] is None:
        return None
    title = f"{name}: {row['verified']} of {row['scored']} ({100 * row['p']:.0f}%)"
    return ChartMark(row["p"], row["low"], row["high"], title)


def _success_mark(row: Row, side: str) -> ChartMark | None:
    if row[side] is None:
        return None
    title = f"{side}: {100 * row[side]:.0f}% of {row['n']}"
    return ChartMark(row[side], row[f"{side}_low"], row[f"{side}_high"], title)
