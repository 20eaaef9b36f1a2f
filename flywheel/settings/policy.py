"""Blocks `policy` and `language_model`: the model that acts, and the one that writes for it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from flywheel.settings.block import Block

# The coordinate spaces in which the form of actions that policy.template names can be written.
SPACES = {
    "minimal": ("points",),
    "point": ("points", "pixels", "fractions"),
    "ui_tars_1_5": ("pixels",),
    "ui_tars_1_0": ("boxes",),
    "tool_call": ("points", "pixels", "fractions"),
}
# What goes with answers that are held to their form, by parameter.
CONSTRAINED = {
    "template": ("minimal", "point"),
    "space": ("points", "fractions"),
    "thinks": (False,),
    "backend": ("transformers",),
}


class Policy(Block):
    """The model that looks at screens and acts: which one, what it is shown, and how it answers."""

    base: str = Field("models/base", min_length=1)
    """The checkpoint that the first iteration starts from: a folder, or a name on Hugging Face."""
    backend: Literal["transformers", "openai"] = "transformers"
    """Where the model runs: transformers, in this program; openai, on a server that speaks OpenAI's API."""
    endpoint: str | list[str] = ""
    """URL of the server, such as http://127.0.0.1:8000/v1, or a list of those of several servers, which share the
    trajectories. For backend openai."""
    model: str = ""
    """The name by which the server knows the model. For backend openai."""
    key_variable: str = "OPENAI_API_KEY"
    """The environment variable with the server's key, where it wants one. For backend openai."""
    template: Literal["minimal", "point", "ui_tars_1_5", "ui_tars_1_0", "tool_call"] = "minimal"
    """The form in which actions are written, and the prompt that asks for it. minimal is point without a word about
    the actions, for a model that was trained on them."""
    space: Literal["points", "boxes", "pixels", "fractions"] = "points"
    """What the model's coordinates mean: points go from 0 to coordinates - 1, boxes from 0 to 1000 (UI-TARS 1.0),
    pixels are those of the resized screen (UI-TARS 1.5), fractions go from 0 to 1."""
    constrained: Literal["auto", "always", "never"] = "auto"
    """Whether the agent's answers are held to the form of an action: tokens that no readable answer can go on with are
    never drawn, and RL counts the others alone. auto: where that can be (template minimal and point in points or
    fractions, without thinks, backend transformers). always: what cannot is refused."""
    thinks: bool = False
    """Whether the chat template opens the thinking: what the model writes before </think> is then its thought."""
    coordinates: int = Field(100, ge=10, le=100_000)
    """Points along each side of the screen, for space points. UI-TARS and Qwen3-VL: 1000."""
    resize_factor: int = Field(28, ge=1, le=1024)
    """The sides of the screen as the model sees it are multiples of this many pixels. The checkpoint says how many;
    space pixels and the length of prompts depend on it."""
    min_pixels: int = Field(78_400, ge=1)
    """A screen of fewer pixels is enlarged to this many. The checkpoint says how many."""
    max_pixels: int = Field(12_845_056, ge=1)
    """A screen of more pixels is reduced to this many. The checkpoint says how many."""
    actions: Literal["computer", "browser", "mobile", "game"] = "browser"
    """The set of actions that the prompt offers."""
    functions: bool = False
    """Whether the prompt also offers functions (terminal, Python, files, tools)."""
    working_steps: int = Field(1, ge=1)
    """The newest steps, this one included, that the prompt shows with their screens."""
    episodic_steps: int = Field(4, ge=0)
    """Steps before the working steps that the prompt tells in one line each."""
    digest_characters: int = Field(0, ge=0)
    """Characters of a digest: one text that tells all steps that are older still. 0: there is none."""
    summarizer: Literal["rules", "language_model"] = "rules"
    """Who writes the digest: rules, or the server of the block language_model."""
    result_characters: int = Field(2000, ge=0)
    """Characters of a step's result that the prompt shows, at most. Of a longer one the middle is left out."""
    observation_characters: int = Field(2000, ge=32)
    """Characters of what there is to read at a step, such as a terminal's screen, that the prompt shows, at most. Of a
    longer text the middle is left out."""
    max_context_tokens: int = Field(512, ge=128)
    """Tokens of the prompt, screens included, at most. What is told of older steps makes room first."""
    max_new_tokens: int = Field(48, ge=8)
    """Tokens of one answer, at most."""
    max_image_side: int = Field(4096, ge=64, le=16_384)
    """A screen with a longer side, in pixels, is refused."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The weights' type in memory while the model answers."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device on which the model answers. auto: the GPU if there is one."""
    batch: int = Field(16, ge=1)
    """Requests that are answered together, at most; by each server where there are several."""
    queue: int = Field(256, ge=1)
    """Requests that may wait, for each server where there are several. One more is refused."""
    cache_mb: int = Field(256, ge=0)
    """Memory, in MB, for what several prompts begin with alike (screens, keys and values). 0: nothing is kept."""
    timeout_s: float = Field(60.0, gt=0)
    """Seconds until an answer must be there, waiting and retries included."""
    retries: int = Field(2, ge=0)
    """Times that a request is repeated if the server fails. For backend openai."""

    @field_validator("endpoint")
    @classmethod
    def _each_once(cls, endpoint: str | list[str]) -> str | list[str]:
        if isinstance(endpoint, list):
            addresses = [one.rstrip("/") for one in endpoint]
            if not all(addresses):
                raise ValueError("one of the list is empty")
            if twice := next((one for one in addresses if addresses.count(one) > 1), ""):
                raise ValueError(f"{twice} stands there twice")
        return endpoint

    @property
    def servers(self) -> tuple[Policy, ...]:
        """These settings for each server alone: `endpoint` is then its URL."""
        several = self.endpoint if isinstance(self.endpoint, list) else [self.endpoint]
        return tuple(self.model_copy(update={"endpoint": one}) for one in several)

    @property
    def holds_form(self) -> bool:
        """Whether the agent's answers are held to the form of an action."""
        return self.constrained == "always" or (self.constrained == "auto" and not self.unheld())

    def unheld(self) -> list[str]:
        """Parameters that answers cannot be held to their form with."""
        return [name for name, fit in CONSTRAINED.items() if getattr(self, name) not in fit]


class LanguageModel(Block):
    """A server that speaks OpenAI's API and turns what people say in recordings into thoughts. Without one, rules do,
    and the data say so."""

    endpoint: str = ""
    """URL, such as http://127.0.0.1:8000/v1. Empty: rules."""
    model: str = ""
    """The name by which the server knows the model."""
    key_variable: str = "OPENAI_API_KEY"
    """The environment variable with the server's key, where it wants one."""
    timeout_s: float = Field(60.0, gt=0)
    """Seconds until an answer must be there, retries included."""
    retries: int = Field(2, ge=0)
    """Times that a request is repeated if the server fails."""
