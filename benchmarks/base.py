"""How well the base sees, reads and speaks: clicks, readings and parsing outputs on held-out general pages.

Every page is drawn afresh from a seed that pretraining never uses. grounding: on a page with two to eight elements,
click the one that is named, coloured or labelled; a click is right inside the element's box. reading: say exactly
the word or number on a card or in a field. copying: type what the instruction says, which is no word that it knows.
parses: of all outputs to questions that ask for an action, those that hold one. Greedy; fractions with 95% Wilson
intervals; the chance level is the peer.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from bench_case import BenchCase, emit_case, exit_code
from PIL import Image, ImageDraw

from flywheel import config
from flywheel.agent.actions import Click
from flywheel.agent.parsing.parser import parse_response
from flywheel.envs.screens import layouts, vocabulary
from flywheel.training.pretrain.figures import PAGES, SEED, answer_base_questions, draw_base_questions, holds_action
from flywheel.training.pretrain.pretrainer import JudgedAnswer, success_rate

SHOWN = 24  # wrong answers in a picture


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="flywheel bench base", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent.parent / "models" / "base")
    parser.add_argument("--pages", type=int, default=PAGES, help="pages of each case")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--pictures", type=Path, help="folder for pictures of what went wrong")
    options = parser.parse_args(argv)
    policy = config.PolicySettings()
    answers = answer_base_questions(options.model, draw_base_questions(options.pages, options.seed))
    clicks, readings, typed = answers["grounding"], answers["reading"], answers["copying"]
    actions = clicks + answers["action"]
    about = {"seed": options.seed, "threads": torch.get_num_threads()}
    cases = [
        _case(
            "grounding",
            0.85,
            [a.right for a in clicks],
            _chance_click(clicks),
            "chance: any element of the page",
            by_kind=_parts(clicks, lambda a: a.scene.kind),
            by_elements=_parts(clicks, lambda a: str(a.scene.count)),
            **about,
        ),
        _case(
            "reading",
            0.80,
            [a.right for a in readings],
            _chance_read(readings),
            "chance: any word or number",
            by_kind=_parts(readings, lambda a: "number" if a.question.response.isdigit() else "word"),
            **about,
        ),
        _case("copying", 0.90, [a.right for a in typed], None, "none", by_kind=_parts(typed, _copied), **about),
        _case("parses", 0.99, [holds_action(a, policy) for a in actions], None, "none", **about),
    ]
    if options.pictures:
        _picture(clicks, policy, options.pictures / "grounding.png")
        _picture(readings, policy, options.pictures / "reading.png")
    return exit_code(cases)


def _case(name: str, goal: float, right: Sequence[bool], chance: float | None, peer: str, **extra: object) -> BenchCase:
    found = success_rate(right)
    value = sum(right) / len(right)
    ratio = value / chance if chance else None
    return emit_case(
        BenchCase(
            "base",
            name,
            "fraction",
            value,
            chance,
            peer,
            ratio,
            goal,
            value >= goal,
            {"n": len(right), "interval": [found["low"], found["high"]], **extra},
        )
    )


def _parts(answers: Sequence[JudgedAnswer], key) -> dict[str, str]:
    groups: dict[str, list[bool]] = {}
    for answer in answers:
        groups.setdefault(key(answer), []).append(answer.right)
    return {name: f"{np.mean(found):.2f} of {len(found)}" for name, found in sorted(groups.items())}


def _copied(answer: JudgedAnswer) -> str:
    text = answer.question.copied
    return "file" if "." in text else "number" if text.isdigit() else "letters"


def _chance_click(answers: Sequence[JudgedAnswer]) -> float:
    return float(np.mean([1 / answer.scene.count for answer in answers]))


def _chance_read(answers: Sequence[JudgedAnswer]) -> float:
    """Of one who knows all words, and whether it is a word or how many digits the number has."""
    return float(
        np.mean(
            [
                1 / 10 ** len(a.question.response) if a.question.response.isdigit() else 1 / len(vocabulary.READING)
                for a in answers
            ]
        )
    )


def _picture(answers: Sequence[JudgedAnswer], policy: config.PolicySettings, file: Path) -> None:
    """The first wrong answers, with what was asked and said: green where it is, red where it was clicked."""
    wrong = [answer for answer in answers if not answer.right][:SHOWN]
    columns, side = 6, layouts.SCENE_SIDE
    sheet = Image.new("RGB", (columns * (side + 8), -(-len(wrong) // columns) * (side + 40)), "white")
    draw = ImageDraw.Draw(sheet)
    for number, answer in enumerate(wrong):
        x, y = number % columns * (side + 8), number // columns * (side + 40)
        sheet.paste(Image.fromarray(answer.pixels), (x, y))
        for box in (*answer.question.boxes[:1], *([answer.question.seen] if answer.question.seen else [])):
            draw.rectangle((x + box.x, y + box.y, x + box.x + box.w, y + box.y + box.h), outline="lime", width=2)
        action = parse_response(answer.text, policy.coordinates).action
        if isinstance(action, Click):
            cx, cy = x + action.point.x * side, y + action.point.y * side
            draw.ellipse((cx - 4, cy - 4, cx + 4, cy + 4), fill="red", outline="white")
        draw.text((x + 2, y + side + 2), answer.question.instruction.replace("\n", " ")[:40], fill="black")
        draw.text((x + 2, y + side + 16), answer.text.split("\n")[0][:40], fill="red")
    file.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(file)


if __name__ == "__main__":
    raise SystemExit(main())
