"""The policy's network: a Qwen3-VL of a few million parameters, made, loaded, saved and named by its weights."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import (
    AutoModelForImageTextToText,
    PreTrainedModel,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.utils import logging

from flywheel.errors import ModelError
from flywheel.policy.tokenizer import SPECIAL, VOCABULARY

logging.disable_progress_bar()

if TYPE_CHECKING:
    from flywheel.policy.encoding import Encoder

SCREEN = 224  # the tiny model's screen, in pixels: 14 x 14 patches of 16, merged 2 x 2 into 49 tokens
INITIALIZER_RANGE = 0.08  # at the library's 0.02 a model this small learns no grounding at all
PATCH_STD = (
    0.02  # of the patch projection: its 1,536 inputs are nearly alike on a flat screen, and would drown positions
)


def tiny_config() -> Qwen3VLConfig:
    """A Qwen3-VL of about 3M parameters for 224 x 224 screens."""
    token = {name: number for number, name in enumerate(SPECIAL)}
    hidden = 192
    return Qwen3VLConfig(
        text_config={
            "vocab_size": VOCABULARY, "hidden_size": hidden, "intermediate_size": 512, "num_hidden_layers": 4,
            "num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 32, "max_position_embeddings": 4096,
            "initializer_range": INITIALIZER_RANGE, "tie_word_embeddings": True,
            "pad_token_id": token["<|endoftext|>"], "eos_token_id": token["<|im_end|>"], "bos_token_id": None,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 3, "hidden_size": 128, "intermediate_size": 384, "num_heads": 4, "patch_size": 16,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": hidden,
            "num_position_embeddings": (SCREEN // 16) ** 2, "deepstack_visual_indexes": [0],
            "initializer_range": INITIALIZER_RANGE,
        },
        image_token_id=token["<|image_pad|>"], video_token_id=token["<|video_pad|>"],
        vision_start_token_id=token["<|vision_start|>"], vision_end_token_id=token["<|vision_end|>"],
        tie_word_embeddings=True,
    )  # fmt: skip


def new_model(seed: int) -> Qwen3VLForConditionalGeneration:
    """A tiny model, freshly initialised, in float32. The same seed gives the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(tiny_config())
        visual = model.model.visual
        torch.nn.init.normal_(visual.patch_embed.proj.weight, std=PATCH_STD)
        with torch.no_grad():
            visual.pos_embed.weight.copy_(_waves(visual.num_grid_per_side, visual.pos_embed.embedding_dim))
    return model


def _waves(side: int, width: int) -> torch.Tensor:
    """Sines and cosines of x and of y at a quarter to `side` / 2 waves a screen: [side x side, width].

    The patch positions begin so, and not at random, that what is learnt at one place serves its neighbours.
    """
    frequency = 2 * torch.pi * torch.logspace(-2, float(torch.tensor(side / 2).log2()), width // 4, base=2.0)
    place = torch.arange(side) / (side - 1)
    angle = place[:, None] * frequency
    wave = torch.cat([angle.sin(), angle.cos()], dim=1)  # [side, width / 2]
    rows, columns = wave[:, None].expand(-1, side, -1), wave[None].expand(side, -1, -1)
    return torch.cat([rows, columns], dim=-1).reshape(side * side, width)


def load_model(folder: Path | str) -> PreTrainedModel:
    """The checkpoint in `folder`, in float32 and evaluation mode, whatever type is on disk.

    Raises ModelError, in one line, for a folder that is not a model, or a cut-off or mismatched weights file.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ModelError("not a model folder: it has no config.json", where=folder, fix="give policy.base a checkpoint")
    if not any(folder.glob("*.safetensors")):
        raise ModelError("the model folder has no safetensors file", where=folder, fix="copy the whole checkpoint")
    if not (folder / "tokenizer.json").is_file():
        raise ModelError("the model folder has no tokenizer.json", where=folder, fix="copy the whole checkpoint")
    try:
        model, info = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # the library raises many kinds; all mean that this folder cannot be used
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"the model cannot be loaded: {reason}", where=folder, fix="copy it again") from None
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ModelError(f"the weights lack {missing[0]} ({len(missing)} in all)", where=folder, fix="copy it again")
    return model.eval()


def save_checkpoint(
    model: PreTrainedModel, encoder: Encoder, folder: Path | str, *, dtype: torch.dtype = torch.float32
) -> Path:
    """Write weights, tokeniser and image processor to `folder`: staged beside it, then renamed.

    A folder that is there already is replaced. `dtype` is that of the file; loading gives float32 again.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        state = {name: tensor.detach().to(dtype) for name, tensor in model.state_dict().items()}
        model.save_pretrained(staged, state_dict=state)
        encoder.save(staged)
        config = json.loads((staged / "config.json").read_text())
        config["dtype"] = str(dtype).removeprefix("torch.")
        (staged / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        staged.chmod(0o755)  # temporary files and folders are private otherwise
        for file in staged.iterdir():
            file.chmod(0o644)
        if folder.exists():
            shutil.rmtree(folder)
        staged.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return folder


def digest(folder: Path | str) -> str:
    """Name of the weights in `folder`: the first 16 hex digits of the SHA-256 over its safetensors files."""
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise ModelError("the model folder has no safetensors file", where=folder, fix="copy the whole checkpoint")
    sha = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                sha.update(chunk)
    return sha.hexdigest()[:16]
