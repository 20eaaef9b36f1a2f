"""Adapters: trained as PEFT would train them, written as PEFT reads them, gone on with, and refused by name."""

from __future__ import annotations

import json
import shutil
import stat

import numpy as np
import pytest
import torch
from lamp_env import LEFT, RIGHT, screen, settings, small_model
from made_experience import made_up, response_logprobs
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file, save_file

from flywheel.agent.prompt import build_context
from flywheel.config import AdapterSettings, RlSettings, Settings, SupervisedSettings
from flywheel.policy.adapter import attach_adapter, check_adapter_form, get_adapter_state, write_adapter
from flywheel.policy.checkpoint import ADAPTER_WEIGHTS, check_checkpoint, checkpoint_digest, find_base_checkpoint
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model, save_checkpoint
from flywheel.training.data import Example, ShuffledDataset
from flywheel.training.modeling import monkey_patch, policy_forward
from flywheel.training.modeling.policy_forward import pad_samples
from flywheel.training.rl.algorithm import get_algorithm
from flywheel.training.rl.trainer import RLTrainer
from flywheel.training.sft import SupervisedTrainer, train_supervised
from flywheel.utils.errors import ModelError

S = settings()
BLOCK = SupervisedSettings(lr=1e-2, batch=4, save_every=2)
LORA = AdapterSettings(method="lora", rank=4, alpha=8)
EVERYWHERE = LORA.model_copy(update={"targets": ["language_model", "merger", "vision_tower"]})


@pytest.fixture(scope="module")
def base(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("model") / "base", project)


@pytest.fixture(scope="module")
def samples(base) -> list[Example]:
    encoder = Encoder.from_folder(base)
    made = []
    for i in range(8):
        side, text = (("left", LEFT), ("right", RIGHT))[i % 2]
        context = encoder.encode(build_context("Click the lamp.", (), screen(side, i // 4), S.policy))
        made.append(Example(context, tuple(encoder.encode_text(text)), None, f"t{i:02d}", 0, "games"))
    return made


def train(begin, folder, samples, *, adapter=LORA, seed=5, **more):
    dataset = ShuffledDataset(samples, BLOCK.batch, 3)
    arguments = {"settings": BLOCK, "state_folder": folder / "state", "adapter": adapter, "seed": seed} | more
    return train_supervised(begin, folder / "out", dataset, **arguments)


@pytest.fixture(scope="module")
def trained(base, samples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(base, folder, samples * 2)
    return folder / "out"


def copied(adapter, folder):
    """A copy in another place, whose base is named by where it lies."""
    shutil.copytree(adapter, folder)
    named = json.loads((folder / "base.json").read_text())
    (folder / "base.json").write_text(json.dumps(named | {"model": str(find_base_checkpoint(adapter).resolve())}))
    return folder


def peft_steps(base, trainer, chosen, steps):
    """Losses and gradients of a plain loop over PEFT's own model: padded batches, the library's passes. It begins with
    the adapter that `trainer` begins with, and takes the same batches."""
    config = LoraConfig(
        r=chosen.rank,
        lora_alpha=chosen.alpha,
        use_rslora=chosen.rslora,
        use_dora=chosen.dora,
        target_modules=trainer.policy.peft_config["default"].target_modules,
    )
    model = get_peft_model(load_model(base), config)
    begun = get_adapter_state(trainer.policy)
    set_peft_model_state_dict(model, {f"base_model.model.{name}": one.clone() for name, one in begun.items()})
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=0.0, betas=(0.9, BLOCK.beta2), weight_decay=BLOCK.weight_decay)
    found = []
    for number in range(steps):
        batch = trainer.dataset.get_batch(number)
        padded = pad_samples([one.context for one in batch], [one.response for one in batch])
        logprobs, _ = response_logprobs(model.base_model.model, padded)
        loss = -logprobs[padded.mask].mean()
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        torch.nn.utils.clip_grad_norm_(weights, BLOCK.max_grad_norm)
        optimizer.param_groups[0]["lr"] = BLOCK.lr
        optimizer.step()
        optimizer.zero_grad()
        found.append((float(loss.detach()), gradients))
    return found


def watch_gradients(trainer):
    """A mapping that holds, after each step, the gradients that it was taken by."""
    seen, step = {}, trainer.engine.step

    def look(rate):
        seen.update({n: p.grad.clone() for n, p in trainer.policy.named_parameters() if p.grad is not None})
        return step(rate)

    trainer.engine.step = look
    return seen


@pytest.mark.parametrize("form", [{}, {"rslora": True}, {"dora": True}], ids=["lora", "rslora", "dora"])
def test_losses_and_gradients_are_those_of_peft_in_a_plain_loop(base, samples, form):
    chosen = EVERYWHERE.model_copy(update=form)
    block = BLOCK.model_copy(update={"freeze_vision": False})
    trainer = SupervisedTrainer(base, ShuffledDataset(samples, BLOCK.batch, 3), block, "sft", chosen, 5)
    expected = peft_steps(base, trainer, chosen, 2)
    seen = watch_gradients(trainer)
    for number, (loss, gradients) in enumerate(expected):
        mine, _ = trainer.step(number, BLOCK.lr)
        assert mine == pytest.approx(loss, abs=1e-5)
        theirs = {name.removeprefix("base_model.model."): one for name, one in gradients.items()}
        assert seen.keys() == theirs.keys()
        largest = max(float(one.abs().max()) for one in theirs.values())
        for name, one in theirs.items():
            np.testing.assert_allclose(seen[name], one, atol=1e-5 * max(1.0, largest), err_msg=name)


def test_it_learns_and_nothing_of_the_base_changes(base, samples, tmp_path):
    before = checkpoint_digest(base)
    losses = train(base, tmp_path, samples * 6)
    assert losses[-1] < 0.7 * losses[0]
    assert checkpoint_digest(base) == before
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "base.json",
    }
    assert find_base_checkpoint(tmp_path / "out").samefile(base)


def test_peft_reads_what_is_written_and_merges_it_to_the_same_weights(base, trained):
    by_peft = PeftModel.from_pretrained(load_model(base), trained).merge_and_unload().state_dict()
    mine = load_model(trained).state_dict()
    assert mine.keys() == by_peft.keys()
    assert all(torch.equal(mine[name], by_peft[name]) for name in mine)
    assert any(not torch.equal(mine[name], one) for name, one in load_model(base).state_dict().items())


@pytest.mark.parametrize("form", [{"rslora": True}, {"dora": True}], ids=["rslora", "dora"])
def test_other_forms_are_merged_as_peft_does(base, samples, tmp_path, form):
    train(base, tmp_path, samples, adapter=EVERYWHERE.model_copy(update=form), settings=BLOCK)
    by_peft = PeftModel.from_pretrained(load_model(base), tmp_path / "out").merge_and_unload().state_dict()
    for name, one in load_model(tmp_path / "out").state_dict().items():
        np.testing.assert_allclose(one, by_peft[name], atol=1e-6, err_msg=name)


def test_training_goes_on_with_the_adapter_that_it_begins_with(base, trained, samples, tmp_path):
    train(trained, tmp_path, samples)
    assert find_base_checkpoint(tmp_path / "out").samefile(base)
    policy = load_model(base)
    attach_adapter(policy, trained, LORA, seed=99)
    file = load_file(trained / ADAPTER_WEIGHTS)
    for name, weight in get_adapter_state(policy).items():
        assert torch.equal(weight, file[f"base_model.model.{name}"])
    assert checkpoint_digest(tmp_path / "out") != checkpoint_digest(trained)


def test_without_a_method_the_merged_weights_are_trained(trained, samples, tmp_path):
    train(trained, tmp_path, samples, adapter=AdapterSettings())
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert not (tmp_path / "out" / "adapter_config.json").exists()


def test_a_killed_training_resumes_to_the_same_adapter(base, samples, tmp_path):
    train(base, tmp_path / "whole", samples * 2)

    class Killed(Exception):
        pass

    def kill(metric):
        if metric["step"] == 3:
            raise Killed

    with pytest.raises(Killed):
        train(base, tmp_path / "cut", samples * 2, on_metric=kill)
    state = torch.load(tmp_path / "cut" / "state" / "supervised.pt", weights_only=True)["state"]
    assert all("lora_" in name for name in state["modules"]["policy"])
    train(base, tmp_path / "cut", samples * 2)
    assert checkpoint_digest(tmp_path / "cut" / "out") == checkpoint_digest(tmp_path / "whole" / "out")


@pytest.mark.parametrize(
    ("adapter", "every"), [(AdapterSettings(), 1), (EVERYWHERE, 1), (EVERYWHERE, 2)], ids=["whole", "adapter", "half"]
)
def test_less_memory_changes_no_number(base, samples, monkeypatch, adapter, every):
    """Checkpointing, of all layers or every second, and logits in chunks: the same losses and gradients to rounding."""
    block = BLOCK.model_copy(update={"freeze_vision": False})
    found = {}
    for saving in (False, True):
        monkeypatch.setattr(policy_forward, "_LOGITS", 2048 * 3 if saving else 1 << 24)
        chosen = block.model_copy(update={"gradient_checkpointing": saving, "checkpoint_every_n_layers": every})
        trainer = SupervisedTrainer(base, ShuffledDataset(samples, 4, 3), chosen, "sft", adapter, 5)
        layers = trainer.policy.base_model.language_model.layers
        assert [one.gradient_checkpointing for one in layers].count(True) == saving * -(-len(layers) // every)
        seen = watch_gradients(trainer)
        found[saving] = trainer.step(0, BLOCK.lr)[0], seen
    assert found[True][0] == pytest.approx(found[False][0], abs=1e-5)
    assert found[True][1].keys() == found[False][1].keys()
    for name, one in found[False][1].items():
        np.testing.assert_allclose(found[True][1][name], one, atol=1e-5, err_msg=name)


def test_an_output_layer_that_zero_has_in_parts_is_only_called(base, samples, monkeypatch):
    """Its weight is empty outside of its own call."""
    monkeypatch.setattr(policy_forward, "_LOGITS", 2048 * 3)
    trainer = SupervisedTrainer(base, ShuffledDataset(samples, 4, 3), BLOCK, "sft", LORA, 5)
    whole = trainer.step(0, BLOCK.lr)[0]
    trainer = SupervisedTrainer(base, ShuffledDataset(samples, 4, 3), BLOCK, "sft", LORA, 5)
    trainer.policy.get_output_embeddings().weight.ds_id = 0
    monkeypatch.delattr(policy_forward, "_FixedHeadLogprobs")
    assert trainer.step(0, BLOCK.lr)[0] == pytest.approx(whole, abs=1e-6)


def test_a_base_in_bfloat16_learns_by_an_adapter_in_float32(base, samples, tmp_path):
    chosen = LORA.model_copy(update={"base_dtype": "bfloat16"})
    dataset = ShuffledDataset(samples * 4, 4, 3)
    trainer = SupervisedTrainer(base, dataset, BLOCK, "sft", chosen, 5)
    assert all(one.dtype == torch.float32 for name, one in trainer.policy.named_parameters() if "lora_" in name)
    kept = [one for name, one in trainer.policy.named_parameters() if one.ndim == 2 and "lora_" not in name]
    assert sum(one.dtype == torch.bfloat16 for one in kept) > 0.9 * len(kept)
    whole = SupervisedTrainer(base, dataset, BLOCK, "sft", LORA, 5)
    pairs = [(trainer.step(n, BLOCK.lr)[0], whole.step(n, BLOCK.lr)[0]) for n in range(len(dataset))]
    for mine, theirs in pairs:
        assert mine == pytest.approx(theirs, rel=0.05)
    assert pairs[-1][0] < 0.8 * pairs[0][0]


def test_a_checkpoint_in_bfloat16_is_computed_with_as_in_float32(base, samples, tmp_path, monkeypatch):
    """Kept in half the bits, with the same losses and gradients: what is widened is what was on disk."""
    narrow = save_checkpoint(load_model(base), Encoder.from_folder(base), tmp_path / "base", dtype=torch.bfloat16)
    monkeypatch.setattr(monkey_patch, "_WIDE", 5000)  # each layer in blocks of rows
    found = {}
    for kept in ("float32", "bfloat16"):
        chosen = EVERYWHERE.model_copy(update={"base_dtype": kept})
        block = BLOCK.model_copy(update={"freeze_vision": False, "gradient_checkpointing": kept == "bfloat16"})
        trainer = SupervisedTrainer(narrow, ShuffledDataset(samples, 4, 3), block, "sft", chosen, 5)
        seen = watch_gradients(trainer)
        found[kept] = trainer.step(0, BLOCK.lr)[0], seen
    assert found["bfloat16"][0] == pytest.approx(found["float32"][0], abs=1e-5)
    for name, one in found["float32"][1].items():
        np.testing.assert_allclose(found["bfloat16"][1][name], one, atol=1e-5, err_msg=name)


def test_dropout_leaves_out_the_same_again(base, samples, tmp_path):
    chosen = LORA.model_copy(update={"dropout": 0.3})
    found = []
    for name in ("one", "other"):
        torch.manual_seed(11)
        found.append(train(base, tmp_path / name, samples, adapter=chosen))
    assert found[0] == found[1]
    torch.manual_seed(12)
    assert train(base, tmp_path / "third", samples, adapter=chosen) != found[0]


def refused(call, *words):
    with pytest.raises(ModelError) as error:
        call()
    for word in words:
        assert word in str(error.value)


def test_an_adapter_of_another_kind_is_refused_by_name(trained, samples, tmp_path):
    for change, *words in (
        ({"rank": 8}, "rank 4, adapter.rank is 8"),
        ({"alpha": 16}, "alpha 8, adapter.alpha is 16"),
        ({"rslora": True}, "rslora false, adapter.rslora is true"),
        ({"targets": ["language_model", "merger"]}, "adapter.targets are language_model, merger", "merge-adapter"),
    ):
        chosen = LORA.model_copy(update=change)
        refused(lambda: train(trained, tmp_path, samples, adapter=chosen), *words)  # noqa: B023
        assert not (tmp_path / "out").exists()


def test_what_is_wrong_with_an_adapters_files_is_told(trained, base, tmp_path):
    def broken(change):
        folder = copied(trained, tmp_path / f"c{len(list(tmp_path.iterdir()))}")
        change(folder)
        return lambda: (check_checkpoint(folder), load_model(folder))

    def config(**more):
        def change(folder):
            path = folder / "adapter_config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | more))

        return change

    def without(folder, field):
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({name: one for name, one in json.loads(path.read_text()).items() if name != field}))

    def weights(how):
        def change(folder):
            tensors = load_file(folder / ADAPTER_WEIGHTS)
            how(tensors)
            save_file(tensors, folder / ADAPTER_WEIGHTS)

        return change

    first = next(iter(sorted(load_file(trained / ADAPTER_WEIGHTS))))
    broken(lambda folder: None)()  # as it is
    refused(broken(config(peft_type="IA3")), "'IA3'")
    refused(broken(config(bias="all")), 'bias "all"')
    refused(broken(config(new_field={"a": 1}, peft_version="9.0")), "new_field", "PEFT 9.0")
    refused(broken(config(init_lora_weights="pissa")), "pissa", "changed weights")
    refused(broken(config(r=0)), "no rank: r is 0")
    refused(broken(config(r=True)), "no rank: r is true")
    refused(broken(lambda f: without(f, "lora_alpha")), "no alpha: lora_alpha is missing")
    refused(broken(config(r=8)), "lora_A (4, ", "adapter_config.json says rank 8")  # it would be scaled by half
    refused(broken(lambda f: (f / "adapter_config.json").write_text("{")), "adapter_config.json is not JSON")
    refused(broken(lambda f: (f / "base.json").write_text("{}")), "base.json names no model")
    refused(broken(lambda f: (f / ADAPTER_WEIGHTS).unlink()), "the adapter has no adapter_model.safetensors")
    pickled = broken(lambda f: (f / ADAPTER_WEIGHTS).rename(f / "adapter_model.bin"))
    refused(pickled, "but adapter_model.bin, which is not read", "safe_serialization")
    refused(broken(lambda f: (f / ADAPTER_WEIGHTS).write_bytes((f / ADAPTER_WEIGHTS).read_bytes()[:-99])), "cut off")
    refused(broken(weights(lambda t: t[first].fill_(float("nan")))), "is not finite")
    refused(broken(weights(lambda t: t.update({first: t[first][:, :-1].contiguous()}))), "another base")
    refused(broken(weights(lambda t: t.pop(first))), "has no lora_A")
    refused(broken(weights(lambda t: t.update({"odd": torch.ones(1)}))), "odd is no part of a LoRA")
    gone = json.dumps({"model": "nowhere", "digest": "x"})
    moved = broken(lambda f: ((f / "base.json").write_text(gone), config(base_model_name_or_path="/nowhere")(f)))
    refused(moved, "base of the adapter, nowhere, is not there")


def test_a_base_that_changed_under_its_adapter_is_refused(base, trained, tmp_path):
    other = tmp_path / "base"
    model = load_model(base)
    with torch.no_grad():
        model.model.language_model.norm.weight[0] += 1
    save_checkpoint(model, Encoder.from_folder(base), other)
    folder = copied(trained, tmp_path / "adapter")
    named = json.loads((folder / "base.json").read_text())
    (folder / "base.json").write_text(json.dumps(named | {"model": "../base"}))
    refused(lambda: check_checkpoint(folder), checkpoint_digest(base), checkpoint_digest(other), "bring those weights")


def test_a_base_with_another_configuration_under_its_adapter_is_refused(base, trained, tmp_path):
    """Its weights are the same, and their shapes fit: the numbers would be others without a word."""
    shutil.copytree(base, tmp_path / "base")
    folder = copied(trained, tmp_path / "adapter")
    named = json.loads((folder / "base.json").read_text()) | {"model": "../base"}
    (folder / "base.json").write_text(json.dumps(named))
    config = json.loads((base / "config.json").read_text())

    def change(**more):
        text = config["text_config"] | more
        (tmp_path / "base" / "config.json").write_text(json.dumps(config | {"text_config": text}))

    change(use_cache=False, dtype="bfloat16")  # as another version of the library writes it
    check_checkpoint(folder)
    change(rms_norm_eps=0.1)
    for weights in (True, False):
        refused(lambda: check_checkpoint(folder, weights=weights), named["config"], "bring that file back")  # noqa: B023
    del named["config"]  # as earlier versions wrote it
    (folder / "base.json").write_text(json.dumps(named))
    check_checkpoint(folder)


def test_an_adapter_whose_weights_have_another_rank_is_refused_before_training(base, trained, tmp_path):
    folder = copied(trained, tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"r": 8, "lora_alpha": 16}))
    chosen = LORA.model_copy(update={"rank": 8, "alpha": 16})
    refused(lambda: check_adapter_form(folder, chosen), "adapter_config.json says rank 8")


def test_a_base_that_the_hub_has_not_is_told_with_the_adapter(trained, tmp_path, monkeypatch):
    def offline(*_args, **_kwargs):
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    folder = copied(trained, tmp_path / "adapter")
    (folder / "base.json").write_text(json.dumps({"model": "an/owner", "digest": "x"}))
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "an/owner"}))
    refused(lambda: check_checkpoint(folder), "base of the adapter cannot be had", "no network", f"({folder})")


def test_a_server_of_another_user_can_read_an_adapter(trained):
    assert {stat.S_IMODE(file.stat().st_mode) & 0o444 for file in trained.iterdir()} == {0o444}


def test_an_adapter_on_an_adapter_is_refused(trained, tmp_path):
    folder = copied(trained, tmp_path / "upper")
    digest = checkpoint_digest(trained)
    (folder / "base.json").write_text(json.dumps({"model": str(trained), "digest": digest}))
    refused(lambda: check_checkpoint(folder), "is an adapter too", "merge-adapter")


def test_an_adapter_of_other_hands_finds_its_base_by_pefts_field(base, trained, tmp_path):
    folder = copied(trained, tmp_path / "foreign")
    (folder / "base.json").unlink()
    assert find_base_checkpoint(folder).samefile(base)
    ours, theirs = load_model(trained).state_dict(), load_model(folder).state_dict()
    assert all(torch.equal(one, theirs[name]) for name, one in ours.items())
    assert checkpoint_digest(folder) == checkpoint_digest(trained)


def test_a_workspace_may_be_moved(base, trained, tmp_path):
    shutil.copytree(base, tmp_path / "ws" / "models" / "base")
    train_into = tmp_path / "ws" / "data"
    tensors = load_file(trained / ADAPTER_WEIGHTS)
    config = json.loads((trained / "adapter_config.json").read_text())
    write_adapter(tensors, config, tmp_path / "ws" / "models" / "base", train_into / "ct")
    assert json.loads((train_into / "ct" / "base.json").read_text())["model"] == "../../models/base"
    (tmp_path / "ws").rename(tmp_path / "moved")
    assert find_base_checkpoint(tmp_path / "moved/data/ct").resolve() == tmp_path / "moved/models/base"


def test_rl_trains_the_adapter_and_agrees_with_what_answers(base, trained, tmp_path):
    """What samples has base and adapter merged, what trains has them apart: the log-probabilities agree. A killed run
    goes on to the same weights."""
    rl = RlSettings(actor_lr=1e-3, minibatch=8, critic_epochs=1, gradient_checkpointing=True)
    chosen = Settings(rl=rl, adapter=LORA, policy=S.policy)
    batch = made_up(trained, rl)
    learner = RLTrainer(trained, chosen, 0, get_algorithm("ppo"))
    figures, _ = learner.update(batch, 1)
    assert figures["mismatch"] < 1e-4
    learner.save(tmp_path / "rl.pt", {"key": "a"})
    learner.update(batch, 2)
    learner.write(tmp_path / "one")
    again = RLTrainer(trained, chosen, 0, get_algorithm("ppo"))
    again.load(tmp_path / "rl.pt", "a")
    again.update(batch, 2)
    again.write(tmp_path / "other")
    assert checkpoint_digest(tmp_path / "one") == checkpoint_digest(tmp_path / "other")
    assert find_base_checkpoint(tmp_path / "one").samefile(base)
    assert (tmp_path / "rl.pt").stat().st_size < 2 << 20
