"""Rows of a workspace that has every awkward thing in it, drawn by a seed, and the catalogue over them.

Faults of form, crashes, RL, imports, a refused iteration, labels of what a rollback set aside, columns that came late
(null), runs that were killed and gone on with. Nothing is played, trained or routed: the rows alone.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from datetime import timedelta

import duckdb
import pyarrow as pa
from synthetic_rows import START, image_row

from flywheel.config import Settings, dump_settings
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store import lineage, partitions
from flywheel.store.catalog import database
from flywheel.store.schema import TABLES, fraction_metric_row, metric_row
from flywheel.store.versioning import dvc_files
from flywheel.utils.files import write_json, write_text

ITERATIONS = (1, 2, 3, 4)
REFUSED = (3,)
PLACES = (("games", "tiles"), ("games", "merge"), ("sites", "shop"))
LABELS = ("solved", "not solved", "cannot tell")
OTHER_KINDS = {
    "promotions": "iteration INTEGER, model VARCHAR, digest VARCHAR, promoted BOOLEAN, reason VARCHAR",
    "label_history": """iteration INTEGER, trajectory_id VARCHAR, label VARCHAR, comment VARCHAR, reviewer VARCHAR,
        queue VARCHAR, "at" TIMESTAMPTZ, file VARCHAR, line BIGINT""",
    "recording_verdicts": """subject VARCHAR, iteration INTEGER, sha256 VARCHAR, correct BOOLEAN, complete BOOLEAN,
        safe BOOLEAN, comment VARCHAR, reviewer VARCHAR, "at" TIMESTAMPTZ, file VARCHAR, line BIGINT""",
    "dvc_lock": "iteration INTEGER, content VARCHAR",
    "parameter_files": "iteration INTEGER, content VARCHAR",
    "decision_files": "iteration INTEGER, content VARCHAR",
    "fresh_evaluation_files": "iteration INTEGER, content VARCHAR",
}
Rows = dict[str, list[dict]]


def draw(seed: int) -> Rows:
    """Rows by table, each with iteration and stage, and those of the files beside the tables."""
    made = _Drawn(random.Random(seed))
    for k in ITERATIONS:
        made.iteration(k)
    made.labels()
    made.verdicts()
    made.rows["score_history"] += made.rows["scores"]
    return made.rows


class _Drawn:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.rows = rng, {name: [] for name in (*TABLES, "score_history", *OTHER_KINDS)}
        self.newest = {"model": "models/base", "digest": "d0"}
        self.rows["promotions"].append({"iteration": 0, **self.newest, "promoted": None, "reason": ""})
        self.tasks: dict[str, dict] = {}
        self.places: list[dict] = []  # of labels

    def add(self, table: str, k: int, stage: str, *rows: dict) -> None:
        self.rows[table] += [{"iteration": k, "stage": stage, **row} for row in rows]

    def iteration(self, k: int) -> None:
        rng, merged = self.rng, f"d{k}merged"
        train = [self.task(k, "synthesize", f"i{k}-{n}", "train") for n in range(8)]
        # The held-out tasks of the first two iterations are the same; then some are others.
        held = [self.task(k, "synthesize", f"held{n + 2 * (k > 2)}", "eval") for n in range(5)]
        fresh = [self.task(k, "evaluate", f"fresh{k}-{n}", "eval") for n in range(3)]
        for task in train:
            for sample in range(rng.choice((1, 2, 4, 16))):
                self.routed(k, "rollout", task, self.newest["digest"], sample)
        parent = {"parent_id": f"t{k}-rollout-{self.newest['digest']}-{train[0]['task_id']}-0", "start_step": k % 2}
        self.routed(k, "rollout", train[0], "corrected", 0, source="correction", author="solver", **parent)
        shown = self.task(k, "ingest", f"shown{k}", "train")
        foreign = self.task(k, "ingest", f"import:{k}", "train") | {"domain": "imported"}
        for n in range(2):
            person = {"author": "human", "annotator": f"person {n}", "skill": "novice"}
            self.routed(k, "ingest", shown, "human", n, source="recording", reward=None, **person)
            self.candidates(k, f"t{k}-ingest-human-{shown['task_id']}-{n}")
            parent = {"parent_id": f"t{k}-ingest-human-{shown['task_id']}-{n}"}
            self.routed(k, "ingest", shown, "human", 7 + n, source="augmentation", reward=None, **person, **parent)
            self.routed(k, "ingest", train[n], "human", 20 + n, source="annotation", author="human", annotator="ada")
            origin = {"origin": f"set:{k}{n}", "licence": "CC-BY-4.0", "level": None}
            self.routed(k, "ingest", foreign, "human", n, source="import", author="human", **origin)
        rivals = (merged, self.newest["digest"])
        for digest, tasks in ((merged, held), *((one, fresh) for one in rivals)):
            for task in tasks:
                for sample in range(3):
                    self.judged(k, "evaluate", self.episode(k, "evaluate", task, digest, sample))
        if k == 1 or self.newest["digest"] == "d0":
            for task in held:
                self.judged(k, "evaluate", self.episode(k, "evaluate", task, "d0", 9))
        for domain in ("games", "sites"):
            self.rl(k, domain, [task for task in train if task["domain"] == domain])
        self.models(k)
        self.metrics(k)
        self.runs(k)
        self.files(k)
        promoted = k not in REFUSED
        if promoted:
            self.newest = {"model": f"models/iteration={iteration_label(k)}/merged", "digest": merged}
        reason = "" if promoted else "worse"
        self.rows["promotions"].append({"iteration": k, **self.newest, "promoted": promoted, "reason": reason})

    def task(self, k: int, stage: str, name: str, split: str) -> dict:
        if name not in self.tasks:
            domain, world = self.rng.choice(PLACES)
            self.tasks[name] = {
                "task_id": name,
                "domain": domain,
                "world": world,
                "template": self.rng.choice(("clear", "fit")),
                "level": self.rng.choice((1, 2)),
                "instruction": f"Do {name}",
                "threshold": 1.0,
                "environment": None,  # a column that came late
                "drawn_for": self.rng.choice((None, "even", "weak")),
                "source": self.rng.choice(("templates", "questions", None)),
                "verifier_kill_rate": self.rng.choice((1.0, 0.95, 0.5, None)),
            }
        row = self.tasks[name] | {"split": split}
        self.add("tasks", k, stage, row)
        return row

    def episode(self, k: int, stage: str, task: dict, digest: str, sample: int, **changes) -> dict:
        rng = self.rng
        status = rng.choice(("completed", "completed", "completed", "truncated", "crashed", "invalid"))
        at = START + timedelta(days=k, seconds=rng.randrange(10_000))
        row = {
            "trajectory_id": f"t{k}-{stage}-{digest}-{task['task_id']}-{sample}",
            **{name: task[name] for name in ("task_id", "domain", "world", "level", "instruction")},
            "source": "rollout",
            "author": "model",
            "sample": sample,
            "policy_version": digest,
            "status": status,
            "error": "it broke" if status in ("crashed", "invalid") else None,
            "steps": rng.choice((0, 1, 3)) if status != "invalid" else 0,
            "reward": None if status == "crashed" else rng.random(),
            "started_at": at,
            "ended_at": None if status == "invalid" else at + timedelta(seconds=rng.random()),
            "run_id": rng.choice((f"flow{k}-rollout", None)),
            **changes,
        }
        self.add("trajectories", k, stage, row)
        for n in range(row["steps"]):
            screen = image_row(rng.randrange(3))["sha256"] if rng.random() < 0.9 else rng.choice((None, "0" * 64))
            fault = "no action" if rng.random() < 0.3 else None
            step = {"trajectory_id": row["trajectory_id"], "step": n, "author": row["author"], "parse_error": fault}
            self.add("steps", k, stage, step | {"image_sha256": screen, "action_type": None if fault else "click"})
            if not fault:
                self.rows["steps"][-1] |= {"action": f"click {sample}", "raw_text": f"Action: click {sample}"}
        return row

    def candidates(self, k: int, name: str) -> None:
        """Of each step, and of one that is not there."""
        for n in range(4):
            for number, decision in enumerate(("accepted", "rejected", "undone", "rejected")):
                row = {"trajectory_id": name, "step": n, "candidate": number, "decision": decision}
                row |= {"action": f"click {number}", "raw_text": f"Action: click {number}", "annotator": "ada"}
                sampled = {"token_ids": [number, 2], "logprobs": [-0.5, -0.25], "weight_version": "d0"}
                self.add("candidates", k, "ingest", row | (sampled if number else {}))

    def judged(self, k: int, stage: str, row: dict) -> list[dict]:
        """Scores of some scorers; those that could not judge gave none."""
        if row["status"] not in ("completed", "truncated"):
            return []
        found = []
        judges = ("verifier:world:score", "judge:majority", "model", "person")
        for scorer in self.rng.sample(judges, self.rng.choice((0, 1, 2, 2, 3))):
            versions = self.rng.sample(("1", "2", "3"), self.rng.choice((1, 1, 2)))
            for current, version in zip((True, False), versions, strict=False):
                score = self.rng.choice((None, 0.0, 0.9, 1.0, 1.0))
                held = self.rng.choice((0.5, 1.0))
                success = None if score is None else score >= held
                one = {"scorer": scorer, "version": version, "score": score, "threshold": held, "success": success}
                abstained = self.rng.choice((True, False, None)) if score is None else None
                # A column that came late is null.
                found.append(
                    one | {"abstained": abstained, "current": self.rng.choice((True, None)) if current else False}
                )
        found = [{"trajectory_id": row["trajectory_id"], **one} for one in found]
        counting = [one for one in found if one["current"] is not False]
        self.add("scores", k, stage, *counting)
        self.add("score_history", k, stage, *(one for one in found if one["current"] is False))
        return counting

    def routed(self, k: int, stage: str, task: dict, digest: str, sample: int, **changes) -> None:
        row = self.episode(k, stage, task, digest, sample, **changes)
        scores = self.judged(k, "score", row)
        success = None if not scores or self.rng.random() < 0.1 else all(one["success"] for one in scores)
        store = "quarantine" if row["status"] in ("crashed", "invalid") else "sft" if success else "ct"
        name = row["trajectory_id"]
        score = None if success is None else self.rng.random()
        route = {"trajectory_id": name, "destination": store, "reason": "", "score": score, "success": success}
        route["decided_by"] = self.rng.choice((None, "person", "judge:majority"))
        self.add("routes", k, "route", route)
        if store == "quarantine":
            self.add("quarantine", k, "route", {"trajectory_id": name, "reason": "r", "source_table": "trajectories"})
        else:
            held = {column: row[column] for column in ("trajectory_id", "task_id", "domain")}
            self.add(store, k, "route", held | {"weight": self.rng.choice((None, 0.5, 1.0))})
            links = {"child_kind": "dataset", "parent": name, "parent_kind": "trajectory", "relation": "holds"}
            self.add("lineage", k, "route", {"child": lineage.dataset_name(store, k), **links})
        if self.rng.random() < 0.2:
            self.add("quarantine", k, "route", {"trajectory_id": name, "reason": "orphan", "source_table": "steps"})
        self.places.append({"iteration": k, "trajectory_id": name})

    def rl(self, k: int, domain: str, tasks: list[dict]) -> None:
        stage, here = f"rl-{domain}", f"models/iteration={iteration_label(k)}/rl-{domain}"
        digest, parents = f"d{k}{stage}", {}
        played = [self.episode(k, stage, task, digest, 0) for task in tasks]
        for task, parent in zip(tasks, list(played), strict=True):
            begun = {"parent_id": parent["trajectory_id"], "start_step": 1}
            played.append(self.episode(k, stage, task, digest, 1, **begun))
            parents[played[-1]["trajectory_id"]] = parent["trajectory_id"]
        for row in played:
            self.judged(k, stage, row)
        for n, task in enumerate(tasks):
            reason, episodes = self.rng.choice((("", 4.0), ("always solved", 4.0), ("level not reached", 0.0)))
            known = {name: task[name] for name in ("task_id", "domain", "world", "template", "level")}
            figures = {"groups": n, "successes": episodes / 2, "episodes": episodes, "relative_prob": self.rng.random()}
            self.add("curriculum", k, stage, {**known, **figures, "sampling_prob": 0.1, "reason": reason})
        trained = {row["trajectory_id"]: row["steps"] for row in played if row["steps"]}
        named = {"trajectories": trained, "earlier": {1: f"{digest}@1"}, "restored": parents}
        links = lineage.checkpoint_links(here, digest, **named)
        self.add("lineage", k, stage, *links)

    def models(self, k: int) -> None:
        """ct names what it trained on in some iterations, sft in others; else the stores stand for them."""
        here, rng = f"models/iteration={iteration_label(k)}", self.rng
        for stage, named in (("ct", k % 2 == 0), ("sft", k > 2)):
            stores = [lineage.dataset_name(stage, one) for one in ITERATIONS if one <= k]
            held = [row["trajectory_id"] for row in self.rows[stage] if row["iteration"] <= k]
            # Counts came late: the first links have none.
            trained = {name: k - 2 or None for name in rng.sample(held, len(held) // 2)} if named else {}
            links = lineage.checkpoint_links(f"{here}/{stage}", f"d{k}{stage}", datasets=stores, trajectories=trained)
            self.add("lineage", k, stage, *links)
        parents = [f"{here}/rl-{domain}" for domain in ("games", "sites")]
        self.add("lineage", k, "merge", *lineage.checkpoint_links(f"{here}/merged", f"d{k}merged", parents=parents))

    def metrics(self, k: int) -> None:
        rng = self.rng
        for domain in ("all", "games", "sites"):
            for name in ("before", "after", *(("ct", "sft", "rl") if k > 2 else ())):
                row = fraction_metric_row(f"success_{name}", rng.randrange(6), 5 if domain != "sites" else 0)
                self.add("metrics", k, "evaluate", row | {"domain": domain})
        for stage in ("ct", "sft", "rl-games"):
            steps = range(1, 1 + rng.choice((1, 4)))
            self.add("metrics", k, stage, *(metric_row("loss", rng.choice((1.5, float("nan"))), step=n) for n in steps))
            self.add("metrics", k, stage, *(metric_row("seconds", rng.random()) for _ in range(rng.choice((1, 2)))))

    def runs(self, k: int) -> None:
        rng, at = self.rng, START + timedelta(days=k)

        def run(name: str, parent: str | None, kind: str, title: str, state: str, **more) -> None:
            begun = at + timedelta(seconds=rng.randrange(3))
            facts = {"run_id": name, "parent_id": parent, "kind": kind, "name": title, "state": state, "attempts": 1}
            times = {"started_at": begun, "ended_at": begun + timedelta(seconds=9), "seconds": 9 * rng.random()}
            message = rng.choice((None, "", "it ended"))  # a column that came late
            self.add("runs", k, "runs", facts | times | {"parameters": "{}", "message": message} | more)

        label = iteration_label(k)
        run(f"flow{k}", None, "flow", "iteration", "Completed")
        for stage in ("rollout", "sft")[: rng.choice((1, 2, 2))]:
            for n in range(rng.choice((1, 2, 3))):
                name = f"flow{k}-{stage}" + (f"-{n}" if n else "")
                state = rng.choice(("Failed", "Crashed", "Completed", "Cancelled"))
                run(f"stands{name}", f"flow{k}", "task", f"{label} {stage}", state)
                run(name, f"stands{name}", "flow", f"{label} {stage}", state)
                for shard in ("a", "b", f"finish {stage}", f"version {stage}"):
                    ended = rng.choice((state, "Completed", "Failed"))
                    never = {"started_at": None, "ended_at": None, "seconds": None} if rng.random() < 0.1 else {}
                    run(f"{name}-{shard}", name, "task", shard, ended, attempts=rng.choice((0, 1, 3)), **never)

    def files(self, k: int) -> None:
        rng = self.rng
        looked = [
            {
                "trajectory_id": f"t{k}-{n}",
                "domain": rng.choice(("games", "sites")),
                "drawn": rng.choice(("even", "doubtful")),
                "destination": rng.choice(("sft", "ct", "quarantine")),
                "score": rng.choice((None, 0.5)),
                "success": rng.choice((None, True, False)),
                "label": rng.choice((None, *LABELS)),
                "reviewer": "ada",
                "comment": 'it\'s "so"',
                "at": (START + timedelta(days=k)).isoformat(),
            }
            for n in range(8)
        ]
        seen = {"ended": "all were looked at", "asked": looked}
        decided = [{"looked": {}}, {"looked": seen}][: 2 if k == 1 else rng.choice((0, 2))]
        self.rows["decision_files"].append({"iteration": k, "content": json.dumps({"decisions": decided})})
        played = [
            {
                "task_id": f"f{n}",
                "domain": "games",
                "world": "tiles",
                "template": "fit",
                "level": 1,
                "held_out": n == 1,
                "sample": 0,
                "status": "completed" if n else "crashed",
                "score": 0.5 if n else None,
                "success": bool(n) or None,
            }
            for n in range(2)
        ]
        checkup = {"at": START.isoformat(), **self.newest, "rows": played[: 2 if k == 1 else rng.choice((0, 2))]}
        self.rows["fresh_evaluation_files"].append({"iteration": k - 1, "content": json.dumps(checkup)})
        data = f"data/steps/iteration={iteration_label(k)}/stage=rollout"
        entry = {"path": f"{data}", "hash": "md5", "md5": "ab.dir", "size": rng.randrange(10**6), "nfiles": 2}
        files = [entry, {"path": f"iterations/{iteration_label(k)}/manifest.json", "md5": "cd", "size": 3}]
        model = {"path": f"models/iteration={iteration_label(k)}/sft", "md5": "ef.dir", "size": 5, "nfiles": 1}
        stages = {"rollout": {"cmd": "x", "deps": files[1:], "params": {"params.yaml": {"seed": 7}}, "outs": files[:1]}}
        stages |= {"sft": {"cmd": "x", "deps": files, "outs": [model]}, "rl-games": {"cmd": "x", "outs": []}}
        text = dvc_files.dump_dvc_lock(json.loads(json.dumps(stages)))
        self.rows["dvc_lock"].append({"iteration": k, "content": text})
        settings = Settings.model_validate(
            {"seed": k, "operations": {"notify_command": "a: 'b' # c"}, "rl": {"group_size": k}}
        )
        self.rows["parameter_files"].append({"iteration": k, "content": dump_settings(settings)})
        for n, (decision, why) in enumerate((("same", ""), ("differs", "the screen before step 12 differs"))):
            row = {"subject": f"t{k}-ingest-human-shown{k}-{n}", "kind": "replay", "reviewer": "sandbox", "at": START}
            self.add("reviews", k, "ingest", row | {"decision": decision, "comment": why})
        review = {"subject": f"m{k}", "kind": "promotion", "reviewer": "rules", "decision": "keep"}
        self.add("reviews", k, "promote", review | {"comment": "", "at": START})
        self.add("images", k, "rollout", *(image_row(n) for n in range(3)))
        self.add("images", k, "evaluate", image_row(0))

    def labels(self) -> None:
        """Of some trajectories by one to three people, some again; of others that a rollback has set aside."""
        rng = self.rng
        lines: dict[str, int] = defaultdict(int)
        moments = iter(rng.sample(range(1000), 1000))
        aside = [{"iteration": 2, "trajectory_id": f"aside{n}"} for n in range(3)]
        for place in (*rng.sample(self.places, 20), *aside):
            for reviewer in rng.sample(("ada", "bo", "cy"), rng.choice((1, 2, 3))):
                for _ in range(rng.choice((1, 1, 2))):
                    lines[reviewer] += 1
                    row = {"label": rng.choice(LABELS), "comment": "", "reviewer": reviewer}
                    row |= {"queue": rng.choice(("random", "random", "disputed", "decide"))}
                    at = START + timedelta(seconds=next(moments))
                    where = {"file": f"reviews/{reviewer}.jsonl", "line": lines[reviewer]}
                    self.rows["label_history"].append({**place, **row, "at": at, **where})

    def verdicts(self) -> None:
        """Of recordings and of trajectories; some ask only, and some are of files that changed."""
        rng = self.rng
        for reviewer in ("ada", "bo"):
            for line, subject in enumerate(("000-a", "001-b", "t2-rollout-x", "t3-rollout-y"), 1):
                asks = rng.random() < 0.2
                said = {name: None if asks else rng.random() < 0.8 for name in ("correct", "complete", "safe")}
                at = START + timedelta(seconds=rng.randrange(3000))
                about = {"subject": subject, "iteration": int(subject[1]) if subject[0] == "t" else 0, "sha256": "s"}
                where = {"file": f"reviews/recordings/{reviewer}.jsonl", "line": line}
                row = {**about, **said, "comment": "", "reviewer": reviewer, "at": at, **where}
                self.rows["recording_verdicts"].append(row)


def connect(rows: Rows) -> duckdb.DuckDBPyConnection:
    """The catalogue over rows in memory."""
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    for name, kinds in OTHER_KINDS.items():
        connection.execute(f"CREATE TABLE own_{name} ({kinds})")
        for row in rows[name]:
            names, marks = ", ".join(f'"{one}"' for one in row), ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO own_{name} ({names}) VALUES ({marks})", list(row.values()))
        connection.execute(f"CREATE VIEW {name} AS FROM own_{name}")
    for name, schema in TABLES.items():
        own = rows["score_history" if name == "scores" else name]
        keys = pa.schema([pa.field("iteration", pa.int32()), pa.field("stage", pa.string()), *schema])
        connection.register("given", pa.Table.from_pylist(own, pa.schema([f.with_nullable(True) for f in keys])))
        connection.execute(f"CREATE TABLE own_{name} AS FROM given")
        connection.unregister("given")
        if name not in ("reviews", "scores"):
            connection.execute(f"CREATE VIEW {name} AS FROM own_{name}")
    outside = database._ROWS_OUTSIDE_PARTITIONS["reviews"]
    connection.execute(f"CREATE VIEW reviews AS FROM own_reviews UNION ALL {outside}")
    connection.execute(
        "CREATE VIEW steps_in_files AS SELECT *, '' AS filename, rowid AS file_row_number FROM own_steps"
    )
    connection.execute("CREATE VIEW score_history AS FROM own_scores")
    connection.execute("CREATE VIEW scores AS FROM own_scores WHERE current IS NOT false")
    connection.execute(database.catalog_views_sql())
    return connection


def write(ws: Workspace, rows: Rows) -> None:
    """The same as the files of a workspace."""
    for table in TABLES:
        by_place = defaultdict(list)
        for row in rows["score_history" if table == "scores" else table]:
            by_place[row["iteration"], row["stage"]].append(row)
        for (k, stage), own in by_place.items():
            kept = [{name: value for name, value in row.items() if name not in ("iteration", "stage")} for row in own]
            partitions.write_partition(ws, table, k, stage, kept)
    for row in rows["promotions"]:
        write_json(ws.promotion(row["iteration"]), {name: value for name, value in row.items() if value is not None})
    files = {"dvc_lock": "dvc.lock", "parameter_files": "params.yaml", "decision_files": "decisions.json"}
    for name, file in files.items():
        for row in rows[name]:
            write_text(ws.iteration(row["iteration"]) / file, row["content"])
    for row in rows["fresh_evaluation_files"]:
        write_text(ws.iteration(row["iteration"]) / "checkup.json", row["content"])
    said = defaultdict(list)
    for row in (*rows["label_history"], *rows["recording_verdicts"]):
        fields = {name: row[name] for name in row if name not in ("file", "line")}
        said[row["file"]].append(json.dumps(fields | {"at": row["at"].isoformat()}))
    for file, lines in said.items():
        write_text(ws.root / file, "\n".join(lines) + "\n")
