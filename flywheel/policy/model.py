"""Make, load and save the policy's network, a Qwen3-VL, and train the tokeniser of the tiny one."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterable
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from safetensors import safe_open
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.utils.logging import disable_progress_bar, get_logger

from flywheel.policy import checkpoint
from flywheel.policy.adapter import merge_adapter
from flywheel.utils.errors import ModelError
from flywheel.utils.files import atomic_folder, disk_full_errors

if TYPE_CHECKING:
    from flywheel.policy.encoding import Encoder


# The tokeniser of the embedded model: a small byte-level BPE like Qwen's, with about 2,000 entries. Every digit, word
# of the general data's screens and fixed piece of the action grammar is one token: an answer takes about 16 tokens.

_TINY = json.loads(resources.files("flywheel.policy").joinpath("tiny_model.json").read_text(encoding="utf-8"))
VOCABULARY_SIZE = _TINY["config"]["text_config"]["vocab_size"]
SPECIAL_TOKENS, GRAMMAR_TOKENS = tuple(_TINY["special_tokens"]), tuple(_TINY["grammar_tokens"])
# Qwen's chat template without its default system message; an image stays at its place in the message.
CHAT_TEMPLATE = _TINY["chat_template"]


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a tokeniser of `VOCABULARY_SIZE` tokens on `texts`, or of fewer where there are few texts; deterministic.

    Special tokens have the first ids, in order.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(GRAMMAR_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, "user\n", "assistant\n"] * 2, trainer)
    tokenizer.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in GRAMMAR_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[token for token in SPECIAL_TOKENS if token not in ("<|im_end|>", "<|endoftext|>")],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


# The network: a Qwen3-VL of 5 million parameters, configured by `config` in `tiny_model.json`. Its initial weights have
# a larger standard deviation (`initializer_range`) than the library's 0.02, with which a model this small learns no
# grounding at all.

disable_progress_bar()
# What the library's table of several lines tells of weights stands in the errors and warnings of `load_model`.
get_logger("transformers.modeling_utils").addFilter(
    lambda record: "LOAD REPORT" not in (text := record.getMessage()) or "CONVERSION" in text
)
log = logging.getLogger(__name__)

SCREEN_SIDE = 224  # the tiny model's screen, in pixels: 14 x 14 patches of 16, merged 2 x 2 into 49 tokens
# Standard deviation of the patch projection's weights: its 1,536 inputs are nearly equal on a flat screen, and with
# larger weights their sum would hide the position embeddings.
PATCH_STD = 0.02

# Four heads of each vision layer begin by attending to a neighbouring patch, as a convolution would, farther away in
# each layer; the others begin at random. A vision tower this small takes long to learn that shapes are local.
NEIGHBOUR_OFFSETS = tuple(((0, n), (0, -n), (m, 0), (-m, 0)) for n, m in ((1, 1), (2, 1), (3, 2)))
# Size of the constant parts of query and key: nine tenths of the attention go to the neighbour.
NEIGHBOUR_ATTENTION = 7.0


def tiny_config() -> Qwen3VLConfig:
    """Return the configuration of a Qwen3-VL of 5M parameters for 224 x 224 screens."""
    return Qwen3VLConfig(**copy.deepcopy(_TINY["config"]))


def make_tiny_model(seed: int) -> Qwen3VLForConditionalGeneration:
    """Make a tiny Qwen3-VL (`tiny_config`), in float32 on the CPU, with weights drawn by `seed`.

    Equal seeds give equal weights. Torch's global random state stays.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(tiny_config())
        visual = model.model.visual
        torch.nn.init.normal_(visual.patch_embed.proj.weight, std=PATCH_STD)
        with torch.no_grad():
            visual.pos_embed.weight.copy_(_sine_positions(visual.num_grid_per_side, visual.pos_embed.embedding_dim))
            for block, offsets in zip(visual.blocks, NEIGHBOUR_OFFSETS, strict=True):
                for head, offset in enumerate(offsets):
                    _attend_to_neighbour(block.attn, head, offset)
    return model


def _attend_to_neighbour(attention: torch.nn.Module, head: int, offset: tuple[int, int]) -> None:
    """Make a vision head begin by attending to the patch `offset` (rows, columns) away, whatever the two patches show.

    With rotary positions a score is a sum over frequencies f of |q||k| cos(f (position of k - position of q) - phase):
    constant parts of q and k (their biases) whose phases differ by f x offset give a peak at that offset.
    """
    width = attention.head_dim
    frequencies = 10_000.0 ** (-torch.arange(3) / (width // 4))
    weight = attention.qkv.weight.view(3, -1, width, attention.dim)
    bias = attention.qkv.bias.view(3, -1, width)
    weight[:2, head] *= 0.15  # what the patches show matters little at first
    for start, distance in ((0, offset[0]), (width // 4, offset[1])):
        real, imaginary = slice(start, start + 3), slice(start + width // 2, start + width // 2 + 3)
        bias[0, head, real] = NEIGHBOUR_ATTENTION * torch.cos(frequencies * distance)
        bias[0, head, imaginary] = NEIGHBOUR_ATTENTION * torch.sin(frequencies * distance)
        bias[1, head, real] = NEIGHBOUR_ATTENTION


def _sine_positions(side: int, width: int) -> torch.Tensor:
    """Return sines and cosines of x and of y, at 1/4 to `side` / 2 waves per screen: [side x side, width].

    The position embeddings begin with these values and not at random, so that what the model learns at one patch
    serves the neighbouring patches too.
    """
    frequency = 2 * torch.pi * torch.logspace(-2, float(torch.tensor(side / 2).log2()), width // 4, base=2.0)
    place = torch.arange(side) / (side - 1)
    angle = place[:, None] * frequency
    wave = torch.cat([angle.sin(), angle.cos()], dim=1)  # [side, width / 2]
    rows, columns = wave[:, None].expand(-1, side, -1), wave[None].expand(side, -1, -1)
    return torch.cat([rows, columns], dim=-1).reshape(side * side, width)


def load_model(
    folder: Path | str, *, dtype: Literal["float32", "bfloat16", "nf4"] = "float32", device: str = "cpu"
) -> PreTrainedModel:
    """Load the checkpoint in `folder`, in evaluation mode; an adapter is merged into its base.

    Nothing is downloaded but a base that the adapter knows by its Hugging Face name alone. dtype: of the weights in
    memory, whatever is on disk. Training needs float32, for its updates and for log-probabilities exact to 1e-4; nf4 is
    4 bits (bitsandbytes, on a GPU), for a base that adapters are trained on. device: cpu, cuda, or auto (cuda if there
    is one). Weights that have no place in the model are left out, with a warning. Raises ModelError, in one line, for a
    device that is not there, a folder that is not a model of the Qwen-VL family (`check_checkpoint`), weights that are
    cut off, incomplete or of other shapes, a missing bitsandbytes, and as `merge_adapter`; but torch.OutOfMemoryError
    for float32 or bfloat16 weights that the GPU cannot hold.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("there is no GPU that torch can use", where="policy.device", fix="set it to auto or cpu")
    checkpoint.check_checkpoint(folder)
    if checkpoint.is_adapter(folder):
        model = load_model(checkpoint.find_base_checkpoint(folder), dtype=dtype, device=device)
        merge_adapter(model, Path(folder))
        return model
    options: dict = {"dtype": getattr(torch, dtype)} if dtype != "nf4" else _four_bits(device)
    try:
        with torch.device("meta"):  # shapes only: a wrong config.json must not fill the memory with random weights
            shape = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
        expected, there = sum(p.numel() for p in shape.parameters()), checkpoint.count_parameters(folder)
        if there < 0.9 * expected:
            raise ModelError(f"the weights have {there:,} numbers, config.json describes a model of {expected:,}")
        model, info = AutoModelForImageTextToText.from_pretrained(
            Path(folder), local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
        if unlike := sorted(info["mismatched_keys"]):
            name, stored, described = unlike[0]
            what = f"{name} is {list(stored)} in the weights, {list(described)} by config.json ({len(unlike)} differ)"
            raise ModelError(what)
    except Exception as error:  # the library raises many classes; all mean that this folder cannot be used
        what = f"the model cannot be loaded: {checkpoint.summarise_error(error)}"
        raise ModelError(what, where=folder, fix="copy it again") from None
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ModelError(f"the weights lack {missing[0]} ({len(missing)} in all)", where=folder, fix="copy it again")
    if info["unexpected_keys"]:
        unused = sorted(info["unexpected_keys"])
        log.warning("%s: %d weights have no place in the model, %s among them", folder, len(unused), unused[0])
    return model.eval() if dtype == "nf4" else model.eval().to(device)


def _four_bits(device: str) -> dict:
    """Return the library's arguments that load weights in NF4 (QLoRA: Dettmers et al. 2023) and compute in bfloat16."""
    require_bitsandbytes("adapter.base_dtype", device)
    from transformers import BitsAndBytesConfig

    four = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"dtype": torch.bfloat16, "quantization_config": four, "device_map": {"": device}}


def require_bitsandbytes(where: str, device: str) -> None:
    """Raise ModelError unless bitsandbytes is installed and `device`, or what auto chooses, is a GPU.

    where: the parameter that asks for bitsandbytes, for the message.
    """
    if device == "cpu" or not torch.cuda.is_available():
        raise ModelError("8 and 4 bits need a GPU", where=where, fix="set it to another value, or train on a GPU")
    if find_spec("bitsandbytes") is None:
        raise ModelError("bitsandbytes is not installed", where=where, fix="pip install 'flywheel[bitsandbytes]'")


def stored_dtype(folder: Path | str) -> Literal["float32", "bfloat16"]:
    """Return the type that holds a whole checkpoint's weights without loss: bfloat16 where all are, else float32.

    float64 is not expected: float32 would round it. folder: of the checkpoint. Only the files' headers are read. Raises
    ModelError as `list_weight_files`, safetensors.SafetensorError for a file of another format or one that is cut off.
    """
    kinds = set()
    for file in checkpoint.list_weight_files(folder):
        with safe_open(file, framework="pt") as opened:
            kinds |= {opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118 - not a mapping
    return "bfloat16" if kinds == {"BF16"} else "float32"


def save_checkpoint(
    model: PreTrainedModel, encoder: Encoder, folder: Path | str, *, dtype: torch.dtype = torch.float32
) -> Path:
    """Write weights, tokeniser and image processor to `folder`, whole or not at all; return the folder.

    model: the network, whole, not quantised. encoder: the model's own. folder: replaced with all its files where it
    exists. dtype: of the weights on disk. Raises DiskFull, OSError where it cannot be written.
    """
    folder = Path(folder)
    with disk_full_errors(folder), atomic_folder(folder) as staged:
        made: dict[tuple, torch.Tensor] = {}  # tied weights stay one tensor, which is written once
        state = {
            name: made.setdefault((tensor.data_ptr(), tensor.shape), tensor.detach().to(dtype))
            for name, tensor in model.state_dict().items()
        }
        model.save_pretrained(staged, state_dict=state)
        encoder.save(staged)
        config = json.loads((staged / "config.json").read_text())
        config["dtype"] = str(dtype).removeprefix("torch.")
        (staged / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        for file in staged.iterdir():
            file.chmod(0o644)  # the library makes some of them private
    return folder
