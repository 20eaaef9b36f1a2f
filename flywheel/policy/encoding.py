"""Encode contexts as arrays and decode tokens, in the same way for rollouts and training."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image as Picture
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from flywheel.agent import prompt
from flywheel.agent.prompt import Context, Image, Message
from flywheel.policy import checkpoint
from flywheel.utils.errors import ModelError, PolicyError


@dataclass(frozen=True, eq=False)
class CutScreen:
    """Hold a screen that is cut into patches; its arrays are not to be changed.

    pixels: float32 [patches, channels x frames x patch x patch]. grid: int64 [1, 3], the number of frames, rows and
    columns of patches.
    """

    pixels: np.ndarray
    grid: np.ndarray


class PatchExtractor:
    """Cut pictures into patches as a Qwen-VL image processor does, bit for bit, in a seventh of its time.

    The library's processor converts every pixel to float64 and back, and moves four bytes per value. A channel has only
    256 levels, so this class computes the processor's result of each level once, and cuts the patches from bytes.
    """

    def __init__(self, images: Qwen2VLImageProcessorPil) -> None:
        self._images = images
        ramp = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 1, 256))
        if images.do_rescale:
            ramp = images.rescale(ramp, images.rescale_factor)
        if images.do_normalize:
            ramp = images.normalize(ramp, images.image_mean, images.image_std)
        self._values = np.ascontiguousarray(ramp[:, 0], dtype=np.float32)  # [channel, level]

    def patches(self, pictures: Sequence[Picture.Image]) -> tuple[np.ndarray, np.ndarray]:
        """Resize RGB pictures to the model's size and cut them into patches; return (pixel_values, image_grid_thw).

        pixel_values: float32 [patches of all pictures, channels x frames x patch x patch]. image_grid_thw: int64
        [pictures, 3], the number of frames, rows and columns of each.
        """
        images, size = self._images, self._images.patch_size
        sizes = [self._size(picture) for picture in pictures]
        found = [self._cut(picture, wanted) for picture, wanted in zip(pictures, sizes, strict=True)]
        pixels = np.empty((sum(map(len, found)), 3, images.temporal_patch_size, size, size), dtype=np.float32)
        start = 0
        for cut in found:
            part = pixels[start : start + len(cut)]
            for channel, values in enumerate(self._values):
                part[:, channel] = values[cut[:, channel]][:, None]
            start += len(cut)
        grids = np.array([(1, height // size, width // size) for width, height in sizes], dtype=np.int64)
        return pixels.reshape(len(pixels), int(np.prod(pixels.shape[1:]))), grids.reshape(-1, 3)

    def join(self, screens: Sequence[CutScreen]) -> tuple[np.ndarray, np.ndarray]:
        """Join cut screens: pixel_values and image_grid_thw, as `patches` returns them; of one screen its own."""
        if len(screens) == 1:
            return screens[0].pixels, screens[0].grid
        if not screens:
            return self.patches(())
        return np.concatenate([one.pixels for one in screens]), np.concatenate([one.grid for one in screens])

    def _size(self, picture: Picture.Image) -> tuple[int, int]:
        """Return (width, height) after the resize, in pixels."""
        images = self._images
        height, width = smart_resize(
            picture.height,
            picture.width,
            factor=images.patch_size * images.merge_size,
            min_pixels=images.size["shortest_edge"],
            max_pixels=images.size["longest_edge"],
        )
        return width, height

    def _cut(self, picture: Picture.Image, wanted: tuple[int, int]) -> np.ndarray:
        """Resize a picture to `wanted` (width, height) and cut it: uint8 [patches, channels, patch, patch], in the
        order of the merged blocks."""
        pixels = np.asarray(picture if picture.size == wanted else picture.resize(wanted, self._images.resample))
        size, merge = self._images.patch_size, self._images.merge_size
        rows, columns = pixels.shape[0] // (size * merge), pixels.shape[1] // (size * merge)
        blocks = pixels.reshape(rows, merge, size, columns, merge, size, 3)
        return np.ascontiguousarray(blocks.transpose(0, 3, 1, 4, 6, 2, 5)).reshape(-1, 3, size, size)


# Contexts. The library's Qwen-VL processors need torchvision, which has no build for CPU torch. So this module uses the
# tokeniser and the PIL image processor directly, and repeats `<|image_pad|>` for the patches of each image itself.


@dataclass(frozen=True)
class EncodedSequence:
    """Hold one encoded sequence of tokens, with its images as patches.

    input_ids: int64 [tokens]. mm_token_type_ids: int64 [tokens], 1 for an image token. pixel_values: float32 [patches
    of all images, channels x frames x patch x patch]. image_grid_thw: int64 [images, 3], the number of frames, rows and
    columns of each image's patches.
    """

    input_ids: np.ndarray
    mm_token_type_ids: np.ndarray
    pixel_values: np.ndarray
    image_grid_thw: np.ndarray

    def __len__(self) -> int:
        return len(self.input_ids)

    def extended(self, token_ids: Sequence[int]) -> EncodedSequence:
        """Return this prompt followed by a response. token_ids: [response tokens], none of them an image's."""
        extra = np.asarray(token_ids, dtype=np.int64)
        return replace(
            self,
            input_ids=np.append(self.input_ids, extra),
            mm_token_type_ids=np.append(self.mm_token_type_ids, np.zeros_like(extra)),
        )


# UI-TARS 1.0 writes points between box and object_ref tokens: the only control tokens that a text may contain.
_HARMLESS = re.compile(r"<\|(?!(?:box|object_ref)_(?:start|end)\|>)")


def break_control_tokens(text: str) -> str:
    """Insert a space into the control tokens that `text`, which is not trusted, contains.

    Halves of surrogate pairs become question marks.
    """
    return _HARMLESS.sub("< |", text.encode("utf-8", "replace").decode())


class Encoder:
    """Encode contexts and responses by a checkpoint's tokeniser and image processor.

    tokenizer, images: tokeniser and image processor. image_id: token id of a piece of a screen; None: `<|image_pad|>`.
    max_image_side: longest side of a screen that is accepted, in pixels (policy.max_image_side). The attribute `end_id`
    is the token that ends a response.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        images: Qwen2VLImageProcessorPil,
        *,
        image_id: int | None = None,
        max_image_side: int = prompt.MAX_SIDE,
    ) -> None:
        self.tokenizer, self.images, self.max_image_side = tokenizer, images, max_image_side
        self._pixels = PatchExtractor(images)
        self.image_id = int(tokenizer.convert_tokens_to_ids("<|image_pad|>")) if image_id is None else image_id
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.end_id = int(tokenizer.eos_token_id if end is None or end == tokenizer.unk_token_id else end)

    @classmethod
    def new(cls, tokenizer: PreTrainedTokenizerBase, side: int = 224) -> Encoder:
        """Make the encoder of a new model.

        tokenizer: has Qwen's control tokens. side: of the model's square screens, in pixels; patches are 16 x 16
        pixels, merged 2 x 2.
        """
        area = {"shortest_edge": side * side, "longest_edge": side * side}
        half = [0.5, 0.5, 0.5]
        images = Qwen2VLImageProcessorPil(
            patch_size=16, merge_size=2, temporal_patch_size=2, size=area, image_mean=half, image_std=half
        )
        return cls(tokenizer, images)

    @classmethod
    def from_folder(cls, folder: Path | str, *, max_image_side: int = prompt.MAX_SIDE) -> Encoder:
        """Load the encoder of a checkpoint of the Qwen-VL family.

        folder: of the checkpoint, whose weights are not read, or of an adapter, whose base has these files and is
        checked by its weights' digest. max_image_side: as in the class. Raises ModelError as `check_checkpoint` and
        `find_base_checkpoint`, and where config.json, tokeniser, chat template or the image processor's settings are
        missing or broken, or do not belong to the same model.
        """
        checkpoint.check_checkpoint(folder, weights=False)
        folder = checkpoint.find_base_checkpoint(folder)
        config = _load_part("config.json", AutoConfig, folder)
        tokenizer = _load_part("the tokeniser", AutoTokenizer, folder)
        images = _load_part("preprocessor_config.json", Qwen2VLImageProcessorPil, folder)
        if not tokenizer.chat_template:
            tokenizer.chat_template = _read_chat_template(folder)
        # Older checkpoints name the sizes min_pixels and max_pixels within `size`; the library reads these names only
        # at the top level of the file.
        if not images.size.get("shortest_edge") and images.size.get("min_pixels"):
            edges = {"shortest_edge": images.size["min_pixels"], "longest_edge": images.size.get("max_pixels")}
            images.size = type(images.size)(**edges)
        _check_match(tokenizer, images, config, folder)
        made = cls(tokenizer, images, image_id=int(config.image_token_id), max_image_side=max_image_side)
        try:  # encoding one screen fails if tokeniser, chat template and config.json do not fit together
            made._prompt((Message("user", (Image(b""), "Go.")), Message("assistant", ("Yes.",))), [1])
        except Exception as error:  # the template is a program, which may raise anything
            raise _unusable("the chat template", error, folder) from None
        return made

    def save(self, folder: Path | str) -> None:
        """Write the files of tokeniser and image processor to `folder`, which is made where it is missing.

        Raises OSError where they cannot be written.
        """
        self.tokenizer.save_pretrained(folder)
        self.images.save_pretrained(folder)

    def encode(self, context: Context) -> EncodedSequence:
        """Encode `context` as a prompt that ends where the assistant's answer begins.

        context: at least one message (ValueError). Raises BadInput for a screen that is empty, no image, broken, too
        large or too narrow; PolicyError where the numbers of images and image tokens differ; and what the checkpoint's
        chat template raises.
        """
        return self.encode_cut(context, [self.cut(image.png) for image in _images(context)])

    def cut(self, png: bytes) -> CutScreen:
        """Decode a screen and cut it into patches, resized as the model wants it.

        png: the file's bytes, PNG or another format that PIL reads. Raises BadInput as `encode`.
        """
        pixels, grid = self._pixels.patches([prompt.decode_screenshot(png, self.max_image_side)])
        return CutScreen(pixels, grid)

    def encode_cut(self, context: Context, screens: Sequence[CutScreen]) -> EncodedSequence:
        """Encode `context` as `encode` does, with screens that are cut already.

        screens: those of the context, from `cut`, in their order. Raises as `encode`, but for screens.
        """
        pixels, grid = self._pixels.join(screens)
        input_ids = np.asarray(self._prompt(context, grid.prod(axis=1).tolist()), dtype=np.int64)
        return EncodedSequence(input_ids, (input_ids == self.image_id).astype(np.int64), pixels, grid)

    def prompt_ids(self, context: Context) -> list[int]:
        """Return the token ids of `context`, [tokens], equal to those of `encode`, without decoding the images.

        Raises as `encode`, but not for a screen whose header is sound and whose pixels are broken.
        """
        sizes = [prompt.screenshot_size(image.png, self.max_image_side) for image in _images(context)]
        return self._prompt(context, [self.images.get_number_of_image_patches(h, w) for w, h in sizes])

    def count(self, context: Context) -> int:
        """Count the tokens of the encoded `context`, as `policy.max_context_tokens` does. Raises as `prompt_ids`."""
        return len(self.prompt_ids(context))

    def _prompt(self, context: Context, patches: Sequence[int]) -> list[int]:
        """Return the token ids of the chat template's text, with each image token repeated once for each block of
        merged patches. patches: number of each image's patches."""
        messages = []
        for message in context:
            parts = [
                {"type": "image"} if isinstance(part, Image) else {"type": "text", "text": break_control_tokens(part)}
                for part in message.parts
            ]
            messages.append({"role": message.role, "content": parts})
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if ids.count(self.image_id) != len(patches):
            what = f"{len(patches)} screens make {ids.count(self.image_id)} image tokens (id {self.image_id})"
            fix = "tokeniser, chat template and config.json must be of one checkpoint"
            raise PolicyError(what, where="policy context", fix=fix)
        blocks = (max(1, number // self.images.merge_size**2) for number in patches)
        return [piece for token in ids for piece in [token] * (next(blocks) if token == self.image_id else 1)]

    def encode_text(self, text: str) -> list[int]:
        """Encode a response: the token ids of `text`, [tokens], then the end token.

        Control tokens in the text are broken up; points of UI-TARS 1.0 keep their box tokens.
        """
        return [*self.tokenizer(break_control_tokens(text), add_special_tokens=False)["input_ids"], self.end_id]

    def encode_beginning(self, text: str) -> list[int]:
        """Encode the beginning of a response, which goes on: the token ids of `text`, [tokens].

        Those of its last characters are left out where a response has them in one token with what follows, such as the
        blank before a word.
        """
        ids = self.encode_text(f"{text}click")[:-1]
        while ids and not text.startswith(self.decode(ids)):
            ids.pop()
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode the token ids of a response, [response tokens], to text.

        The end token, other control tokens and ids that the vocabulary does not have are left out.
        """
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _images(context: Context) -> Iterable[Image]:
    return (part for message in context for part in message.parts if isinstance(part, Image))


def _load_part(what: str, kind: Any, folder: Path) -> Any:
    try:
        return kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library raises many classes; all mean that this folder cannot be used
        raise _unusable(what, error, folder) from None


def _unusable(what: str, error: Exception, folder: Path) -> ModelError:
    what = f"{what} cannot be loaded: {checkpoint.summarise_error(error)}"
    return ModelError(what, where=folder, fix="copy it again")


def _read_chat_template(folder: Path) -> str:
    """Read the chat template of an older checkpoint, where it is a file of its own."""
    path = folder / "chat_template.json"
    template = checkpoint.read_json_object(path).get("chat_template") if path.is_file() else None
    if not isinstance(template, str) or not template:
        fix = "copy tokenizer_config.json with it, or chat_template.jinja or chat_template.json"
        raise ModelError("the tokeniser has no chat template", where=folder, fix=fix)
    return template


def _check_match(
    tokenizer: PreTrainedTokenizerBase, images: Qwen2VLImageProcessorPil, config: PreTrainedConfig, folder: Path
) -> None:
    """Raise ModelError where the tokeniser or the image settings belong to another model."""
    rows, last = config.get_text_config().vocab_size, max(tokenizer.get_vocab().values(), default=-1)
    if last >= rows:
        what = f"the tokeniser's ids reach {last}, the model has {rows} embeddings"
        raise ModelError(what, where=folder, fix="take the tokeniser that belongs to the model")
    if "<|im_end|>" not in tokenizer.get_vocab() and tokenizer.eos_token_id is None:
        raise ModelError("the tokeniser has no token that ends a response", where=folder, fix="give it an eos_token")
    vision = config.vision_config
    for name, mine, theirs in (
        ("patch_size", images.patch_size, vision.patch_size),
        ("merge_size", images.merge_size, vision.spatial_merge_size),
        ("temporal_patch_size", images.temporal_patch_size, vision.temporal_patch_size),
    ):
        if mine != theirs:
            what = f"preprocessor_config.json has {name} {mine}, the model {theirs}"
            raise ModelError(what, where=folder, fix="take the file that belongs to the model")
    if images.do_resize is False or not all(images.size.get(edge) for edge in ("shortest_edge", "longest_edge")):
        fix = "it needs min_pixels and max_pixels, or size"
        raise ModelError("preprocessor_config.json says no sizes", where=folder, fix=fix)


def collate_sequences(items: Sequence[EncodedSequence], side: Literal["left", "right"]) -> dict[str, torch.Tensor]:
    """Pad sequences into one batch for the model, on the CPU.

    items: of any lengths, at least one (ValueError). side: where padding goes: left for generation, right for training.
    Returns input_ids, attention_mask, mm_token_type_ids: int64 [batch, longest]; and, where there are images,
    pixel_values and image_grid_thw of all images in order, as in `EncodedSequence`. Padding has id 0 and mask 0. The
    tensors are copies.
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
    return {name: torch.from_numpy(array).clone() for name, array in batch.items()}  # copied: see `run_vision_tower`
