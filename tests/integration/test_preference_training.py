"""SFT with a preference loss: the gradient that automatic differentiation gives, kills, processes, adapters."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace

import preference_stores
import pytest
import torch
from lamp_env import LEFT, RIGHT, screen, settings, small_model
from made_experience import response_logprobs
from safetensors.torch import load_file

from flywheel import config
from flywheel.agent.prompt import build_context
from flywheel.config import AdapterSettings, PreferenceSettings, SupervisedSettings
from flywheel.pipeline.stage import StageContext
from flywheel.pipeline.stages.sft import STAGE
from flywheel.policy.encoding import Encoder
from flywheel.store.catalog import database
from flywheel.training import data
from flywheel.training.data import Example, PreferencePair, ShuffledDataset
from flywheel.training.modeling.policy_forward import pad_samples
from flywheel.training.preference import PairedDataset, PreferenceTrainer, preference_loss
from flywheel.training.sft import train_supervised
from flywheel.utils import progress
from flywheel.utils.files import write_text

S = settings()
BLOCK = SupervisedSettings(lr=1e-3, batch=4, save_every=2)
DPO = PreferenceSettings(weight=0.7, beta=0.3, nll=0.25, pairs=3)
SIMPO = PreferenceSettings(weight=0.7, beta=2.0, loss="simpo", margin=0.5, pairs=3)


@pytest.fixture(scope="module")
def base(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("model") / "base", project)


@pytest.fixture(scope="module")
def pairs(base) -> list[PreferencePair]:
    """Of each screen the side that is lit is kept, and the other one rejected."""
    encoder, made = Encoder.from_folder(base), []
    for i in range(8):
        side, text, other = (("left", LEFT, RIGHT), ("right", RIGHT, LEFT))[i % 2]
        context = encoder.encode(build_context("Click the lamp.", (), screen(side, i // 2), S.policy))
        kept = Example(context, tuple(encoder.encode_text(text)), None, f"t{i:02d}", 0, "games")
        made.append(PreferencePair(kept, tuple(encoder.encode_text(other))))
    return made


def paired(pairs, chosen=DPO, count=16) -> PairedDataset:
    return PairedDataset(ShuffledDataset([one.chosen for one in pairs] * (count // 8), 4, 5), pairs, chosen, 12, 3)


def train(base, folder, dataset, **more):
    arguments = {"settings": BLOCK, "state_folder": folder / "state", "trainer": PreferenceTrainer} | more
    return train_supervised(base, folder / "out", dataset, **arguments)


def sums(model, examples, responses) -> torch.Tensor:
    batch = pad_samples([one.context for one in examples], responses)
    logprobs, _ = response_logprobs(model, batch)
    return torch.where(batch.mask, logprobs, 0.0).sum(1)


@pytest.mark.parametrize("chosen", [DPO, SIMPO], ids=["dpo", "simpo"])
def test_the_gradient_is_that_of_the_loss(base, pairs, tmp_path, chosen):
    """Of a reference that is another model's, so that pairs weigh differently."""
    dataset = paired(pairs, chosen)
    trainer = PreferenceTrainer(base, dataset, BLOCK, "sft")
    trainer.load(tmp_path / "none.pt", "key")
    before = [number + (-1) ** place * place for place, number in enumerate(trainer.reference)]
    trainer.reference, taken = before, {}

    def step(rate):
        taken.update(
            {name: weight.grad.clone() for name, weight in trainer.policy.named_parameters() if weight.grad is not None}
        )
        return 1.0

    trainer.engine.step = step
    model = copy.deepcopy(trainer.policy)
    loss, _, preferred = trainer.step(1, 1e-3)

    batch, numbers = dataset.get_batch(1), dataset.pair_numbers(1)
    own = [pairs[number] for number in numbers]
    model.zero_grad()
    nll = -sums(model, batch, [one.response for one in batch]).sum() / sum(len(one.response) for one in batch)
    kept = sums(model, [one.chosen for one in own], [one.chosen.response for one in own])
    other = sums(model, [one.chosen for one in own], [one.rejected for one in own])
    reference = torch.tensor(before).view(-1, 2)[numbers] if before else torch.zeros(len(own), 2)
    lengths = torch.tensor([[len(one.chosen.response), len(one.rejected)] for one in own])
    each = preference_loss(torch.stack([kept, other], 1), reference, lengths, chosen)
    expected = nll + chosen.weight * (each.mean() - chosen.nll * kept.sum() / lengths[:, 0].sum())
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    assert 0 <= preferred <= 1
    wanted = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    wanted = {name: grad for name, grad in wanted.items() if name in taken}
    assert len(wanted) > 10
    for name, grad in wanted.items():
        assert torch.allclose(taken[name], grad, rtol=2e-3, atol=1e-5), name


def test_the_reference_is_of_the_weights_that_it_begins_from(base, pairs, tmp_path):
    trainer = PreferenceTrainer(base, paired(pairs), BLOCK, "sft")
    trainer.load(tmp_path / "none.pt", "key")
    with torch.no_grad():
        kept = sums(trainer.policy, [one.chosen for one in pairs], [one.chosen.response for one in pairs])
        other = sums(trainer.policy, [one.chosen for one in pairs], [one.rejected for one in pairs])
    assert trainer.reference == pytest.approx(torch.stack([kept, other], 1).flatten().tolist(), rel=1e-4)
    first = list(trainer.reference)
    trainer.step(0, 1e-3)
    assert trainer.reference == first
    assert trainer._sum_logprobs(trainer._encode(pairs[:1])) != pytest.approx(first[:2], rel=1e-4)


@pytest.mark.parametrize("chosen", [DPO, SIMPO], ids=["dpo", "simpo"])
def test_pairs_teach_what_imitation_cannot(base, pairs, tmp_path, chosen):
    """The batches have both responses equally often; the pairs keep the left one, whatever is lit."""
    left, right = pairs[0].chosen.response, pairs[0].rejected
    both = [replace(pair.chosen, response=one) for pair in pairs for one in (left, right)]
    kept = [PreferencePair(replace(pair.chosen, response=left), right) for pair in pairs]
    strong = chosen.model_copy(update={"weight": 3.0, "nll": 0.0})
    seen = []
    train(base, tmp_path, PairedDataset(ShuffledDataset(both * 2, 4, 5), kept, strong, 99, 3), on_metric=seen.append)
    assert seen[-1]["preferred"] == 1.0
    assert {"loss", "lr", "probability"} <= set(seen[0])


def test_a_killed_run_ends_with_the_same_weights_and_reads_the_reference_once(base, pairs, tmp_path, monkeypatch):
    class Killed(Exception):
        pass

    def kill(metric):
        if metric["step"] == 3:
            raise Killed

    whole = train(base, tmp_path / "whole", paired(pairs))
    with pytest.raises(Killed):
        train(base, tmp_path / "killed", paired(pairs), on_metric=kill)
    read, steps = [], []
    inner = PreferenceTrainer._sum_logprobs
    monkeypatch.setattr(
        PreferenceTrainer, "_sum_logprobs", lambda self, items: read.append(len(items)) or inner(self, items)
    )
    again = train(base, tmp_path / "killed", paired(pairs), on_metric=lambda metric: steps.append(metric["step"]))
    assert steps == [3, 4]
    assert read == [6, 6]  # each step's pairs, and not all of them again
    assert again == whole
    one, two = (load_file(tmp_path / name / "out" / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_state_of_other_pairs_is_not_gone_on_with(base, pairs, tmp_path):
    train(base, tmp_path, paired(pairs))
    steps = []
    train(base, tmp_path, paired(pairs[:7]), on_metric=lambda metric: steps.append(metric["step"]))
    assert steps == [1, 2, 3, 4]


def test_where_pairs_run_out_plain_steps_follow(base, pairs, tmp_path):
    dataset = PairedDataset(paired(pairs).examples, pairs[:1], DPO, 2, 3)
    seen = []
    losses = train(base, tmp_path, dataset, on_metric=seen.append)
    assert ["preferred" in metric for metric in seen] == [True, True, False, False]
    assert len(losses) == 4


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_processes_come_to_what_one_comes_to(base, pairs, tmp_path):
    alone = train(base, tmp_path / "alone", paired(pairs))
    two = BLOCK.model_copy(update={"processes": 2, "pack_tokens": 300})
    together = train(base, tmp_path / "two", paired(pairs), settings=two)
    assert together == pytest.approx(alone, rel=2e-3)
    one, other = (load_file(tmp_path / name / "out" / "model.safetensors") for name in ("alone", "two"))
    assert all(torch.allclose(one[name], other[name], atol=5e-4) for name in one)


def test_an_adapter_learns_from_pairs_and_its_base_stays(base, pairs, tmp_path):
    lora = AdapterSettings(method="lora", rank=4, alpha=8)
    seen = []
    strong = DPO.model_copy(update={"weight": 3.0})
    high = BLOCK.model_copy(update={"lr": 1e-2})
    train(base, tmp_path, paired(pairs, strong, 96), settings=high, adapter=lora, on_metric=seen.append)
    assert seen[-1]["preferred"] > 0.6
    assert (tmp_path / "out" / "adapter_config.json").is_file()


def test_the_stage_trains_on_the_pairs_of_its_stores_and_names_them(base, ws, tmp_path):
    manifest_of = preference_stores.write(ws)
    chosen = {"num_examples": 8, "batch": 4, "lr": 1e-3, "demonstrations": 0.0, "window": 1}
    raw = {"sft": chosen, "policy": dict(S.policy)}
    for weight, pairs in ((0.0, 0), (0.5, 4)):
        drawn = config.parse_settings(raw | {"preference": {"weight": weight, "pairs": 2}}, where="test")
        write_text(ws.frozen_params(2), config.dump_settings(drawn))
        shutil.copytree(base, ws.model(2, "ct"), dirs_exist_ok=True)
        ctx = StageContext.open(ws, 2, "sft")
        folder = tmp_path / f"state {weight}"
        folder.mkdir()
        result = STAGE.work(ctx, "sft", folder)
        finished = STAGE.finish(ctx, {"sft": (folder, result)})
        summary, found = finished.summary, [row for row in finished.metrics if row["name"] == "preference_pairs"]
        assert [row["value"] for row in found] == ([3] if weight else [])
        assert result["pairs"] == pairs == summary.get("pairs, kept and rejected", 0)
        rows = database.query_catalog(ws, "FROM trained_on WHERE checkpoint LIKE '%sft'").to_pylist()
        times = {row["trajectory_id"]: row["times"] for row in rows}
        # Of the store: one trajectory of two steps. Of the pairs: two of that, and one of the correction.
        assert times.keys() == ({"session2", "mended2"} if pairs else {"session2"})
        assert sum(times.values()) == 8 + pairs
    assert manifest_of.datasets("ct") == ["ct@001", "ct@002"]
    read = database.query_catalog(ws, "SELECT parent FROM lineage WHERE relation = 'drew from' AND child LIKE '%sft'")
    assert {row["parent"] for row in read.to_pylist()} >= {"ct@001", "ct@002", "sft@002"}


def test_a_preference_loss_without_pairs_says_so(base, ws, tmp_path, monkeypatch):
    preference_stores.write(ws)
    monkeypatch.setattr(data, "load_preference_pairs", lambda *_: [])
    chosen = {"num_examples": 4, "batch": 4, "lr": 1e-3, "demonstrations": 0.0, "window": 1}
    drawn = {"sft": chosen, "policy": dict(S.policy), "preference": {"weight": 0.5}}
    write_text(ws.frozen_params(2), config.dump_settings(config.parse_settings(drawn, where="test")))
    shutil.copytree(base, ws.model(2, "ct"), dirs_exist_ok=True)
    ctx, said = StageContext.open(ws, 2, "sft"), []
    with progress.replace_listener(lambda stage, line: said.append(line)):
        result = STAGE.work(ctx, "sft", tmp_path)
    finished = STAGE.finish(ctx, {"sft": (tmp_path, result)})
    (why,) = (line for line in said if "no preference pair" in line)
    assert "preference.weight" in why
    assert finished.summary["pairs, kept and rejected"] == why
    assert [row["value"] for row in finished.metrics if row["name"] == "preference_pairs"] == [0]
