"""Typed settings, read from `params.yaml`. Invalid values and combinations are refused by name.

Each class is one block of the file; each field's meaning stands beside it. Everything that takes effect has a
field here: there are no hidden switches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from flywheel import settings_earlier, settings_faults, yaml_text
from flywheel.errors import BadInput

# The coordinate spaces in which the form of actions that policy.template names can be written.
SPACES = {
    "minimal": ("points",), "point": ("points", "pixels", "fractions"), "ui_tars_1_5": ("pixels",),
    "ui_tars_1_0": ("boxes",), "tool_call": ("points", "pixels", "fractions"),
}  # fmt: skip


Domain = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
_TAKEN = {"all", "general", "prev", "turns"}  # names that stand for something else where domains are listed
LARGEST = 10**9  # of any number: above it counts and seconds leave what machines and libraries can hold
_END = "..."  # YAML's own sign that a document is whole, which `dump` writes below the line that announces it
_WHOLE = f"# All parameters. The last line of this file is {_END} (without it, the file is cut off)."


class _Block(BaseModel):
    """Values are of the field's own type, `true` is no number, and every number is finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _sound(cls, value: Any, info) -> Any:
        if isinstance(value, bool) and cls.model_fields[info.field_name].annotation is not bool:
            raise ValueError(f"{str(value).lower()} is not a value of it")
        if isinstance(value, int | float) and abs(value) > LARGEST and info.field_name != "seed":
            raise ValueError(f"{value:.6g} is too large; the largest number is {LARGEST:.0e}")
        if isinstance(value, str) and not value.isprintable():
            raise ValueError("a text of one line is wanted, without control characters")
        return value


class Policy(_Block):
    base: str = Field("models/base", min_length=1)  # folder or Hugging Face name of the first checkpoint
    backend: Literal["transformers", "openai"] = "transformers"
    endpoint: str = ""  # URL of the OpenAI-compatible server, for backend: openai
    model: str = ""  # the name that this server knows the model by
    key_variable: str = "OPENAI_API_KEY"  # environment variable that holds the key, where the server wants one
    template: Literal["minimal", "point", "ui_tars_1_5", "ui_tars_1_0", "tool_call"] = "minimal"
    # The form of actions and the prompt that asks for it; minimal: as point, for a model that knows its actions.
    space: Literal["points", "boxes", "pixels", "fractions"] = "points"
    # points: 0..coordinates-1; boxes: 0..1000 (UI-TARS 1.0); pixels of the resized image (UI-TARS 1.5);
    # fractions: 0..1.
    thinks: bool = False  # the chat template opens the thinking: what is written before </think> is thought
    coordinates: int = Field(100, ge=10, le=100_000)  # of the points space; UI-TARS and Qwen3-VL: 1000
    resize_factor: int = Field(28, ge=1, le=1024)  # of the pixels space: sides of the resized image are multiples of it
    min_pixels: int = Field(78_400, ge=1)  # of the resized image
    max_pixels: int = Field(12_845_056, ge=1)
    actions: Literal["computer", "browser", "mobile", "game"] = "browser"  # the action space that the prompt tells
    functions: bool = False  # tell the model the SDK functions (terminal, files, tools) too
    working_steps: int = Field(1, ge=1)  # N of M_t: steps kept with their screens
    episodic_steps: int = Field(4, ge=0)  # older steps kept as one-line summaries
    digest_characters: int = Field(0, ge=0)  # of one text for all that is older still; 0: nothing is said of it
    summarizer: Literal["rules", "language_model"] = "rules"  # who writes that text; the second: language_model.*
    result_characters: int = Field(2000, ge=0)  # of a step's result, where it is shown in full
    observation_characters: int = Field(2000, ge=32)  # of what there is to read at a step, a terminal's screen say
    max_context_tokens: int = Field(512, ge=128)
    max_new_tokens: int = Field(48, ge=8)
    max_image_side: int = Field(4096, ge=64, le=16_384)  # a larger screen is refused
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the weights in memory, for answering
    device: Literal["auto", "cpu", "cuda"] = "auto"  # for answering; auto: cuda if there is one
    batch: int = Field(16, ge=1)  # requests answered together
    queue: int = Field(256, ge=1)  # requests waiting; one more is refused
    cache_mb: int = Field(256, ge=0)  # kept of contexts that may come again: keys, values, screens; 0 shares nothing
    timeout_s: float = Field(60, gt=0)  # deadline of an answer, waiting and retries included
    retries: int = Field(2, ge=0)  # of a request that the server did not answer, for backend: openai


class Sandbox(_Block):
    width: int = Field(224, ge=64, le=4096)
    height: int = Field(224, ge=64, le=4096)
    browsers: int = Field(2, ge=1, le=256)  # at most, by load
    pages: int = Field(8, ge=1, le=4096)  # concurrent sessions at most, over all browsers
    pages_min: int = Field(1, ge=0)  # open whatever the load
    step_ms: int = Field(200, ge=0)  # page time that passes in a step
    timeout_s: float = Field(10, gt=0)  # deadline of a reset or step
    wait_s: float = Field(600, gt=0)  # for a free page
    lease_s: float = Field(3600, gt=0)  # a session held for longer is taken back
    silent_s: float = Field(600, gt=0)  # and so is one whose holder makes no call for so long
    idle_s: float = Field(60, ge=0)  # a page or browser that nobody uses is closed after it
    recycle_after: int = Field(200, ge=1)  # episodes, after which a browser is replaced by a fresh one
    browser_mb: int = Field(2048, ge=256)  # memory of a browser with its pages, above which it is replaced
    page_mb: int = Field(1024, ge=512)  # memory of one page, above which it is ended as a crash
    executable: str = ""  # Chromium to use; empty: the first one found
    chromium_sandbox: Literal["auto", "required", "off"] = "auto"  # Chromium's own; auto: where the machine allows it
    frames: Literal["auto", "begin_frame", "screenshot"] = "auto"  # how screens are taken; auto: as the build can
    heap_mb: int = Field(512, ge=64)  # JavaScript heap of a page
    download_mb: int = Field(50, ge=0)  # a longer download is cancelled
    record: Literal["none", "failed", "all"] = "none"  # episodes kept as animated PNGs; failed: and crashed
    record_folder: str = Field("episodes", min_length=1)
    record_mb: int = Field(200, ge=1)  # of that folder; the oldest make room
    # Of other kinds of environment than the browser, by name; each kind says itself what it has.
    kinds: dict[Domain, dict[str, Any]] = {}


class Recording(_Block):
    folder: str = Field("recordings", min_length=1)
    sessions_per_iteration: int = Field(12, ge=0)  # new sessions ingested in one iteration
    recognizer: Literal["pocketsphinx", "whisper"] = "pocketsphinx"
    whisper_model: str = ""  # a checkpoint file, or the name of one in Whisper's cache (base.en)
    processes: int = Field(2, ge=1, le=256)
    timeout_s: float = Field(120, gt=0)  # deadline of recognizing one session
    least_confidence: float = Field(0.6, ge=0, le=1)  # of an utterance's words, on average, for a thought in a step


class LanguageModel(_Block):
    """An OpenAI-compatible server, for refinement; without one, rules do it and say so in the data."""

    endpoint: str = ""  # URL, such as http://127.0.0.1:8000/v1; empty: rules
    model: str = ""  # the name that the server knows the model by
    key_variable: str = "OPENAI_API_KEY"  # environment variable that holds the key, where the server wants one
    timeout_s: float = Field(60, gt=0)  # deadline of one answer, tries included
    retries: int = Field(2, ge=0)


class Synthesis(_Block):
    # Domain -> worlds, and third-party pages of `manifests` by name. Each domain has a specialist of its own.
    domains: dict[Domain, list[str]] = {
        "games": ["tiles", "shapes", "merge"],
        "sites": ["shop", "settings"],
        "control": ["control"],
    }
    # Templates that evaluation alone draws: by name, world/template, or a share of each world that has four or more.
    held_out: Annotated[float, Field(ge=0, le=0.5)] | list[str] = [
        "settings/size", "shop/search", "control/click_side", "control/radio", "control/type_number", "control/sort",
        "control/pages", "control/right_click", "control/size",
    ]  # fmt: skip
    manifests: list[str] = []  # third-party pages: manifest files, folders of them, names of shipped ones
    train_tasks: int = Field(40, ge=1, le=100_000)  # tasks made for each iteration, over all worlds
    eval_tasks: int = Field(40, ge=1, le=100_000)  # held-out tasks, the same in every iteration
    levels: list[int] = Field([1, 2], min_length=1)
    general_samples: int = Field(1000, ge=0, le=1_000_000)  # general screens for the CT and SFT mixes


class Rollout(_Block):
    samples: int = Field(4, ge=1)  # trajectories a task (rejection sampling)
    max_concurrent: int = Field(16, ge=1, le=4096)
    temperature: float = Field(0.5, gt=0)  # at 1 a model this small garbles every second answer
    tasks_per_shard: int = Field(20, ge=1)  # what one Prefect task does, and what a kill can lose
    retries: int = Field(2, ge=0)  # of an episode whose environment crashed


class Routing(_Block):
    threshold: float = Field(1.0, gt=0, le=1)  # V = 1 where the score reaches it; of tasks whose template names none
    # Who judges a trajectory, by domain; default: in every other. V = 1 where all of them say so.
    scorers: dict[str, list[str]] = {"default": ["verifier"]}

    @field_validator("scorers")
    @classmethod
    def _somebody(cls, scorers: dict[str, list[str]]) -> dict[str, list[str]]:
        if "default" not in scorers:
            raise ValueError("default must be named: who judges in the domains that are not")
        for domain, names in scorers.items():
            if not names or len(set(names)) < len(names):
                raise ValueError(f"{domain} must name scorers, each once")
        return scorers


class Optimizer(_Block):
    """How gradient steps are taken: in CT, SFT, RL and pretraining alike. AdamW; each step names its own rate."""

    engine: Literal["torch", "deepspeed"] = "torch"  # deepspeed: the extra of that name
    zero_stage: Literal[1, 2, 3] = 2  # of engine deepspeed: what the processes share out (ZeRO)
    processes: int = Field(1, ge=1, le=64)  # that train together, on this machine; each has a GPU where there are GPUs
    max_grad_norm: float = Field(1.0, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    beta2: float = Field(0.95, ge=0, lt=1)  # AdamW's, of the squared gradient's mean; beta1 is 0.9


class Training(Optimizer):
    """What CT, SFT and RL share."""

    device: Literal["auto", "cpu", "cuda"] = "auto"  # that trains; auto: cuda if there is one
    pack_tokens: int = Field(4096, ge=0)  # of a forward pass, without padding; 0: padded, micro_batch samples each
    micro_batch: int = Field(32, ge=1)  # samples of a padded forward pass; changes memory, not the result


class Supervised(Training):
    """What CT and SFT share."""

    samples: int = Field(600, ge=1)  # seen in one stage, general data included
    batch: int = Field(32, ge=1)
    lr: float = Field(5e-4, gt=0)
    agent_fraction: float = Field(0.4, ge=0, le=1)  # of the mix; the rest is general data
    max_repeats: int = Field(12, ge=1)  # times an agent sample is seen, on average, at most
    warmup: float = Field(0.05, ge=0, lt=1)  # share of the steps in which the rate rises; then a cosine to a tenth
    save_every: int = Field(10, ge=1)  # gradient steps between resumable states


class Ct(Supervised):
    every: int = Field(1, ge=1)  # CT runs in each `every`-th iteration
    rollout_weight: float = Field(0.02, ge=0, le=1)  # in the mix, of the model's own unverified steps; people's: 1


class Sft(Supervised):
    window: int = Field(2, ge=1)  # newest iterations of the SFT store that are used
    samples: int = Field(480, ge=1)
    agent_fraction: float = Field(0.6, ge=0, le=1)


class Rl(Training):
    algorithm: str = Field("ppo", min_length=1)  # ppo; grpo: against the task's other episodes, no V; or another module
    steps: int = Field(4, ge=0)  # PPO steps for each domain
    tasks_per_step: int = Field(4, ge=1)
    samples: int = Field(4, ge=1)  # episodes a task; a step trains on tasks_per_step x samples of them
    max_staleness: int = Field(1, ge=0)  # steps by which an episode's oldest weights may lag; 0: rollout, then update
    batch_timeout_s: float = Field(3600, gt=0)  # deadline for the episodes of one step
    deterministic: bool = False  # every request answered alone: at max_staleness 0 a run repeats bit for bit
    threads: int = Field(0, ge=0, le=1024)  # of the trainer; 0: half of them beside a policy on this CPU, else all
    temperature: float = Field(0.5, gt=0)  # of sampling; PPO's ratio is that of the tempered policy
    epochs: int = Field(1, ge=1)  # passes of the policy over a step's samples
    critic_epochs: int = Field(4, ge=1)  # passes of the value model, which is small
    minibatch: int = Field(32, ge=1)  # samples a gradient step
    minibatch_by: Literal["task", "turn"] = "task"  # task: the samples of a task lie in one; turn: any mixture
    actor_lr: float = Field(1e-4, gt=0)
    critic_lr: float = Field(2e-4, gt=0)  # at 5e-4 V overfits within 100 steps
    warmup: int = Field(8, ge=0)  # gradient steps in which the policy's rate rises to actor_lr, where it stays
    eps_low: float = Field(0.2, gt=0, lt=1)
    eps_high: float = Field(0.28, gt=0)  # 1 + eps_high is also a stale token's largest weight, if its A > 0
    dual_clip: float = Field(3.0, gt=1)  # where A < 0, the most that a token's ratio counts, and a stale one's weight
    gamma: float = Field(1.0, gt=0, le=1)
    lambda_critic: float = Field(1.0, ge=0, le=1)
    alpha: float = Field(1.5, gt=0)  # lambda_policy = max(0, 1 - 1/(alpha l)); 0.05 in the report
    lambda_policy: float | None = Field(None, ge=0, le=1)  # a fixed one; null: length-adaptive, by alpha
    normalise: bool = True  # advantages of a step to mean 0 and deviation 1, over all its tokens
    bootstrap: bool = True  # the policy's advantages of a cut-off trajectory end in the value of its last screen
    value_pretraining_steps: int = Field(100, ge=0)  # gradient steps, at most
    value_pretraining_tasks: int = Field(4, ge=2)  # a quarter of the episodes is held out: when to stop
    positive_nll: float = Field(0.1, ge=0)  # mu of VAPO's positive-example term
    format_penalty: float = Field(0.1, ge=0)  # taken from the reward for each step that does not parse
    length_buffer: int = Field(8, ge=0)  # tokens below max_new_tokens where the length penalty begins
    length_penalty: float = Field(0.05, ge=0)
    step_penalty: float = Field(0.0, ge=0)  # taken by an episode that uses its whole budget of steps, evenly over them
    weight_decay: float = Field(0.0, ge=0)
    beta2: float = Field(0.999, ge=0, lt=1)
    max_mismatch: float = Field(0.05, gt=0)  # mean |log-probability recomputed - sampled| that stops the run
    max_drift: float = Field(0.5, gt=0)  # the same of samples of older weights, which differ by right
    curriculum_floor: float = Field(0.2, gt=0, le=1)  # share of draws spread evenly over all tasks; 1: no curriculum
    curriculum_memory: float = Field(0.7, ge=0, le=1)  # of a task's outcomes, kept as a newer group comes
    curriculum_rise: float = Field(0.6, ge=0, le=1)  # success of a world's level that opens the next one


class Merge(_Block):
    weights: dict[str, float] = {"games": 0.34, "sites": 0.33, "control": 0.33}  # of the specialists; they sum to 1

    @model_validator(mode="after")
    def _convex(self) -> Merge:
        if any(w < 0 for w in self.weights.values()) or abs(sum(self.weights.values()) - 1) > 1e-6:
            raise ValueError("merge.weights must be 0 or more and sum to 1")
        return self


class Evaluation(_Block):
    samples: int = Field(1, ge=1)  # episodes a held-out task
    temperature: float = Field(0.0, ge=0)  # 0: greedy


class Promotion(_Block):
    """The gate plays fresh tasks with both models until it knows; `flywheel bench gate` prints what its rule does."""

    rule: Literal["better", "not_worse", "review", "always"] = "not_worse"
    # not_worse: promote what is shown not to be worse by the margin; better: what is shown to be better;
    # review: a person decides in Prefect's form, told what not_worse says; always: for experiments.
    margin: float = Field(0.1, gt=0, lt=1)  # of P(V=1): a loss that must not pass; better: a gain not to be missed
    false_promotion: float = Field(0.05, gt=0, lt=0.5)  # chance, at most, that one worse by the margin is promoted
    false_refusal: float = Field(0.1, gt=0, lt=0.5)  # chance, at most, that an equal one is called worse
    tasks: int = Field(80, ge=1)  # fresh held-out tasks of an iteration, at most; undecided after them: not promoted
    tasks_per_look: int = Field(20, ge=1)  # played before the evidence is looked at again
    review_timeout_s: float = Field(86_400, gt=0)


class Versioning(_Block):
    git: bool = False  # commit and tag each iteration in git; true in workspaces made by `flywheel init`


class Settings(_Block):
    seed: int = Field(7, ge=0, lt=2**63)
    iterations: int = Field(2, ge=1)  # of one `flywheel run`
    policy: Policy = Policy()
    sandbox: Sandbox = Sandbox()
    recording: Recording = Recording()
    language_model: LanguageModel = LanguageModel()
    synthesis: Synthesis = Synthesis()
    rollout: Rollout = Rollout()
    routing: Routing = Routing()
    ct: Ct = Ct()
    sft: Sft = Sft()
    rl: Rl = Rl()
    merge: Merge = Merge()
    evaluation: Evaluation = Evaluation()
    promotion: Promotion = Promotion()
    versioning: Versioning = Versioning()

    @model_validator(mode="after")
    def _combinations(self) -> Settings:
        if not self.synthesis.domains:
            raise ValueError("synthesis.domains has no domain")
        if taken := _TAKEN & set(self.synthesis.domains):
            raise ValueError(f"synthesis.domains: {min(taken)} has another meaning, so no domain can be called so")
        placed = [world for worlds in self.synthesis.domains.values() for world in worlds]
        if twice := {world for world in placed if placed.count(world) > 1}:
            raise ValueError(f"synthesis.domains has {min(twice)} twice: a world is of one domain")
        if set(self.merge.weights) != set(self.synthesis.domains):
            raise ValueError("merge.weights must name the same domains as synthesis.domains")
        judged = set(self.routing.scorers) - {"default", *self.synthesis.domains}
        if judged:
            raise ValueError(f"routing.scorers names {sorted(judged)}, which synthesis.domains does not have")
        if self.recording.recognizer == "whisper" and not self.recording.whisper_model:
            raise ValueError("recording.recognizer is whisper, so recording.whisper_model must name a checkpoint")
        if self.language_model.endpoint and not self.language_model.model:
            raise ValueError("language_model.endpoint is set, so language_model.model must name a model")
        if self.policy.summarizer == "language_model":
            if not self.language_model.endpoint:
                raise ValueError("policy.summarizer is language_model, so language_model.endpoint must name a server")
            if not self.policy.digest_characters:
                raise ValueError("policy.summarizer is language_model, so policy.digest_characters must be above 0")
        if self.policy.backend == "openai" and not self.policy.endpoint:
            raise ValueError("policy.backend is openai, so policy.endpoint must name a server")
        spaces = SPACES[self.policy.template]
        if self.policy.space not in spaces:
            raise ValueError(
                f"policy.template {self.policy.template} goes with policy.space {' or '.join(spaces)}, "
                f"not {self.policy.space}"
            )
        if max(self.sandbox.width, self.sandbox.height) > self.policy.max_image_side:
            raise ValueError("sandbox.width and sandbox.height must not be above policy.max_image_side")
        if self.sandbox.pages_min > self.sandbox.pages:
            raise ValueError("sandbox.pages_min must not be above sandbox.pages")
        if self.sandbox.silent_s < 2 * self.policy.timeout_s:
            raise ValueError("sandbox.silent_s must be twice policy.timeout_s or more: a session waits for its policy")
        if self.policy.min_pixels > self.policy.max_pixels:
            raise ValueError("policy.min_pixels must not be above policy.max_pixels")
        if self.rl.deterministic and self.rl.max_staleness:
            raise ValueError("rl.deterministic goes with rl.max_staleness 0: a stream depends on what finishes first")
        if self.rl.length_buffer >= self.policy.max_new_tokens:
            raise ValueError("rl.length_buffer must be under policy.max_new_tokens")
        if self.policy.max_new_tokens >= self.policy.max_context_tokens:
            raise ValueError("policy.max_new_tokens must be under policy.max_context_tokens")
        return self


def load(path: Path, overrides: dict[str, Any] | None = None, *, earlier: bool = False) -> Settings:
    """Read settings from a YAML file; `overrides` maps dotted names to values ("rl.steps": 3). earlier: also parameters
    by which earlier versions wrote the file, which are else refused with the name that they have now.

    Raises BadInput, naming the parameter, for a missing, empty or cut-off file, bad YAML, an unknown name or a bad
    value; what is wrong with an override is said of `--set`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        raw = yaml_text.read(text)
    except FileNotFoundError:
        raise BadInput(
            "no settings file", where=path, fix="run this in a workspace, or make one with `flywheel init DIR`"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"not valid YAML: {error}", where=path, fix="mend the file at the line named") from None
    if raw is None or raw == {}:
        raise BadInput("the settings file is empty", where=path, fix="restore it, for example with `git checkout`")
    if text.startswith(_WHOLE) and not text.rstrip().endswith(f"\n{_END}"):
        raise BadInput(
            f"the settings file is cut off: its last line is not {_END}", where=path,
            fix="restore it, for example with `git checkout`",
        )  # fmt: skip
    if not isinstance(raw, dict):
        raise BadInput("the settings file must be a mapping", where=path, fix="see params.yaml of the project")
    for name, value in (overrides or {}).items():
        block = raw
        *parents, leaf = name.split(".")
        for part in parents:
            block = block.setdefault(part, {})
            if not isinstance(block, dict):
                raise BadInput(f"{name}: {part} is not a block of settings", where="--set", fix=f"see {path}")
        block[leaf] = value
    return parse(settings_earlier.upgraded(raw) if earlier else raw, where=str(path), overrides=overrides or {})


def parse(raw: dict[str, Any], *, where: str, overrides: dict[str, Any] | None = None) -> Settings:
    """Validate a mapping; raises BadInput that names each wrong parameter.

    where: the file that `raw` stands in, but for the `overrides`, which were typed.
    """
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        faults = settings_faults.told(error, Settings)
        typed = bool(overrides) and all(fault.names(overrides) for fault in faults)
        raise BadInput(
            "wrong parameter: " + " | ".join(fault.line for fault in faults), where="--set" if typed else where,
            fix="change it and run again",
        ) from None  # fmt: skip


def is_parameter(name: str) -> bool:
    """Whether a dotted name is one of the tree: `rl.steps`, `synthesis.domains.games`."""
    return settings_faults.place(name.split("."), Settings) is not None


def dump(settings: Settings) -> str:
    """Settings as YAML, every field written out: what an iteration keeps as its frozen copy."""
    text = yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return f"{_WHOLE}\n{text}{_END}\n"
