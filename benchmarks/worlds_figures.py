"""Figures of `benchmarks/worlds.py`: cases of what its parts measured, and what is told beside them."""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from bench_case import BenchCase, emit_case
from worlds_parts import Part, Row
from worlds_play import slots

from flywheel.envs.suites import catalogue, references
from flywheel.envs.suites.references import Played, References

CHANCE = 0.05  # most that random play may win
_SHOWN = 20  # things named where something failed
Found = Mapping[Part, list[Row]]


def case(name: str, value: float, goal: float | None, met: bool, unit: str = "fraction", **extra: object) -> BenchCase:
    """Printed at once. Nothing is compared with a peer here: goals are of the figure itself."""
    return emit_case(BenchCase("worlds", name, unit, value, None, "", None, goal, met, extra))


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def rows_of(found: Found, kind: str, of: str = "") -> list[tuple[str, Row]]:
    """(world, row) of one kind of part; of: of worlds of that kind alone."""
    return [
        (part.world, row)
        for part, rows in found.items()
        for row in rows
        if part.kind == kind and of in ("", catalogue.get_world(part.world).kind)
    ]


def success(name: str, rows: list[tuple[str, Row]]) -> BenchCase:
    """Tasks that experts completed and verifiers accepted."""
    lost = [
        f"{_named(world, row)}, score {row['score']:.3g}, {row['steps']} steps {row['fault']}"
        for world, row in rows
        if not row["won"]
    ]
    _list("not won", lost)
    return case(name, 1 - len(lost) / len(rows), 1.0, not lost, n=len(rows), by_world=_shares(rows, "won"))


def rejects(rows: list[tuple[str, Row]]) -> BenchCase:
    """Ends that are not what was asked, and that verifiers refuse."""
    checks: dict[str, list[bool]] = defaultdict(list)
    accepted = []
    for world, row in rows:
        for kind in ("early", "cut"):
            if kind in row:
                checks["one_step_early" if kind == "early" else "stopped_in_the_page"].append(row[kind])
                if not row[kind]:
                    accepted.append(f"{_named(world, row)} one step early")
        if other := row.get("beside"):
            checks["neighbours"].append(other["refused"])
            if not other["refused"]:
                accepted.append(f"{_named(world, row)} by the end of: {other['asks']}")
    _list("wrongly accepted", accepted)
    n = sum(map(len, checks.values()))
    counted = {kind: len(found) for kind, found in checks.items()}
    return case("verifier_rejects", 1 - len(accepted) / max(n, 1), 1.0, n > 0 and not accepted, n=n, **counted)


def chance(rows: list[tuple[str, Row]]) -> BenchCase:
    """Evaluation tasks that random play won; pages that failed do not count."""
    rows = [(world, row) for world, row in rows if not row["failed"]]
    _list("won at random", [f"{_named(world, row)}, {row['steps']} steps" for world, row in rows if row["won"]])
    value = sum(row["won"] for _, row in rows) / len(rows)
    by_world = _shares(rows, "won")
    by_level = _shares([(f"{world} {row['template']} {row['level']}", row) for world, row in rows], "won")
    about = {"goal_is": "less than", "worst": _extreme(by_world, max), "worst_level": _extreme(by_level, max)}
    return case("random_success", value, CHANCE, value < CHANCE, n=len(rows), **about, by_world=by_world)


def replays(rows: list[tuple[str, Row]]) -> BenchCase:
    """Episodes whose screens came back byte for byte, played again and through a checkpoint."""
    differ, checks, screens = [], 0, 0
    for world, row in rows:
        for way in ("again", "resumed"):
            if way in row:
                checks += 1
                screens += row["screens"]
                if not row[way]:
                    differ.append(f"{_named(world, row)} ({way})")
    _list("differs", differ)
    value = 1 - len(differ) / max(checks, 1)
    return case("replay_identical", value, 1.0, checks > 0 and not differ, n=checks, screens=screens)


def level_cases(found: Found) -> list[BenchCase]:
    """levels_distinct: share of games whose middle level did not repeat in `n` draws; `repeats`: where any did."""
    rates, repeats, middle = {}, {}, {}
    draws = max(part.of for part in found if part.kind == "levels")
    for part, (row,) in ((part, rows) for part, rows in found.items() if part.kind == "levels"):
        slot = f"{part.world} {row['template']} {row['level']}"
        rates[slot] = part.of / row["seconds"]
        if row["different"] < part.of:
            repeats[slot] = f"{part.of - row['different']} of {part.of}"
        if part.of == draws:
            middle[part.world] = middle.get(part.world, False) or row["different"] == draws
    slowest = _extreme(rates, min)
    return [
        case(
            "levels_a_second",
            statistics.median(rates.values()),
            None,
            True,
            unit="levels/s of a core",
            slowest=slowest,
            by_level=rounded(rates),
        ),
        case("levels_distinct", statistics.fmean(middle.values()), 1.0, all(middle.values()), n=draws, repeats=repeats),
    ]


def write_references(found: Found) -> None:
    """Keep what the expert and random play reach in each game's folder."""
    for name in dict.fromkeys(part.world for part in found if part.kind.startswith("reference")):
        world = catalogue.get_world(name)
        players = {
            player: [row for whose, row in rows_of(found, f"reference_{player}") if whose == name]
            for player in ("expert", "random")
        }
        by_level = {
            str(level): {
                player: _played(row for row in rows if row["level"] == level) for player, rows in players.items()
            }
            for level in sorted({level for _, level in slots(world)})
        }
        kept = References(
            world=name,
            version=world.version,
            checksum=world.checksum,
            seeds=references.SEEDS,
            budget=references.BUDGET,
            levels=by_level,
            **{player: _played(rows) for player, rows in players.items()},
        )
        path = references.write_references(world, kept)
        share = kept.normalised(kept.random.score)
        note(f"{path}: expert {kept.expert.score}, random {kept.random.score} ({share:.3f})")


def _played(rows: Iterable[Row]) -> Played:
    return Played.of([(row["score"], row["won"], row["steps"]) for row in rows])


def _shares(rows: list[tuple[str, Row]], field: str) -> dict[str, float]:
    groups: dict[str, list[bool]] = defaultdict(list)
    for name, row in rows:
        groups[name].append(row[field])
    return rounded({name: statistics.fmean(found) for name, found in groups.items()})


def _extreme(values: Mapping[str, float], which: Callable) -> list:
    return list(which(values.items(), key=lambda item: item[1]))


def _named(world: str, row: Row) -> str:
    return f"{world} {row['template']}, level {row['level']}, seed {row['seed']}"


def _list(what: str, lines: list[str]) -> None:
    for line in lines[:_SHOWN]:
        note(f"{what}: {line}")
    if len(lines) > _SHOWN:
        note(f"{what}: {len(lines) - _SHOWN} more")
