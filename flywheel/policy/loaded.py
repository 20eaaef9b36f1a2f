"""A checkpoint in memory that can answer: model, encoder, and the name of its weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from flywheel import settings as config
from flywheel.policy.checkpoint import digest
from flywheel.policy.constraint import Constraint, open_constraint
from flywheel.policy.encoding import Encoder
from flywheel.policy.engine import InferenceEngine, Row
from flywheel.policy.frozen import freeze
from flywheel.policy.model import load_model
from flywheel.policy.protocol import Completion
from flywheel.policy.text_pass import TextPass

_TEXT_FILES = ("*.json", "*.jinja", "merges.txt")  # what an encoder is made from, and a little more


@dataclass(frozen=True)
class Loaded:
    """text_pass: in place of the model's own layers, where it knows them. constraint: what answers are held to, if
    anything. text: digest of the files that its encoder is made of."""

    model: PreTrainedModel
    text_pass: TextPass | None
    encoder: Encoder
    constraint: Constraint | None
    version: str
    text: str

    @classmethod
    def open(cls, folder: Path, policy: config.Policy, version: str = "", before: Loaded | None = None) -> Loaded:
        """version: of its weights, where it is known. before: its encoder is kept where this one would be equal.

        Raises ModelError for a folder that cannot be loaded, or whose answers cannot be held to a form as asked.
        """
        text = _text_digest(folder)
        model = load_model(folder, dtype=policy.dtype, device=policy.device)
        if before is not None and before.text == text:
            encoder, constraint = before.encoder, before.constraint
        else:
            encoder = Encoder.from_folder(folder, max_image_side=policy.max_image_side)
            constraint = open_constraint(encoder, model.config, policy)
        return cls(model, freeze(model), encoder, constraint, version or digest(folder), text)

    def engine(self, policy: config.Policy, threads: int = 0) -> InferenceEngine:
        """A new one, whose caches hold nothing. threads: as it takes them."""
        room = policy.cache_mb << 20
        return InferenceEngine(
            self.model,
            self.encoder.end_id,
            text_pass=self.text_pass,
            threads=threads,
            prefix_bytes=room // 2,
            vision_bytes=room // 4,
            share=room > 0,
        )

    def completion(self, row: Row) -> Completion:
        """What a row of its engine came to."""
        end = self.encoder.end_id
        return Completion(
            text=self.encoder.decode([token for token in row.token_ids if token != end]),
            token_ids=tuple(row.token_ids),
            logprobs=tuple(row.logprobs),
            prompt_tokens=len(row.prompt),
            weight_version=self.version,
            finished=row.token_ids[-1] == end,
            sampled_logprobs=tuple(row.tempered),
        )

    @property
    def limit(self) -> int:
        """Tokens of a prompt and its answer together."""
        return self.model.config.get_text_config().max_position_embeddings


def _text_digest(folder: Path) -> str:
    """Equal for two checkpoints whose encoders are equal; the weights' index has no part in it."""
    sha = hashlib.sha256()
    for file in sorted(path for pattern in _TEXT_FILES for path in folder.glob(pattern)):
        if not file.name.endswith("index.json"):
            sha.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return sha.hexdigest()
