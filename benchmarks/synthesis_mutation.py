"""Verifiers under attack: mutated end states that they refuse, known solutions and legal ends that they accept."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from flywheel.cli.tasks import list_attacked_suites
from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.browser.pages.manifest import load_page_manifest
from flywheel.synthesis.verifier_attack import run as attack
from flywheel.synthesis.verifier_attack.attack import Attack

_LEAST_KILLED = 0.95


def add_options(parser: Any) -> None:
    parser.add_argument("--attack-worlds", nargs="+", metavar="NAME", default=[], help="suites; all where left out")
    parser.add_argument("--attack-manifests", nargs="+", type=Path, metavar="FILE", default=[], help="pages' manifests")
    parser.add_argument("--attack-runs", type=int, default=10, help="known solutions of each template")


def run(args: argparse.Namespace) -> dict[str, Any]:
    found = asyncio.run(_attack(args))
    parts: dict[str, list[Attack]] = defaultdict(list)
    for domain, source, one in found:
        parts[f"{source}/{domain}"].append(one)
    by_part = {name: _figures(attacks) for name, attacks in sorted(parts.items())}
    total = _figures([one for _, _, one in found])
    met = bool(by_part) and all(
        one["mutation_kill"] >= _LEAST_KILLED and one["gold_passes"] == 1 and not one["false_alarms"]
        for one in by_part.values()
    )
    survivors = [told for _, _, one in found for told in (*one.survivors, *one.refused)]
    return {**total, "by_source_and_domain": by_part, "survivors": survivors[:20], "met": met}


async def _attack(args: argparse.Namespace) -> list[tuple[str, str, Attack]]:
    """The attacks, each with its domain and source. Quick: one template of each suite, two runs."""
    settings, runs, found = attack.attack_settings(Settings()), 2 if args.quick else args.attack_runs, []
    for name in args.attack_worlds or ([] if args.attack_manifests else list_attacked_suites()):
        suite = registry.get_task_suite(name)
        chosen = list(suite.templates)[: 1 if args.quick else None]
        attacks = await attack.attack_suite(settings, suite, runs, chosen)
        found += [(suite.domain, suite.source, one) for one in attacks]
    for path in args.attack_manifests:
        manifest = load_page_manifest(path)
        attacks = await attack.attack_manifest(settings, manifest, runs)
        found += [(manifest.domain, manifest.made_by, one) for one in attacks.values()]
    return found


def _figures(attacks: list[Attack]) -> dict[str, Any]:
    total = Counter()
    for one in attacks:
        total.update(attack.count_attack(one))
    return {
        "templates": len(attacks),
        "mutations": total["mutations"],
        "mutation_kill": total["killed"] / total["mutations"] if total["mutations"] else 0.0,
        "false_alarms": sum(one.false_alarms for one in attacks),
        "gold_passes": total["gold"] / total["runs"] if total["runs"] else 0.0,
        "starts_accepted": total["start"],
        "other_ways": total["ways"],
    }
