"""Merged adapters are what merging whole weights gives, in a form that PEFT reads; what cannot be merged is named."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import checkpoints
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from night import by_day, examples
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from flywheel.cli import main
from flywheel.config import AdapterSettings, Settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline import iterations
from flywheel.pipeline.stages import merge
from flywheel.policy import adapter, checkpoint
from flywheel.policy.adapter import attach_adapter, read_adapter_tensors, save_adapter, write_adapter
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model, save_checkpoint
from flywheel.training.adapter_merging import adapter_distance, merge_adapters
from flywheel.training.model_merging import merge_checkpoints
from flywheel.utils.errors import BadInput, DiskFull, ModelError
from flywheel.utils.files import write_json

SHARES = [0.5, 0.3, 0.2]
LORA = {"method": "lora", "rank": 3, "alpha": 6}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return checkpoints.make(tmp_path_factory.mktemp("base") / "base", "qwen3_vl")


@pytest.fixture(scope="module")
def specialists(base) -> list[Path]:
    return [specialist(base, base.parent / f"rl-{n}", n) for n in range(3)]


@pytest.fixture(scope="module")
def dora(base) -> list[Path]:
    return [specialist(base, base.parent / f"dora-{n}", n, dora=True) for n in range(3)]


def specialist(base: Path, folder: Path, seed: int, **chosen: object) -> Path:
    """An adapter with all of its weights drawn at random."""
    model = load_model(base)
    attach_adapter(model, base, AdapterSettings.model_validate(LORA | chosen), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_magnitude" in name:
                weight.mul_(1 + 0.2 * torch.rand(weight.shape, generator=generator))
            elif weight.requires_grad:
                weight.copy_(0.2 * torch.randn(weight.shape, generator=generator))
    return save_adapter(model, base, folder)


def made(base: Path, folder: Path, rank: int, alpha: float, seed: int, rslora: bool = False, into: int = 64) -> Path:
    """An adapter of one module."""
    generator = torch.Generator().manual_seed(seed)
    name = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
    tensors = {
        f"{name}.lora_A.weight": torch.randn(rank, into, generator=generator),
        f"{name}.lora_B.weight": torch.randn(64, rank, generator=generator),
    }
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "use_rslora": rslora, "target_modules": ["q_proj"]}
    write_adapter(tensors, config, base, folder)
    return folder


def product(folder: Path) -> torch.Tensor:
    """What the adapter of one module adds to its weight, in float64."""
    tensors = read_adapter_tensors(folder)
    (a,) = (tensor.double() for name, tensor in tensors.items() if "lora_A" in name)
    (b,) = (tensor.double() for name, tensor in tensors.items() if "lora_B" in name)
    return adapter.adapter_scaling(checkpoint.read_adapter_config(folder)) * b @ a


def changes(folder: Path, base: Path) -> dict[str, torch.Tensor]:
    before = load_model(base).state_dict()
    return {name: weight - before[name] for name, weight in load_model(folder).state_dict().items()}


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    apart = sum((one[name].double() - other[name].double()).square().sum() for name in one)
    return float((apart / sum(tensor.double().square().sum() for tensor in other.values())).sqrt())


def by_whole_weights(folders: list[Path], base: Path, out: Path) -> dict[str, torch.Tensor]:
    """The change that merging the whole checkpoints makes."""
    encoder = Encoder.from_folder(base)
    whole = [save_checkpoint(load_model(folder), encoder, out / folder.name) for folder in folders]
    merge_checkpoints(whole, SHARES, out / "merged")
    return changes(out / "merged", base)


def test_the_exact_sum_is_what_merging_whole_weights_gives(specialists, base, tmp_path):
    merged = merge_checkpoints(specialists, SHARES, tmp_path / "out")
    assert (merged.rank, merged.error) == (9, 0.0)
    found = changes(tmp_path / "out", base)
    assert distance(found, by_whole_weights(specialists, base, tmp_path)) < 1e-6
    assert sum(bool(one.any()) for one in found.values()) == 14
    assert checkpoint.find_base_checkpoint(tmp_path / "out").samefile(base)


def test_the_mean_of_doras_is_a_dora_exactly(dora, base, tmp_path):
    """The rows of one are scaled to its magnitudes, so that the mean is no sum of products, but a DoRA."""
    assert merge_checkpoints(dora, SHARES, tmp_path / "out").rank == 9
    assert checkpoint.read_adapter_config(tmp_path / "out")["use_dora"]
    wanted = by_whole_weights(dora, base, tmp_path)
    assert distance(changes(tmp_path / "out", base), wanted) < 1e-6
    loaded = PeftModel.from_pretrained(load_model(base), tmp_path / "out").merge_and_unload().state_dict()
    before = load_model(base).state_dict()
    assert distance({name: loaded[name] - before[name] for name in loaded}, wanted) < 1e-6
    told = merge_checkpoints(dora, SHARES, tmp_path / "low", rank=3)
    assert 0.1 < told.error < 0.9
    assert 0.1 * told.error < distance(changes(tmp_path / "low", base), wanted) < told.error


def test_peft_reads_the_sum_and_has_the_same(specialists, base, tmp_path):
    """`cat` of PEFT's own `add_weighted_adapter` is the exact sum too."""
    merge_checkpoints(specialists, SHARES, tmp_path / "out")
    ours = PeftModel.from_pretrained(load_model(base), tmp_path / "out").merge_and_unload().state_dict()
    theirs = PeftModel.from_pretrained(load_model(base), specialists[0], adapter_name="0")
    for n in (1, 2):
        theirs.load_adapter(specialists[n], adapter_name=str(n))
    theirs.add_weighted_adapter(["0", "1", "2"], SHARES, "all", combination_type="cat")
    theirs.set_adapter("all")
    before, both = load_model(base).state_dict(), theirs.merge_and_unload(adapter_names=["all"]).state_dict()
    peft = {name: both[name] - before[name] for name in both}
    assert distance({name: ours[name] - before[name] for name in ours}, peft) < 1e-6
    assert distance(changes(tmp_path / "out", base), peft) < 1e-6


@settings(max_examples=examples(10), deadline=None)
@given(
    some=st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 5), st.sampled_from([0.5, 1, 6, 32]), st.booleans()),
        min_size=1,
        max_size=4,
    ).filter(lambda some: any(weight for weight, *_ in some)),
    rank=st.integers(1, 24),
    seed=st.integers(0, 10**6),
)
def test_any_ranks_weights_and_scalings(base, tmp_path_factory, some, rank, seed):
    """The exact sum, and of a rank what the dense singular value decomposition gives, with its error."""
    folder = tmp_path_factory.mktemp("any")
    folders = [made(base, folder / str(n), r, alpha, seed + n, rs) for n, (_, r, alpha, rs) in enumerate(some)]
    total = sum(weight for weight, *_ in some)
    weights = [weight / total for weight, *_ in some]
    dense = sum(weight * product(one) for weight, one in zip(weights, folders, strict=True))
    exact = merge_adapters(folders, weights, folder / "exact")
    assert exact.rank == sum(r for weight, r, *_ in some if weight)
    assert torch.dist(product(folder / "exact"), dense) < 1e-6 * dense.norm()
    u, values, v = torch.linalg.svd(dense)
    best = u[:, :rank] * values[:rank] @ v[:rank]
    told = merge_adapters(folders, weights, folder / "low", rank)
    assert torch.dist(product(folder / "low"), best) < 1e-6 * dense.norm()
    assert told.error == pytest.approx(float(values[rank:].norm() / dense.norm()), abs=1e-6)
    assert told.worst_error == told.error
    used = next(one for one, weight in zip(folders, weights, strict=True) if weight)
    own, first = (checkpoint.read_adapter_config(one) for one in (folder / "low", used))
    assert (own["r"], own["lora_alpha"], own["use_rslora"]) == (rank, first["lora_alpha"], first["use_rslora"])


def test_training_goes_on_with_a_merged_adapter_of_the_specialists_rank(base, tmp_path):
    """Both factors carry the product alike; what the specialists' common factors leave free begins as new."""
    chosen = AdapterSettings.model_validate(LORA | {"rslora": True})
    one = specialist(base, tmp_path / "one", 0, rslora=True)
    told = merge_checkpoints([one, shutil.copytree(one, tmp_path / "same")], [0.5, 0.5], tmp_path / "out", rank=3)
    assert told.error < 1e-9
    assert distance(changes(tmp_path / "out", base), changes(one, base)) < 1e-6
    for a, b in _pairs(tmp_path / "out"):
        assert torch.allclose(a.norm(dim=1), b.norm(dim=0), rtol=1e-4)
    attach_adapter(load_model(base), tmp_path / "out", chosen, 1)
    wide = merge_checkpoints([one], [1.0], tmp_path / "wide", rank=5)
    assert (wide.rank, wide.error < 1e-9) == (5, True)
    for a, b in _pairs(tmp_path / "wide"):
        assert b[:, 3:].eq(0).all()
        assert (a[3:].norm(dim=1) > 0.3).all()


def _pairs(folder: Path) -> list[tuple[torch.Tensor, torch.Tensor]]:
    modules = adapter.iter_adapter_modules(read_adapter_tensors(folder), folder)
    return [(parts["lora_A"], parts["lora_B"]) for _, parts in modules]


def test_adapters_without_effect_merge_to_one(base, tmp_path):
    for n in range(2):
        model = load_model(base)
        attach_adapter(model, base, AdapterSettings.model_validate(LORA), n)
        save_adapter(model, base, tmp_path / str(n))
    told = merge_checkpoints([tmp_path / "0", tmp_path / "1"], [0.5, 0.5], tmp_path / "out", rank=3)
    assert (told.error, told.worst, told.rank) == (0.0, "", 3)
    assert not any(one.any() for one in changes(tmp_path / "out", base).values())
    assert all(a.norm() > 0.5 for a, _ in _pairs(tmp_path / "out"))
    assert adapter_distance(tmp_path / "0", tmp_path / "1") is None


@pytest.mark.parametrize("rank", [None, 3])
def test_one_adapter_comes_out_as_it_is(specialists, dora, tmp_path, rank):
    for folders in (specialists, dora):
        merge_checkpoints(folders, [0.0, 1.0, 0.0], tmp_path / "out", rank)
        found, wanted = (read_adapter_tensors(folder) for folder in (tmp_path / "out", folders[1]))
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        kept, own = (checkpoint.read_adapter_config(folder) for folder in (tmp_path / "out", folders[1]))
        assert {name for name in kept if kept[name] != own[name]} <= {"base_model_name_or_path"}


def test_the_distance_of_two_adapters_is_that_of_their_changes(specialists, dora, base, tmp_path):
    one, other = (changes(folder, base) for folder in specialists[:2])
    assert adapter_distance(*specialists[1::-1]) == pytest.approx(distance(one, other), rel=1e-4)
    assert adapter_distance(specialists[0], specialists[0]) == pytest.approx(0, abs=1e-7)
    assert adapter_distance(specialists[0], dora[0]) is None
    assert adapter_distance(specialists[0], made(base, tmp_path / "few", 3, 6, 0)) is None


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.fixture
def two(specialists, tmp_path) -> list[Path]:
    return [shutil.copytree(folder, tmp_path / folder.name) for folder in specialists[:2]]


def _changed(folder: Path, change) -> None:
    """The adapter's tensors, written anew after `change`."""
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


def _configured(folder: Path, **fields: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


Q = "base_model.model.model.language_model.layers.0.self_attn.q_proj"


def _put(folder: Path, name: str, tensor: torch.Tensor) -> None:
    _changed(folder, lambda tensors: tensors.update({name: tensor}))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda one: (one / "base.json").write_text('{"model": "../base", "digest": "00"}'), "it is of the base 00"),
        (lambda one: _changed(one, lambda t: [t.pop(f"{Q}.lora_{k}.weight") for k in "AB"]), "only one .*q_proj"),
        (lambda one: _changed(one, lambda t: t.pop(f"{Q}.lora_A.weight")), "0.self_attn.q_proj has no lora_A"),
        (lambda one: _put(one, f"{Q}.lora_B.weight", torch.ones(9, 3)), r"q_proj has shapes \(64, 64\) and \(9, 64\)"),
        (lambda one: _put(one, f"{Q}.lora_B.weight", torch.ones(64, 2)), r"lora_B \(64, 2\): no LoRA of rank 3"),
        (lambda one: _put(one, f"{Q}.lora_A.weight", torch.ones(3, 4, 1)), "no LoRA of rank 3"),
        (lambda one: _put(one, f"{Q}.lora_A.weight", torch.full((3, 64), math.nan)), "q_proj.lora_A is not finite"),
        (lambda one: _put(one, f"{Q}.lora_B.weight", torch.full((64, 3), math.inf)), "q_proj.lora_B is not finite"),
        (lambda one: _configured(one, lora_alpha=1e42), "the sum of .* is not finite in float32"),
        (lambda one: _put(one, f"{Q}.lora_embedding_A", torch.ones(3, 64)), "lora_embedding_A is no part of a LoRA"),
        (lambda one: _configured(one, use_dora=True), "no DoRA of rank 3"),
        (lambda one: _configured(one, rank_pattern={"q_proj": 8}), "an adapter with rank_pattern"),
        (lambda one: _configured(one, r=4), "no LoRA of rank 4"),
        (lambda one: (one / "adapter_model.safetensors").write_bytes(b"cut"), "cannot read the adapter"),
        (lambda one: (one / "adapter_config.json").write_text("{"), "is not JSON"),
    ],
)
def test_other_adapters_are_refused_by_name(two, tmp_path, base, change, named):
    shutil.copytree(base, tmp_path / "base")
    change(two[1])
    with pytest.raises(ModelError, match=named) as refused:
        merge_checkpoints(two, [0.5, 0.5], tmp_path / "out")
    assert refused.value.where.startswith(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"base", "rl-0", "rl-1"}


def test_an_adapter_beside_a_whole_checkpoint_is_refused(specialists, base, tmp_path):
    with pytest.raises(ModelError, match=r"an adapter, and .*base is a whole checkpoint.*rl-0.*model merge-adapter"):
        merge_checkpoints([specialists[0], base], [0.5, 0.5], tmp_path / "out")
    with pytest.raises(BadInput, match="whole checkpoints are not merged to a rank"):
        merge_checkpoints([base], [1.0], tmp_path / "out", rank=3)


@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.5, -0.5], [1.0], [math.nan, 1.0]])
def test_weights_of_adapters_must_be_convex(specialists, tmp_path, weights):
    with pytest.raises(BadInput, match="weights"):
        merge_checkpoints(specialists[:2], weights, tmp_path / "out")


def test_a_base_that_changed_or_is_gone_is_named(two, tmp_path, base):
    copy = shutil.copytree(base, tmp_path / "base")
    for folder in two:
        name = checkpoint.read_adapter_base(folder)
        (folder / "base.json").write_text(json.dumps({"model": "../base", "digest": name.digest}))
        _configured(folder, base_model_name_or_path=str(copy))
    merge_checkpoints(two, [0.5, 0.5], tmp_path / "out")
    weights = load_file(copy / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, copy / "model.safetensors")
    with pytest.raises(ModelError, match=r"belongs to the weights .* now has"):
        merge_checkpoints(two, [0.5, 0.5], tmp_path / "other")
    shutil.rmtree(copy)
    with pytest.raises(ModelError, match=r"the base of the adapter, \.\./base, is not there"):
        merge_checkpoints(two, [0.5, 0.5], tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_full_disk_leaves_what_was_there(specialists, tmp_path, monkeypatch):
    merge_checkpoints(specialists[:1], [1.0], tmp_path / "out")
    (tmp_path / ".out.1.part").mkdir()

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(adapter, "save_file", full)
    with pytest.raises(DiskFull):
        merge_checkpoints(specialists, SHARES, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert checkpoint.read_adapter_config(tmp_path / "out")["r"] == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_also_where_what_was_written_is_gone_by_then(specialists, tmp_path, monkeypatch, number):
    """safetensors has an error of its own, and without the half-written file the disk has room again."""

    def full(*_args, **_kwargs):
        raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})")

    monkeypatch.setattr(adapter, "save_file", full)
    with pytest.raises(DiskFull):
        merge_checkpoints(specialists, SHARES, tmp_path / "out")
    assert not list(tmp_path.iterdir())


# -- the stage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "rank"), [(0, 3), (2, 2), (9, 9)])
def test_the_stage_brings_the_sum_to_a_rank_and_tells_its_error(specialists, tmp_path, asked, rank):
    chosen = Settings.model_validate({"adapter": LORA, "merge": {"adapter_rank": asked}})
    for domain, folder in zip(chosen.synthesis.domains, specialists, strict=True):
        shutil.copytree(folder, tmp_path / f"rl-{domain}")
        name = checkpoint.read_adapter_base(folder)
        own = {"model": str(folder.parent / "base"), "digest": name.digest}
        write_json(tmp_path / f"rl-{domain}" / "base.json", own)
    place = SimpleNamespace(model=lambda _, name: tmp_path / name)
    links = SimpleNamespace(ws=place, settings=chosen, iteration=1, model_name=str, write_lineage=lambda *_: "links")
    result = json.loads(json.dumps(merge._work(links, tmp_path)))
    outcome = merge._finish(links, tmp_path, result)
    weights = list(chosen.merge.weights.values())
    told = merge_checkpoints(specialists, weights, tmp_path / "again", rank)
    assert [(row["name"], row["value"]) for row in outcome.metrics] == [("adapter_merge_error", told.error)]
    assert (outcome.summary["rank"], outcome.summary["left out by the rank"]) == (rank, f"{told.error:.2%}")
    assert checkpoint.checkpoint_digest(tmp_path / "merged") == checkpoint.checkpoint_digest(tmp_path / "again")
    assert "adapter" in merge.STAGE.settings


def test_a_run_is_refused_before_it_begins_where_the_merged_rank_is_another(specialists, base, tmp_path):
    ws = Workspace(tmp_path)
    merge_checkpoints(specialists, SHARES, ws.model(1, "merged"), rank=2)
    digest = checkpoint.checkpoint_digest(ws.model(1, "merged"))
    write_json(ws.promotion(1), {"model": "models/iteration=001/merged", "digest": digest})
    chosen = Settings.model_validate({"adapter": LORA, "policy": {"base": str(base)}})
    with pytest.raises(ModelError, match=r"the adapter has rank 2, adapter\.rank is 3"):
        iterations.run_preflight(ws, chosen, 2)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"rank": 8}, r"has rank 3, adapter\.rank is 8"),
        ({"targets": ["merger"]}, r"is of language_model, adapter\.targets are merger"),
    ],
)
def test_an_adapter_to_begin_with_is_held_against_the_settings_before_a_run(specialists, tmp_path, other, words):
    chosen = Settings.model_validate({"adapter": LORA | other, "policy": {"base": str(specialists[0])}})
    with pytest.raises(ModelError, match=words):
        iterations.run_preflight(Workspace(tmp_path), chosen)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stage", ["ct", "sft", "rl"])
def test_four_bits_want_a_gpu_for_each_stage_that_trains(stage, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("flywheel.policy.model.find_spec", lambda _: True)
    four = {"adapter": {"method": "lora", "base_dtype": "nf4"}}
    iterations._check_devices(Settings.model_validate(four))
    with pytest.raises(ModelError, match=rf"need a GPU \(adapter\.base_dtype, {stage}\.device\)"):
        iterations._check_devices(Settings.model_validate(four | {stage: {"device": "cpu"}}))


# -- commands -----------------------------------------------------------------------------------------------------


def flywheel(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["model", *map(str, words)])
    return done.exit_code, done.output


KINDS = [("qwen3_vl", True), ("qwen2_5_vl", False), ("qwen2_vl", True), ("qwen2_5_vl", True), ("qwen3_vl", False)]


@pytest.mark.parametrize(("architecture", "tied"), by_day(KINDS, 2))
def test_merge_adapter_writes_what_transformers_loads_and_peft_computes(tmp_path, architecture, tied):
    """Tied embeddings stay one tensor, on disk and in memory; the type is the base's."""
    kind = torch.bfloat16 if tied else torch.float32
    base = checkpoints.make(tmp_path / "base", architecture, tied=tied, dtype=kind)
    one = specialist(base, tmp_path / "one", 5, targets=["language_model", "merger", "vision_tower"])
    code, told = flywheel("merge-adapter", one, tmp_path / "whole")
    assert (code, f"a checkpoint in {str(kind).removeprefix('torch.')}" in told) == (0, True)
    whole = AutoModelForImageTextToText.from_pretrained(tmp_path / "whole", dtype="auto")
    same = whole.lm_head.weight.data_ptr() == whole.get_input_embeddings().weight.data_ptr()
    assert (whole.dtype, same, whole.config.tie_word_embeddings) == (kind, tied, tied)
    assert ("lm_head.weight" in load_file(tmp_path / "whole" / "model.safetensors")) != tied
    plain = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    peft = PeftModel.from_pretrained(plain, one).merge_and_unload().state_dict()
    found = whole.state_dict()
    assert found.keys() == peft.keys()
    for name, weight in peft.items():
        assert torch.allclose(found[name].float(), weight, rtol=2**-8 if tied else 1e-5, atol=1e-6), name
    assert flywheel("merge-adapter", one, tmp_path / "exact", "--dtype", "float32")[0] == 0
    exact = AutoModelForImageTextToText.from_pretrained(tmp_path / "exact", dtype="auto").state_dict()
    assert all(torch.allclose(exact[name], weight, rtol=1e-5, atol=1e-6) for name, weight in peft.items())


def test_merge_adapter_looks_for_room_before_it_reads_weights(specialists, tmp_path, monkeypatch):
    (tmp_path / ".out.1.part").mkdir()  # as a kill leaves it
    needs = checkpoint.count_parameters(checkpoint.find_base_checkpoint(specialists[0])) * 2
    monkeypatch.setattr("flywheel.cli.model.shutil.disk_usage", lambda _: SimpleNamespace(free=needs - 1))
    code, told = flywheel("merge-adapter", specialists[0], tmp_path / "out", "--dtype", "bfloat16")
    assert (code, "MiB are free" in told, len(told.splitlines())) == (1, True, 1), told
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("flywheel.cli.model.shutil.disk_usage", lambda _: SimpleNamespace(free=needs))
    assert flywheel("merge-adapter", specialists[0], tmp_path / "out", "--dtype", "bfloat16")[0] == 0


def test_an_adapter_of_a_tied_head_is_refused(base, tmp_path):
    """PEFT's merge adds it to the input embedding too."""
    tensors = {"base_model.model.lm_head.lora_A.weight": torch.ones(1, 64)}
    tensors["base_model.model.lm_head.lora_B.weight"] = torch.ones(checkpoints.ROWS, 1)
    fields = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["lm_head"]}
    write_adapter(tensors, fields, base, tmp_path / "head")
    code, told = flywheel("merge-adapter", tmp_path / "head", tmp_path / "out")
    assert (code, "it adapts lm_head, and with tied embeddings" in told) == (2, True)
    theirs = PeftModel.from_pretrained(load_model(base), tmp_path / "head").merge_and_unload()
    assert not torch.equal(theirs.get_input_embeddings().weight, load_model(base).get_input_embeddings().weight)


def test_commands_merge_and_refuse(specialists, base, tmp_path):
    code, told = flywheel("merge", *specialists, tmp_path / "out", "--weights", "0.5,0.3,0.2", "--rank", 3)
    assert code == 0
    assert "an adapter of rank 3, which leaves out" in told
    assert "the worst module" in told
    assert checkpoint.checkpoint_digest(tmp_path / "out") in told
    assert flywheel("merge", *specialists, tmp_path / "exact")[1].count("rank 9, the exact sum") == 1
    assert flywheel("merge", base, base, tmp_path / "whole")[0] == 0
    for words, said in (
        (("merge", base, tmp_path / "out"), "it is there already"),
        (("merge", base, tmp_path / "new", "--weights", "all"), "not numbers: all"),
        (("merge", base, tmp_path / "new", "--weights", "0.5"), "sum to 1"),
        (("merge", base, tmp_path / "new", "--rank", "2"), "leave the rank out"),
        (("merge", tmp_path / "none", tmp_path / "new"), "does not exist"),
        (("merge-adapter", base, tmp_path / "new"), "a whole checkpoint, and no adapter"),
        (("merge-adapter", specialists[0], base), "it is there already"),
        (("merge-adapter", specialists[0], base / "config.json" / "new"), "nothing can be made here"),
        (("merge", *specialists, base / "config.json" / "new"), "nothing can be made here"),
    ):
        code, told = flywheel(*words)
        assert (code, said in told, len(told.splitlines())) == (2, True, 1), told
    assert not (tmp_path / "new").exists()
    other = checkpoints.make(tmp_path / "base", "qwen3_vl", seed=3)
    assert flywheel("merge", specialists[0], specialist(other, tmp_path / "one", 1), tmp_path / "deep" / "new")[0] == 2
    assert not (tmp_path / "deep").exists()
