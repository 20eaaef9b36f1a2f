"""Contexts to tensors and back: the one encoder of rollout and training.

The Qwen-VL processors need torchvision, which has no build for CPU torch, so the tokeniser and the PIL image
processor are used by themselves, and `<|image_pad|>` is expanded here.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image as Picture
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from flywheel.errors import BadInput, ModelError
from flywheel.policy.protocol import Context, Image


@dataclass(frozen=True)
class Encoded:
    """One sequence. input_ids, mm_token_type_ids: int64 [tokens]; 1 marks an image token.

    pixel_values: float32 [patches of all images, channels x 2 x patch x patch]; image_grid_thw: int64 [images, 3].
    """

    input_ids: np.ndarray
    mm_token_type_ids: np.ndarray
    pixel_values: np.ndarray
    image_grid_thw: np.ndarray

    def __len__(self) -> int:
        return len(self.input_ids)

    def extended(self, token_ids: Sequence[int]) -> Encoded:
        """This prompt followed by a response's tokens, as sampled."""
        extra = np.asarray(token_ids, dtype=np.int64)
        return replace(
            self,
            input_ids=np.concatenate([self.input_ids, extra]),
            mm_token_type_ids=np.concatenate([self.mm_token_type_ids, np.zeros_like(extra)]),
        )


def _plain(text: str) -> str:
    """Text of the outside world must not spell control tokens."""
    return text.replace("<|", "< |")


class Encoder:
    """A checkpoint's tokeniser and image processor."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, images: Qwen2VLImageProcessorPil) -> None:
        self.tokenizer, self.images = tokenizer, images
        self.image_id = int(tokenizer.convert_tokens_to_ids("<|image_pad|>"))
        self.end_id = int(tokenizer.convert_tokens_to_ids("<|im_end|>"))

    @classmethod
    def new(cls, tokenizer: PreTrainedTokenizerBase, side: int = 224) -> Encoder:
        """For a new model whose screens have `side` x `side` pixels, in patches of 16, merged 2 x 2."""
        area = {"shortest_edge": side * side, "longest_edge": side * side}
        half = [0.5, 0.5, 0.5]
        images = Qwen2VLImageProcessorPil(
            patch_size=16, merge_size=2, temporal_patch_size=2, size=area, image_mean=half, image_std=half
        )
        return cls(tokenizer, images)

    @classmethod
    def from_folder(cls, folder: Path | str) -> Encoder:
        """Raises ModelError where the tokeniser or the image processor's settings are missing or broken."""
        folder = Path(folder)
        for name in ("tokenizer.json", "preprocessor_config.json"):
            if not (folder / name).is_file():
                raise ModelError(f"the model folder has no {name}", where=folder, fix="copy the whole checkpoint")
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            images = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # the library raises many kinds; all mean that this folder cannot be used
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ModelError(f"the tokeniser cannot be loaded: {reason}", where=folder, fix="copy it again") from None
        return cls(tokenizer, images)

    def save(self, folder: Path | str) -> None:
        self.tokenizer.save_pretrained(folder)
        self.images.save_pretrained(folder)

    def encode(self, context: Context) -> Encoded:
        """The context as a prompt that ends where the assistant begins. Raises BadInput for a broken screen."""
        messages, pictures = [], []
        for message in context:
            parts = []
            for part in message.parts:
                if isinstance(part, Image):
                    pictures.append(_open(part.png))
                    parts.append({"type": "image"})
                else:
                    parts.append({"type": "text", "text": _plain(part)})
            messages.append({"role": message.role, "content": parts})
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        pixels, grid = self.patches(pictures)
        sizes = iter((grid.prod(axis=1) // self.images.merge_size**2).tolist())
        expanded: list[int] = []
        for token in ids:
            expanded += [token] * next(sizes) if token == self.image_id else [token]
        input_ids = np.asarray(expanded, dtype=np.int64)
        return Encoded(input_ids, (input_ids == self.image_id).astype(np.int64), pixels, grid)

    def patches(self, pictures: Sequence[Picture.Image]) -> tuple[np.ndarray, np.ndarray]:
        """Pictures to (pixel_values, image_grid_thw), resized to the model's size."""
        if not pictures:
            patch = 3 * self.images.temporal_patch_size * self.images.patch_size**2
            return np.zeros((0, patch), dtype=np.float32), np.zeros((0, 3), dtype=np.int64)
        out = self.images(images=list(pictures), return_tensors="np")
        return np.asarray(out["pixel_values"], dtype=np.float32), np.asarray(out["image_grid_thw"], dtype=np.int64)

    def encode_text(self, text: str) -> list[int]:
        """A response: its tokens and the end token."""
        return [*self.tokenizer(_plain(text), add_special_tokens=False)["input_ids"], self.end_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a response, without the end token and other control tokens."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _open(png: bytes) -> Picture.Image:
    try:
        picture = Picture.open(io.BytesIO(png))
        picture.load()
    except Exception as error:  # PIL raises many kinds for a broken file
        raise BadInput(f"the screen is not an image: {error}", where="policy context") from None
    return picture.convert("RGB")


def collate(items: Sequence[Encoded], side: Literal["left", "right"]) -> dict[str, torch.Tensor]:
    """Pad sequences into one batch for the model: left for generation, right for training.

    Returns input_ids, attention_mask, mm_token_type_ids: int64 [batch, longest]; and, where there are images,
    pixel_values and image_grid_thw of all of them in order. Padding is id 0 and masked.
    """
    longest = max(len(item) for item in items)
    ids = np.zeros((len(items), longest), dtype=np.int64)
    mask, kinds = np.zeros_like(ids), np.zeros_like(ids)
    for row, item in enumerate(items):
        place = slice(longest - len(item), longest) if side == "left" else slice(0, len(item))
        ids[row, place], mask[row, place], kinds[row, place] = item.input_ids, 1, item.mm_token_type_ids
    batch = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": kinds}
    grids = np.concatenate([item.image_grid_thw for item in items])
    if len(grids):
        batch["pixel_values"] = np.concatenate([item.pixel_values for item in items])
        batch["image_grid_thw"] = grids
    return {name: torch.from_numpy(array) for name, array in batch.items()}
