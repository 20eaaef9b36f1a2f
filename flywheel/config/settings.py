"""Define every parameter of `params.yaml`: one class a block; the string below a field is its description."""

from __future__ import annotations

import re
import zoneinfo
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

DomainName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
MAX_NUMBER = 10**9  # of any number: above it counts and seconds leave what machines and libraries can hold


class SettingsBlock(BaseModel):
    """Hold a block of settings, checked strictly: values have the field's own type, and every number is finite.

    Another value or an unknown name raises pydantic.ValidationError. It cannot be changed.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _sound(cls, value: Any, info) -> Any:
        wanted = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and wanted is not bool:
            known = f"; it is one of {', '.join(map(str, get_args(wanted)))}" if get_origin(wanted) is Literal else ""
            raise ValueError(f"{str(value).lower()} is not a value of it{known}")
        if isinstance(value, int | float) and abs(value) > MAX_NUMBER and info.field_name != "seed":
            told = f"{value:.6g}" if isinstance(value, float) or abs(value) < 1e300 else "it"
            raise ValueError(f"{told} is too large; the largest number is {MAX_NUMBER:.0e}")
        if isinstance(value, str) and not value.isprintable():
            raise ValueError("a text of one line is wanted, without control characters")
        return value


# Coordinate formats that each policy.template can be written in.
COORDINATE_SPACES = {
    "minimal": ("grid",),
    "point": ("grid", "pixels", "norm1"),
    "ui_tars_1_5": ("pixels",),
    "ui_tars_1_0": ("norm1000",),
    "tool_call": ("grid", "pixels", "norm1"),
}
# Values of other parameters that guided decoding requires.
GUIDED_DECODING_REQUIREMENTS = {
    "template": ("minimal", "point"),
    "coordinate_format": ("grid", "norm1"),
    "thinks": (False,),
    "backend": ("transformers",),
}


class PolicySettings(SettingsBlock):
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
    coordinate_format: Literal["grid", "norm1000", "pixels", "norm1"] = "grid"
    """What the model's coordinates mean. grid: 0 to coordinates - 1. norm1000: 0 to 1000 (UI-TARS 1.0). pixels: those
    of the resized screen (UI-TARS 1.5). norm1: 0 to 1."""
    guided_decoding: Literal["auto", "always", "never"] = "auto"
    """Whether the agent's answers are held to the form of an action: tokens that no readable answer can go on with are
    never drawn, and RL counts the others alone. auto: where that can be (template minimal and point in grid or
    norm1, without thinks, backend transformers). always: what cannot is refused."""
    thinks: bool = False
    """Whether the chat template opens the thinking: what the model writes before </think> is then its thought."""
    coordinates: int = Field(100, ge=10, le=100_000)
    """Points along each side of the screen, for coordinate_format grid. UI-TARS and Qwen3-VL: 1000."""
    resize_factor: int = Field(28, ge=1, le=1024)
    """The sides of the screen as the model sees it are multiples of this many pixels. The checkpoint says how many;
    coordinate_format pixels and the length of prompts depend on it."""
    min_pixels: int = Field(78_400, ge=1)
    """A screen of fewer pixels is enlarged to this many. The checkpoint says how many."""
    max_pixels: int = Field(12_845_056, ge=1)
    """A screen of more pixels is reduced to this many. The checkpoint says how many."""
    actions: Literal["computer", "browser", "mobile", "game"] = "browser"
    """The set of actions that the prompt offers."""
    functions: bool = False
    """Whether the prompt also offers functions (terminal, Python, files, tools)."""
    history_n_images: int = Field(1, ge=1)
    """The newest steps, this one included, that the prompt shows with their screens."""
    history_n_text: int = Field(4, ge=0)
    """Steps before these that the prompt tells in one line each."""
    summary_max_chars: int = Field(0, ge=0)
    """Characters of a summary: one text that tells all steps that are older still. 0: there is none."""
    summarizer: Literal["rules", "language_model"] = "rules"
    """Who writes the summary: rules, or the server of the block language_model."""
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
    quantization: Literal["none", "w8a8"] = "none"
    """w8a8: weights and inputs of the layers in 8-bit integers while the model answers, for models of 50 million
    parameters or more on a CPU; RL does not take it. For backend transformers; a server has an option of its own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device on which the model answers. auto: the GPU if there is one."""
    max_num_seqs: int = Field(16, ge=1)
    """Requests that are answered together, at most; by each server where there are several."""
    max_queue_size: int = Field(256, ge=1)
    """Requests that may wait, for each server where there are several. One more is refused."""
    cache_mb: int = Field(256, ge=0)
    """Memory, in MB, for what several prompts begin with alike (screens, keys and values). 0: nothing is kept."""
    timeout_s: float = Field(60.0, gt=0)
    """Seconds until an answer must be there, waiting and retries included."""
    retries: int = Field(2, ge=0)
    """Times that a request is repeated if the server fails. For backend openai."""
    sleeps_while_training: bool = False
    """Whether the server leaves the GPU's memory to CT, SFT and RL while they train (vLLM's sleep mode), so that one
    GPU has both sides. For backend openai, with rl.max_staleness 0."""

    @field_validator("endpoint")
    @classmethod
    def _each_once(cls, endpoint: str | list[str]) -> str | list[str]:
        if isinstance(endpoint, list):
            addresses = [one.rstrip("/") for one in endpoint]
            if not all(addresses):
                raise ValueError("one of the list is empty")
            if twice := next((address for address in addresses if addresses.count(address) > 1), ""):
                raise ValueError(f"{twice} stands there twice")
        return endpoint

    @property
    def servers(self) -> tuple[PolicySettings, ...]:
        """Return these settings once for each server: `endpoint` is then the URL of that server alone."""
        several = self.endpoint if isinstance(self.endpoint, list) else [self.endpoint]
        return tuple(self.model_copy(update={"endpoint": one}) for one in several)

    @property
    def holds_form(self) -> bool:
        """Tell whether the agent's answers are held to the form of an action, as `guided_decoding` says."""
        return self.guided_decoding == "always" or (self.guided_decoding == "auto" and not self.unheld())

    def unheld(self) -> list[str]:
        """List the parameters (`template`, ...) whose values do not let answers be held to the form of an action."""
        return [name for name, fit in GUIDED_DECODING_REQUIREMENTS.items() if getattr(self, name) not in fit]


class LanguageModelSettings(SettingsBlock):
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


class SandboxSettings(SettingsBlock):
    """The browsers in which tasks are done: screens, how many run at once, deadlines, memory, pictures of episodes."""

    backend: Literal["local", "manager"] = "local"
    """Where environments are. local: on this machine. manager: on the nodes of the manager."""
    manager: str = Field("", pattern=r"^(cluster|https?://[^\s/]+(:\d+)?/?)?$")
    """Address of the manager, such as http://HOST:4300. Its token is read from FLYWHEEL_SANDBOX_TOKEN. cluster: the run
    has one itself, with the nodes of its Ray cluster that have browsers."""
    user: str = Field("", max_length=100)
    """Name under which the manager counts sessions. Empty: the user's."""
    width: int = Field(224, ge=64, le=4096)
    """Width of the screen, in pixels."""
    height: int = Field(224, ge=64, le=4096)
    """Height of the screen, in pixels."""
    browsers: int = Field(2, ge=1, le=256)
    """Browsers that run at once, at most. There are as many as the load asks for."""
    pages: int = Field(8, ge=1, le=4096)
    """Pages that are open at once over all browsers, at most. An episode takes one."""
    pages_min: int = Field(1, ge=0)
    """Pages that stay open whatever the load."""
    step_ms: int = Field(200, ge=0)
    """Milliseconds that pass on the page's own clock in a step. The clock stands still between steps."""
    timeout_s: float = Field(10.0, gt=0)
    """Seconds until a reset or a step must be done."""
    acquire_timeout_s: float = Field(600.0, gt=0)
    """Seconds that an episode waits for a free page."""
    lease_s: float = Field(3600.0, gt=0)
    """Seconds after which a page is taken back from its episode."""
    heartbeat_timeout_s: float = Field(600.0, gt=0)
    """Seconds without a step after which a page is taken back. Twice policy.timeout_s or more."""
    idle_s: float = Field(60.0, ge=0)
    """Seconds after which a page or browser that nobody uses is closed."""
    recycle_after: int = Field(200, ge=1)
    """Episodes after which a browser is replaced by a fresh one."""
    browser_mb: int = Field(2048, ge=256)
    """Memory, in MB, of a browser and its pages above which it is replaced by a fresh one."""
    page_mb: int = Field(1024, ge=512)
    """Memory, in MB, of one page above which it is ended, which counts as a crash."""
    executable: str = ""
    """The Chromium to use. Empty: the first one found."""
    chromium_sandbox: Literal["auto", "required", "off"] = "auto"
    """Chromium's own sandbox, which keeps a page from this machine. auto: on where the machine allows it."""
    frames: Literal["auto", "begin_frame", "screenshot"] = "auto"
    """How screens are taken. auto: begin_frame where this build of Chromium has it."""
    heap_mb: int = Field(512, ge=64)
    """JavaScript memory of a page, in MB, at most."""
    download_mb: int = Field(50, ge=0)
    """Size, in MB, above which a download is cancelled."""
    record: Literal["none", "failed", "all"] = "none"
    """Episodes kept as animated pictures (PNG), which every browser plays. failed: not solved, or crashed."""
    record_folder: str = Field("episodes", min_length=1)
    """Folder of the kept episodes, in the workspace."""
    record_mb: int = Field(200, ge=1)
    """Size of the folder of kept episodes, in MB, at most. The oldest make room."""
    kinds: dict[DomainName, dict[str, Any]] = Field({})
    """Settings of other kinds of environments than browsers, by the kind's name. Each kind says itself what it has."""


class RecordingSettings(SettingsBlock):
    """Recordings of people who work and think aloud: where they lie, and how their speech is recognized."""

    folder: str = Field("recordings", min_length=1)
    """Folder of the recordings. New ones may be added at any time."""
    sessions_per_iteration: int = Field(72, ge=0)
    """New recordings that one iteration takes in, at most."""
    imports_per_iteration: int = Field(200, ge=0)
    """Demonstrations of other data sets (`flywheel data import`) that one iteration takes in, at most."""
    recognizer: Literal["pocketsphinx", "whisper"] = "pocketsphinx"
    """The speech recognizer. whisper needs flywheel[whisper] and whisper_model."""
    whisper_model: str = ""
    """A checkpoint file of Whisper, or the name of one in its cache, such as base.en."""
    language: str = Field("en", pattern="^[a-z]{2,3}$")
    """The language that is spoken, by its code, such as de. pocketsphinx hears English (en) alone."""
    processes: int = Field(2, ge=1, le=256)
    """Processes that take in recordings at the same time."""
    timeout_s: float = Field(120.0, gt=0)
    """Seconds until the speech of one recording must be recognized, besides its own length."""
    least_confidence: float = Field(0.6, ge=0, le=1)
    """An utterance whose words the recognizer trusts less, on average, becomes no thought of a step."""


class CurationSettings(SettingsBlock):
    """What recordings must pass before they are trained on, and what is made of those that do."""

    reviewers: int = Field(0, ge=0, le=2)
    """People who each look at a recording, blind, before an iteration takes it in (`flywheel review recordings`). Where
    two disagree, a third decides. 0: recordings are taken in without."""
    replay: Literal["none", "note", "refuse"] = "none"
    """Whether a recording is played again from its task's beginning, where its world is here. note: what differs stands
    in the reviews. refuse: a recording that differs is not trained on, either."""
    rewordings: int = Field(0, ge=0, le=8)
    """Versions of each recording with other words in its instruction and thoughts, beside it, by the server of
    language_model or, without one, by rules. They share its weight in training. 0: none."""


class AnnotationSettings(SettingsBlock):
    """Sessions in which a person annotates the newest model's own rollouts (`flywheel annotate`)."""

    folder: str = Field("annotations", min_length=1)
    """Folder of the sessions. Finished ones wait there for the next iteration."""
    sessions_per_iteration: int = Field(200, ge=0)
    """Finished sessions that one iteration takes in, at most."""
    candidates: int = Field(3, ge=1, le=9)
    """Distinct actions that the model proposes for a step, at most."""
    max_samples: int = Field(12, ge=1)
    """Answers that the model is asked for to find them, at most."""
    lease_s: float = Field(900.0, gt=0)
    """Seconds without a decision after which a task goes back to the others. What was decided stays."""


class SynthesisSettings(SettingsBlock):
    """The tasks that are made for the model, and the general screens that are mixed into its training."""

    domains: dict[DomainName, list[str]] = Field(
        {"games": ["tiles", "shapes", "merge"], "sites": ["shop", "settings"], "control": ["control"]}
    )
    """The worlds of each domain, and the third-party pages of `manifests` by name. RL trains a specialist for each
    domain."""
    held_out: Annotated[float, Field(ge=0, le=0.5)] | list[str] = Field(
        [
            "settings/size",
            "shop/search",
            "control/click_side",
            "control/radio",
            "control/type_number",
            "control/sort",
            "control/pages",
            "control/right_click",
            "control/size",
        ]
    )
    """Task templates that only evaluation uses: their names (world/template), or a share of the templates of each
    world that has four or more."""
    excluded_templates: list[str] = Field([])
    """Task templates that are not asked at all, by their names (world/template)."""
    manifests: list[str] = Field([])
    """Third-party pages: manifest files, folders of them, or names of shipped ones (`flywheel env page list`)."""
    worlds: list[str] = Field([])
    """Worlds by manifest, as files: on computers and phones, and games of rules. `domains` names them as any other."""
    train_tasks: int = Field(40, ge=1, le=100_000)
    """Tasks made in each iteration to train on, over all worlds."""
    shares: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field({})
    """Shares of the training tasks: of a domain, by its name, and of a world or page in its domain's tasks, as
    domain/world. Those without a share divide the rest evenly, so that {} gives all domains, and all worlds of one, the
    same. Evaluation has all evenly, always."""
    refresh: float = Field(0.0, ge=0, le=1)
    """Share of the training tasks that are of templates and levels which the newest model fails at (weak), solved
    lately and fails at now (forgotten), or solves at times (mixed), by its rollouts of the last three iterations. 0:
    all templates and levels come evenly."""
    fixed_template_fraction: float = Field(0.5, ge=0, le=1)
    """Share of a world's training tasks that are of the same templates and levels in each iteration, with other
    contents: on these, P(V=1) of two iterations is compared (`p_v1_rise`). The others go through all templates."""
    eval_tasks: int = Field(40, ge=1, le=100_000)
    """Tasks for evaluation, the same in every iteration."""
    levels: list[int] = Field([1, 2], min_length=1)
    """Levels of difficulty that tasks are made of."""
    level_unlock_success: float = Field(0.0, ge=0, le=1)
    """Training tasks of a world begin with the lowest of these levels, and the next one opens once this share of the
    model's trajectories of the highest open one succeed. 0: all levels are open from the first iteration. Evaluation
    has all levels, always. Recordings of levels that are not open wait while there are others."""
    num_grounding_examples: int = Field(1000, ge=0, le=1_000_000)
    """General screens, with something to say of them, that CT and SFT mix with the steps of tasks."""
    page_grounding_fraction: float = Field(0.0, ge=0, le=1)
    """Share of them that show pages which training tasks are on, of sites and third-party pages: click what has this
    name, say what is there. The screens are those of a task's start and, on our own sites, of the expert's way."""


class RolloutSettings(SettingsBlock):
    """How the model plays the iteration's tasks."""

    n_rollouts: int = Field(4, ge=1)
    """Trajectories of each task. SFT takes those that solved it (rejection sampling)."""
    max_concurrent: int = Field(16, ge=1, le=4096)
    """Trajectories that are played at once, at most. No more than sandbox.pages can be, on each node where
    environments are leased."""
    temperature: float = Field(0.5, gt=0)
    """Sampling temperature. At 1 a model as small as the shipped one garbles every second answer."""
    tasks_per_shard: int = Field(20, ge=1)
    """Tasks that one Prefect task plays. A run that is killed loses what such tasks had not finished, no more."""
    retries: int = Field(2, ge=0)
    """Times that a trajectory is begun again if its page crashes."""
    corrections_per_task: int = Field(0, ge=0)
    """Failed trajectories of each task that a solver corrects, at most: the state before one of the model's mistakes is
    restored, and a solver goes on from there: the expert of the world, or the known solution of a page's task. What
    then solves its task is trained on as people's demonstrations are. Tasks without a solver get none. 0: none."""
    corrections_at: Literal["first_mistake", "least_sure", "both"] = "first_mistake"
    """The mistake that a correction begins at: first_mistake, of the trajectory; least_sure, the first one from the
    step on whose answer had the lowest mean log-probability; both, two corrections where these differ."""


# Scorers that must all be satisfied, or {cascade: [...]}: each is asked where those before it abstain.
Panel = list[str] | dict[Literal["cascade"], list[str]]


class RoutingSettings(SettingsBlock):
    """Which trajectories count as solved. Solved ones are kept for SFT, others for CT, unsound ones for neither."""

    threshold: float = Field(1.0, gt=0, le=1)
    """The score from which on a task is solved, where its template names none."""
    scorers: dict[str, Panel] = Field({"default": ["verifier"]})
    """Who judges the trajectories of a domain; default: those of every other domain. A trajectory counts as solved
    where all of them say so. Of {cascade: [verifier, judge, person]} the first that does not abstain decides; person:
    it waits for a person's label."""
    max_invalid_fraction: float = Field(0.5, ge=0, le=1)
    """The share of an iteration's trajectories that may break a data contract: so many are set aside, each with its
    reason; where it is more, the iteration stops before anything is stored."""

    review: int = Field(0, ge=0, le=200)
    """Trajectories that a person looks at after each iteration is routed and before it trains; what they say moves them
    to the other store. Drawn evenly over domains and stores. 0: none, and the iteration waits for nobody."""
    review_doubtful: float = Field(0.5, ge=0, le=1)
    """Share of them that is drawn from doubtful ones, as long as there are any: scorers disagree or gave no score, or
    a score is within review_near of its threshold."""
    review_near: float = Field(0.1, ge=0, le=1)
    """How near a score below 1 has to be to its threshold for the trajectory to be doubtful."""
    review_timeout_s: float = Field(86_400.0, gt=0)
    """Seconds that a run waits for what people say of them (`flywheel review routes`)."""
    on_timeout: Literal["keep", "fail"] = "keep"
    """What happens then. keep: what nobody looked at stays where it is, and the run goes on; fail: the run fails, and
    goes on once all are labelled."""

    dedup_min_similarity: float = Field(0.8, gt=0, le=1)
    """Share of steps from which on two of the model's trajectories of one task count as near-duplicates. 1: the same
    steps alone."""
    dedup_window: int = Field(2, ge=0)
    """Iterations before this one that its trajectories are compared with, besides each other."""
    dedup_weighting: Literal["one", "each"] = "one"
    """What a step of a near-duplicate weighs in training. one: near-duplicates share the weight of one. each: 1."""

    @field_validator("scorers")
    @classmethod
    def _somebody(cls, scorers: dict[str, Panel]) -> dict[str, Panel]:
        if "default" not in scorers:
            raise ValueError("default must be named: who judges in the domains that are not")
        for domain, panel in scorers.items():
            names = panel.get("cascade", []) if isinstance(panel, dict) else panel
            if not names or len(set(names)) < len(names):
                raise ValueError(f"{domain} must name scorers, each once")
        return scorers


class JudgeSettings(SettingsBlock):
    """The scorer `judge`: the server of language_model holds the agent's answer against the task's reference answer.
    Without one, both are compared in normalised form, and the scores say so."""

    votes: int = Field(3, ge=1, le=33)
    """Answers that are asked of it for each trajectory, in several wordings in turn. Those that cannot be read are
    dropped; unless more than half can be read, there is no score."""
    mode: Literal["majority", "unanimous"] = "majority"
    """majority: more than half of the votes that can be read decide. unanimous: all votes must say the same. Otherwise
    it abstains."""
    max_chars: int = Field(2000, ge=100, le=100_000)
    """Characters of the agent's answer that it is shown, at most."""


class OptimizerSettings(SettingsBlock):
    """How gradient steps are taken: in CT, SFT, RL and pretraining alike. AdamW; each step names its own rate."""

    engine: Literal["torch", "deepspeed"] = "torch"
    """What takes the gradient steps. deepspeed needs flywheel[deepspeed]."""
    zero_stage: Literal[1, 2, 3] = 2
    """What the processes share out (ZeRO): 1 the optimizer's state, 2 gradients too, 3 weights too. For engine
    deepspeed."""
    zero_offload: bool = False
    """Whether the optimizer's state, and with ZeRO 3 the weights, lie in the machine's memory and not on the GPU. For
    engine deepspeed."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw_8bit keeps AdamW's two means in 8 bits instead of 32. It needs bitsandbytes and a GPU, and engine torch."""
    processes: int = Field(1, ge=1, le=64)
    """Processes that train together, on one machine or on cluster.training_nodes. Each has a GPU of its own where there
    are GPUs."""
    max_grad_norm: float = Field(1.0, gt=0)
    """A gradient with a larger norm is scaled down to it."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's weight decay."""
    beta2: float = Field(0.95, ge=0, lt=1)
    """AdamW's decay rate of the squared gradient's mean. beta1 is 0.9."""

    @model_validator(mode="after")
    def _of_the_engine(self) -> OptimizerSettings:
        if self.zero_offload and self.engine == "torch":
            raise ValueError("zero_offload is DeepSpeed's: set engine to deepspeed, or zero_offload to false")
        if self.optimizer == "adamw_8bit" and self.engine == "deepspeed":
            raise ValueError("adamw_8bit is for engine torch: set optimizer to adamw, or engine to torch")
        return self


class TrainingSettings(OptimizerSettings):
    """What CT, SFT and RL share."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device that trains. auto: the GPU if there is one."""
    pack_tokens: int = Field(4096, ge=0)
    """Tokens of one forward pass, put side by side without padding. 0: samples are padded, micro_batch at a time."""
    micro_batch: int = Field(32, ge=1)
    """Samples of one padded forward pass. It changes the memory needed, not the result."""
    freeze_vision: bool = False
    """Whether the vision tower stays as it is. Each screen is then read once, and a step takes less time."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the products in training. bfloat16 is several times as fast on a GPU. Trained weights, optimizer, V and
    log-probabilities stay float32. With adapter.base_dtype nf4 products are bfloat16 in any case."""
    gradient_checkpointing: bool = False
    """Keep what goes into each layer alone, and compute the rest again for the gradient: less memory, a third more
    arithmetic."""
    checkpoint_every_n_layers: int = Field(1, ge=1)
    """With gradient_checkpointing, do so for every n-th layer. The others keep all they computed: with 2, half of the
    additional arithmetic, and about half of the activations' memory."""


class OrmSettings(SettingsBlock):
    """The outcome reward model (ORM), which the scorer `orm` asks whether a trajectory did its task."""

    checkpoint: str = "models/orm"
    """Its folder, or the name before `@N` of several versions, of which the newest counts. A relative one starts from
    the folder in which the command runs."""
    false_yes: float = Field(0.05, gt=0, lt=0.5)
    """Of the trajectories that did not do their task, the share, at most, that it may call certain to be done."""
    false_no: float = Field(0.05, gt=0, lt=0.5)
    """Of those that did, the share, at most, that it may call certain not to be. What it cannot tell so well is to
    review."""
    abstains: bool = True
    """Whether it abstains on what is to review. false: it says 1 from a calibrated probability of 0.5 on, else 0."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device on which it answers. auto: the GPU if there is one."""


class AdapterSettings(SettingsBlock):
    """Whether CT, SFT and RL train an adapter (LoRA, by PEFT) of a frozen base, or all weights; and which adapter."""

    method: Literal["none", "lora"] = "none"
    """lora: each model is an adapter of policy.base. A stage goes on training the adapter that it begins with; one that
    begins with a whole checkpoint makes a new one. none: all weights are trained, and an adapter that a stage begins
    with is merged into them first."""
    rank: int = Field(16, ge=1, le=4096)
    """Columns of a layer's matrix B, and rows of A. More learn more and cost more memory."""
    alpha: int = Field(32, ge=1)
    """What B A is added with: alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of an adapter's inputs that CT and SFT leave out at random. RL leaves none out."""
    targets: list[Literal["language_model", "merger", "vision_tower"]] = Field(["language_model"], min_length=1)
    """The parts of the model whose linear layers are adapted. merger: from the vision tower's patches to tokens."""
    rslora: bool = False
    """Scale by alpha / sqrt(rank), which suits high ranks (rsLoRA)."""
    dora: bool = False
    """Train the size of each row by itself (DoRA): a little better and slower. Merging reads the base too."""
    base_dtype: Literal["float32", "bfloat16", "nf4"] = "float32"
    """Type that the frozen base is kept in while an adapter is trained, whatever products are computed in. bfloat16:
    half the memory, and nothing is lost where the checkpoint is in bfloat16. nf4: 4 bits, by bitsandbytes on a GPU."""

    @field_validator("targets")
    @classmethod
    def _each_once(cls, targets: list[str]) -> list[str]:
        if len(set(targets)) < len(targets):
            raise ValueError("one of the targets stands there twice")
        return targets

    @model_validator(mode="after")
    def _possible(self) -> AdapterSettings:
        if self.dora and self.base_dtype == "nf4":
            raise ValueError("adapter.dora cannot be computed on a base in nf4: set adapter.base_dtype to bfloat16")
        return self


class SupervisedSettings(TrainingSettings):
    """What CT and SFT share."""

    freeze_vision: bool = True
    num_examples: int = Field(2000, ge=1)
    """Samples trained on in one iteration, general data included."""
    batch: int = Field(16, ge=1)
    """Samples of a gradient step."""
    lr: float = Field(7e-4, gt=0)
    """The highest learning rate."""
    agent_fraction: float = Field(0.5, ge=0, le=1)
    """Share of samples that show steps of tasks. The rest are general data."""
    max_repeats: int = Field(12, ge=1)
    """Times that a step is trained on, on average, at most. General data fill the rest."""
    warmup: float = Field(0.05, ge=0, lt=1)
    """Share of the gradient steps in which the learning rate rises. Then it falls along a cosine to a tenth."""
    save_every: int = Field(10, ge=1)
    """Gradient steps between two saved states, from which a killed run goes on."""


class CtSettings(SupervisedSettings):
    """Continual training (CT): on people's recordings and what was not good enough for SFT."""

    every: int = Field(1, ge=1)
    """CT runs once in this many iterations, beginning with the first. 1: in each."""
    sft_init: Literal["latest", "last_ct"] = "latest"
    """What SFT begins from where CT does not run. latest: the newest model. last_ct: the last one that CT trained, so
    that SFT learns all of its window anew."""
    rollout_weight: float = Field(0.02, ge=0, le=1)
    """Weight of a step that the model itself played, unverified. A person's step weighs 1."""


class SftSettings(SupervisedSettings):
    """Supervised fine-tuning (SFT): on trajectories that solved their task."""

    window: int = Field(2, ge=1)
    """The newest iterations whose trajectories are trained on."""
    demonstrations: float = Field(0.5, ge=0, lt=1)
    """Share of the steps of tasks that are people's demonstrations, of all iterations, beside the model's own."""
    verified_only: bool = True
    """Train on trajectories that solved their task alone. false: on all of the model's, and CT gets none of them."""
    num_examples: int = Field(320, ge=1)
    batch: int = Field(32, ge=1)
    lr: float = Field(1e-4, gt=0)
    agent_fraction: float = Field(0.6, ge=0, le=1)


class PreferenceSettings(SettingsBlock):
    """A preference loss beside SFT's own: a step that was kept becomes likelier than one that the model proposed or
    took on the same screen (view preference_pairs)."""

    weight: float = Field(0.0, ge=0)
    """What the loss is multiplied with before it is added to SFT's. 0: SFT learns from no pairs."""
    loss: Literal["dpo", "simpo"] = "dpo"
    """dpo compares with the checkpoint that SFT begins from; simpo compares means over the tokens with a margin, and
    reads no other weights."""
    beta: float = Field(0.1, gt=0)
    """How fast the loss falls as the kept step becomes likelier than the other. For simpo 2 is usual."""
    margin: float = Field(1.0, ge=0)
    """By how much the kept step is to be likelier: beta times the difference, in nats a token. For loss simpo."""
    nll: float = Field(0.2, ge=0)
    """Weight, within the loss, of imitating the kept step, so that it does not become unlikely with the other."""
    pairs: int = Field(8, ge=1)
    """Pairs of a gradient step. A pair comes sft.max_repeats times at most."""


class RlSettings(TrainingSettings):
    """Reinforcement learning (RL): a specialist for each domain, by tasks that are played while it trains."""

    algorithm: str = Field("ppo", min_length=1)
    """ppo; grpo, which compares the episodes of a task and needs no value model; or another module of
    flywheel/training/rl/algorithms."""
    steps: int = Field(4, ge=0)
    """Training steps for each domain."""
    tasks_per_step: int = Field(4, ge=1)
    """Tasks of a training step."""
    group_size: int = Field(4, ge=1)
    """Episodes of a task. A training step uses tasks_per_step x group_size of them."""
    reward: str = ""
    """The scorer that rewards the episodes, such as verifier or orm, which then never abstains. "": those of
    routing.scorers."""
    audit_fraction: float = Field(1.0, ge=0, le=1)
    """Share of the groups that the verifier judges too, where another scorer pays and the task has a verifier. It pays
    nobody: it tells how often what failed is paid."""
    audit_tolerance: float = Field(0.1, gt=0, lt=1)
    """Share of the failed episodes that may be paid. The run warns of reward hacking once more is proved."""
    audit_stops: bool = False
    """Whether that stops the run, by an error that names what was paid, instead of a warning."""
    min_live_groups: float = Field(0.0, ge=0, le=1)
    """Share of live groups (in which some episodes succeed and some fail) among a domain's rollouts, below which its RL
    is skipped: its specialist is the SFT checkpoint. 0: never."""
    max_staleness: int = Field(1, ge=0)
    """Training steps by which the oldest weights that played an episode may lag. 0: play, then train, by turns."""
    batch_timeout_s: float = Field(3600.0, gt=0)
    """Seconds until the episodes of a training step must be there."""
    deterministic: bool = False
    """Whether each request is answered alone, so that a run repeats bit for bit. Goes with max_staleness 0."""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads of the trainer. 0: half of them where the policy answers on this CPU too, else all."""
    temperature: float = Field(0.5, gt=0)
    """Sampling temperature of the episodes. What is trained is the policy at this temperature."""
    epochs: int = Field(1, ge=1)
    """Times that the policy is trained on the episodes of a step."""
    critic_epochs: int = Field(4, ge=1)
    """Times that the value model, which is small, is trained on the episodes of a step."""
    minibatch: int = Field(32, ge=1)
    """Samples (turns of episodes) of a gradient step. Of long episodes take more, so that a batch is two or three of
    them: with seven for 32 outcomes of a dozen turns each, a model lost in 20 batches what it could do."""
    minibatch_by: Literal["task", "turn"] = "task"
    """How the samples of a gradient step are chosen. task: those of one task stay together, which saves time; turn: any
    mixture."""
    actor_lr: float = Field(1e-4, gt=0)
    """Learning rate of the policy."""
    critic_lr: float = Field(2e-4, gt=0)
    """Learning rate of the value model. At 0.0005 it overfits within 100 gradient steps."""
    warmup: int = Field(8, ge=0)
    """Gradient steps in which the policy's learning rate rises to actor_lr, where it stays."""
    eps_low: float = Field(0.2, gt=0, lt=1)
    """PPO's clip where the advantage is negative: a token whose probability ratio falls below 1 - eps_low gets no
    further gradient."""
    eps_high: float = Field(0.28, gt=0)
    """PPO's clip where the advantage is positive: a token whose probability ratio rises above 1 + eps_high gets no
    further gradient, and one of older weights weighs no more than that."""
    dual_clip: float = Field(3.0, gt=1)
    """Where the advantage is negative: the most that a token's probability ratio counts, and that a token of older
    weights weighs."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount of later rewards."""
    lambda_critic: float = Field(1.0, ge=0, le=1)
    """Lambda of generalised advantage estimation (GAE) in the value model's targets."""
    gae_lambda_alpha: float = Field(1.5, gt=0)
    """Lambda of GAE in the policy's advantages, by the trajectory's length l in tokens: max(0, 1 - 1/(gae_lambda_alpha
    l)). The UI-TARS-2 report has 0.05."""
    lambda_policy: float | None = Field(None, ge=0, le=1)
    """A fixed lambda for the policy's advantages. null: by the trajectory's length, with gae_lambda_alpha."""
    normalise: bool = True
    """Whether the advantages of a step are brought to mean 0 and deviation 1, over all its tokens."""
    advantage_normalization: Literal["std", "none"] = "std"
    """Of grpo. std: an episode's reward less the mean of its group, over the group's deviation; none: less the mean of
    the group's other episodes (RLOO), so that a group of nearly equal rewards does not count as much as a mixed one."""
    bootstrap: bool = True
    """Whether the advantages of an episode that ran out of steps end in the value of its last screen, instead of in its
    outcome."""
    value_pretraining_steps: int = Field(100, ge=0)
    """Gradient steps of the value model before the first training step, at most."""
    value_pretraining_tasks: int = Field(4, ge=2)
    """Tasks played to train the value model before the first training step. A quarter of the episodes is held out and
    tells when to stop."""
    positive_nll: float = Field(0.1, ge=0)
    """Weight of an added loss that imitates successful episodes (mu of VAPO). 0: none."""
    format_penalty: float = Field(0.1, ge=0)
    """Taken from the reward for each step whose text is no action."""
    length_buffer: int = Field(8, ge=0)
    """A penalty for long answers begins this many tokens below policy.max_new_tokens. 0: no penalty."""
    length_penalty: float = Field(0.05, ge=0)
    """The penalty for an answer of policy.max_new_tokens tokens, to which it rises evenly."""
    reward_progress: bool = False
    """Whether each step is rewarded with what it adds to the score of the state, where the environment tells it,
    instead of the whole score at the end."""
    step_penalty: float = Field(0.0, ge=0)
    """Taken from the reward of an episode that uses all of its steps; of a shorter one, its share of them."""
    weight_decay: float = Field(0.0, ge=0)
    beta2: float = Field(0.999, ge=0, lt=1)
    max_logprob_diff_on_policy: float = Field(0.05, gt=0)
    """The run stops where trainer and policy, with the same weights, disagree on the log-probabilities of tokens by
    more than this, on average."""
    max_logprob_diff_off_policy: float = Field(0.5, gt=0)
    """The same limit as max_logprob_diff_on_policy for tokens of older weights, which differ for a good reason."""
    curriculum_uniform_fraction: float = Field(0.2, gt=0, le=1)
    """Share of tasks that is drawn evenly. The others come more often the more there is to learn from them. 1: no
    curriculum."""
    curriculum_ema_decay: float = Field(0.7, ge=0, le=1)
    """Weight, from 0 to 1, that a task's earlier outcomes keep when newer ones come."""
    curriculum_level_up_success: float = Field(0.6, ge=0, le=1)
    """Success at a world's level from which on the next level is open."""
    fresh_tasks: bool = False
    """Whether each group of episodes plays fresh contents of the task that the curriculum draws: of its world, template
    and level, never those of a held-out task. Worlds whose tasks are the same for all seeds keep theirs."""
    replay_fraction: float = Field(0.0, ge=0, lt=1)
    """Share of a gradient step's samples that are turns of earlier successful episodes of this run, of tasks that
    succeed in fewer than half of their episodes; 0.25 is a good choice. 0: none."""
    restored_start_fraction: float = Field(0.0, ge=0, le=1)
    """Share of the groups that begin within a known success of their task, as many steps before its end as make success
    a coin toss; 0.75 is a good choice. 0: all begin at the task's beginning."""
    true_start_tail: float = Field(0.3333, ge=0, le=1)
    """Share of the steps, the last ones, whose groups all begin at the task's beginning."""
    start_sources: list[Literal["rollouts", "corrections", "recordings", "solver"]] = Field(
        ["rollouts", "recordings"], min_length=1
    )
    """Whose successes episodes begin within; the first that knows the task is taken. rollouts: the iteration's own
    verified ones; corrections: its rollouts that a solver went on with (rollout.corrections_per_task); recordings:
    people's; solver: what a suite's own expert plays, also of fresh contents."""


class MergeSettings(SettingsBlock):
    """How the specialists of RL become one model."""

    weights: dict[str, float] = Field({"games": 0.34, "sites": 0.33, "control": 0.33})
    """The weight of each domain's specialist. They sum to 1."""
    adapter_rank: int = Field(0, ge=0, le=4096)
    """Rank that a merged adapter is brought to, by the best approximation; its error is told. 0: adapter.rank, so that
    the next iteration goes on training it. The exact sum has the ranks of all specialists together."""

    @model_validator(mode="after")
    def _convex(self) -> MergeSettings:
        if any(w < 0 for w in self.weights.values()) or abs(sum(self.weights.values()) - 1) > 1e-6:
            raise ValueError("merge.weights must be 0 or more and sum to 1")
        return self


class EvaluationSettings(SettingsBlock):
    """How models play the tasks that they were not trained on."""

    n_trials: int = Field(1, ge=1)
    """Episodes of each task."""
    temperature: float = Field(0.0, ge=0)
    """Sampling temperature. 0: always the likeliest token."""
    stages: bool = False
    """Whether the models of CT, SFT and RL play the held-out tasks too, a specialist those of its domain: it shows
    which stage gains and which one loses (`success_by_stage`)."""


class PromotionSettings(SettingsBlock):
    """Whether the new model takes the place of the best one: both play fresh tasks until it is known. `flywheel bench
    gate` shows how often these rules err."""

    rule: Literal["superiority", "non_inferiority", "review", "always"] = "non_inferiority"
    """What is promoted. non_inferiority: what is shown not to be worse by the margin; superiority: what is shown to be
    better; review: what a person decides, who is told what non_inferiority says; always: everything, for
    experiments."""
    margin: float = Field(0.1, gt=0, lt=1)
    """A difference of success that matters: non_inferiority must not let such a loss pass,
    superiority must not miss such a gain."""
    type_i_error: float = Field(0.05, gt=0, lt=0.5)
    """Chance, at most, that a model is promoted which is worse by the margin (for superiority: not better)."""
    type_ii_error: float = Field(0.1, gt=0, lt=0.5)
    """Chance, at most, that an equal model is called worse (for superiority: one better by the margin, not better)."""
    tasks: int = Field(120, ge=1)
    """Fresh tasks played, at most. What is not decided after them is not promoted."""
    tasks_per_look: int = Field(20, ge=1)
    """Tasks played between two looks at the outcome."""
    review_timeout_s: float = Field(86_400.0, gt=0)
    """Seconds that a run waits for a person's decision."""
    on_timeout: Literal["keep", "fail"] = "keep"
    """What happens then. keep: the old model stays, the iteration ends, and `reviews` says that nobody decided; fail:
    the run fails, and goes on once it is decided (`flywheel review promotion`)."""


class VersioningSettings(SettingsBlock):
    """How iterations are recorded beside DVC. They are of the workspace: an edit applies at once, also to an iteration
    that was begun."""

    git: bool = False
    """Whether each iteration is committed and tagged in git. true in workspaces that `flywheel init` made."""
    remote: str = ""
    """Where what is recorded is copied to after each iteration: a folder, in one that is there, or a URL that DVC knows
    (s3://bucket/data). From there lost files come back, here and in clones. Empty: nowhere."""


_CRON_PATTERN = re.compile(r"@(hourly|daily|weekly|monthly)|(\S+ ){4}\S+")
_CRON_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))  # minute, hour, day, month, weekday


def _are_in_cron_ranges(fields: list[str]) -> bool:
    """Tell whether each number is in the range of its cron field; names and signs are left to Prefect."""
    ranges = zip(fields, _CRON_RANGES, strict=False)  # `@daily` is a single field
    numbers = ((n, low, high) for field, (low, high) in ranges for n in re.findall(r"(?<![\d/])\d+", field))
    return all(low <= int(number) <= high for number, low, high in numbers)


class OperationsSettings(SettingsBlock):
    """How a flywheel runs that nobody watches (`flywheel workspace up`): when, how often after a failure, until when,
    and who is told. They are of the workspace: an edit applies at once, also to an iteration that was begun."""

    schedule: str = ""
    """When an iteration begins, or goes on, as cron has it: "0 1 * * *" is each night at one. Empty: not by the clock.
    Two never run at once: the second is skipped."""
    ingest_schedule: str = ""
    """When recordings are taken in, as cron has it ("0 * * * *" is hourly): the next iteration begins with them and
    waits after the stage `ingest`. Nothing happens while there are fewer new ones than
    operations.trigger_min_recordings (where that is 0, than recording.sessions_per_iteration)."""
    checkup_schedule: str = ""
    """When the newest model plays fresh tasks, as cron has it ("0 5 * * 0" is each Sunday at five):
    `flywheel model eval`, without a person. One that has played them is not asked again."""
    checkup_tasks: int = Field(100, ge=1)
    """Fresh tasks that it plays. There may be fewer, where worlds have no more."""
    timezone: str = "UTC"
    """Of the schedules, such as Europe/Berlin."""
    trigger_min_recordings: int = Field(0, ge=0)
    """New recordings that are enough to take them in at once, without a schedule. 0: no number is."""
    trigger_min_demonstrations: int = Field(0, ge=0)
    """Demonstrations that an iteration which waits has taken in, enough to go on with it at once. 0: no number is."""
    restarts: int = Field(3, ge=0)
    """How often a run whose process died is begun again without a person, each time a little later. What was finished
    is not done again."""
    stage_timeout_s: float = Field(14_400.0, gt=0)
    """Seconds that a stage may take. One that takes longer is stopped, and its run fails; what was finished is kept."""
    halt_after_rejected: int = Field(3, ge=0)
    """Iterations in a row whose model was not promoted after which none is begun without a person. 0: no number is."""
    halt_after_empty: int = Field(2, ge=0)
    """Iterations in a row without a trajectory for SFT after which none is begun without a person. 0: no number is."""
    notify_command: str = ""
    """A command that is run, by the shell, where something happens that a person wants to know: an iteration is done,
    has failed or crashed, is stopped by a rule, or waits for a reviewer, or an edit of params.yaml is wrong. It gets it
    as JSON on its input and in the variables FLYWHEEL_EVENT and FLYWHEEL_TEXT. Empty: none."""
    notify_block: str = ""
    """A notification block of Prefect's that is told the same, as `slack-webhook/night`. Empty: none."""
    notify_url: str = ""
    """Where the same is sent: a web hook, http:// or https://, which gets it as JSON (Slack and Mattermost show its
    `text`), or smtp://HOST:PORT/ADDRESS, which gets it as mail (smtps:// for TLS from the start; USER:PASSWORD@ before
    the host where it asks for them). `$NAME` stands for an environment variable, so that no secret is kept here.
    Empty: none."""

    @field_validator("schedule", "ingest_schedule", "checkup_schedule")
    @classmethod
    def _cron(cls, value: str) -> str:
        if value and not (_CRON_PATTERN.fullmatch(value) and _are_in_cron_ranges(value.split())):
            raise ValueError(f'{value} is no cron schedule; "0 1 * * *" is each night at one')
        return value

    @field_validator("notify_url")
    @classmethod
    def _web_hook_or_mail(cls, value: str) -> str:
        if value and not re.match(r"\$|https?://[^/]|smtps?://.*[^/]/[^/@]+@[^/@]+$", value):
            raise ValueError(f"{value} is neither http(s)://... nor smtp://HOST:PORT/ADDRESS, nor begins with a $NAME")
        return value

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            zoneinfo.ZoneInfo(value)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"there is no time zone {value}; Europe/Berlin is one") from None
        return value


class ClusterSettings(SettingsBlock):
    """The machines on which the shards of stages are done. They share the folder of the workspace."""

    engine: Literal["local", "ray"] = "local"
    """Where shards are done. local: in this program, one after the other; ray: on the nodes of a Ray cluster, as
    many at once as there is room for. ray needs flywheel[ray]."""
    address: str = Field("", pattern=r"^((ray://)?[\w.-]+:\d+)?$")
    """The cluster's head: HOST:6379 from one of its nodes, ray://HOST:10001 from elsewhere. Empty: one is started on
    this machine for the run. For engine ray."""
    cpus: int = Field(1, ge=1, le=256)
    """Processor cores that a worker on a node takes. For engine ray."""
    training_nodes: int = Field(1, ge=1, le=64)
    """Nodes that the processes which train one model are shared out over (`ct.processes`, `sft.processes`,
    `rl.processes`), as evenly as may be. For engine ray."""
    max_parallel_stages: int = Field(1, ge=1, le=64)
    """Stages of one iteration that run at the same time, where none reads what another writes: ingest beside
    synthesize, the specialists of RL beside one another. From 2 on those that are beside others are processes of their
    own, which any worker of the workspace's pool begins."""
    acquire_timeout_s: float = Field(600.0, gt=0)
    """Seconds that a shard, or a stage beside others, waits for a worker while none is at work anywhere."""
    heartbeat_timeout_s: float = Field(120.0, gt=0)
    """Seconds without a sign of life after which a worker counts as lost, and another one does its shard. For engine
    ray."""

    @model_validator(mode="after")
    def _one_ray(self) -> ClusterSettings:
        if self.engine == "ray" and self.max_parallel_stages > 1 and not self.address:
            raise ValueError("max_parallel_stages above 1 needs a cluster that all stages reach: name its address")
        if self.training_nodes > 1 and not self.address:
            raise ValueError("training_nodes above 1 needs engine ray and a cluster of several nodes: name its address")
        return self


_RESERVED_DOMAINS = {"all", "general", "prev", "turns"}  # names that stand for something else where domains are listed


class Settings(SettingsBlock):
    """All parameters."""

    seed: int = Field(7, ge=0, lt=2**63)
    """The seed that every random choice follows from."""
    iterations: int = Field(2, ge=1)
    """Iterations that one `flywheel run` makes."""
    policy: PolicySettings = PolicySettings()
    sandbox: SandboxSettings = SandboxSettings()
    recording: RecordingSettings = RecordingSettings()
    curation: CurationSettings = CurationSettings()
    annotation: AnnotationSettings = AnnotationSettings()
    language_model: LanguageModelSettings = LanguageModelSettings()
    synthesis: SynthesisSettings = SynthesisSettings()
    rollout: RolloutSettings = RolloutSettings()
    routing: RoutingSettings = RoutingSettings()
    judge: JudgeSettings = JudgeSettings()
    orm: OrmSettings = OrmSettings()
    adapter: AdapterSettings = AdapterSettings()
    ct: CtSettings = CtSettings()
    sft: SftSettings = SftSettings()
    preference: PreferenceSettings = PreferenceSettings()
    rl: RlSettings = RlSettings()
    merge: MergeSettings = MergeSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    promotion: PromotionSettings = PromotionSettings()
    versioning: VersioningSettings = VersioningSettings()
    operations: OperationsSettings = OperationsSettings()
    cluster: ClusterSettings = ClusterSettings()

    @model_validator(mode="after")
    def _combinations(self) -> Settings:
        if not self.synthesis.domains:
            raise ValueError("synthesis.domains has no domain")
        if taken := _RESERVED_DOMAINS & set(self.synthesis.domains):
            raise ValueError(f"synthesis.domains: {min(taken)} has another meaning, so no domain can be called so")
        placed = [world for worlds in self.synthesis.domains.values() for world in worlds]
        if twice := {world for world in placed if placed.count(world) > 1}:
            raise ValueError(f"synthesis.domains has {min(twice)} twice: a world is of one domain")
        if self.policy.quantization != "none" and self.policy.backend == "openai":
            raise ValueError("policy.quantization is for backend transformers: the server has an option of its own")
        if self.policy.quantization != "none" and self.rl.steps:
            raise ValueError("policy.quantization: RL trains by the log-probabilities of unrounded weights, so set "
                             "rl.steps to 0, or quantization to none")  # fmt: skip
        if set(self.merge.weights) != set(self.synthesis.domains):
            raise ValueError("merge.weights must name the same domains as synthesis.domains")
        judged = set(self.routing.scorers) - {"default", *self.synthesis.domains}
        if judged:
            raise ValueError(f"routing.scorers names {sorted(judged)}, which synthesis.domains does not have")
        if self.recording.recognizer == "whisper" and not self.recording.whisper_model:
            raise ValueError("recording.recognizer is whisper, so recording.whisper_model must name a checkpoint")
        if self.recording.recognizer == "pocketsphinx" and self.recording.language != "en":
            raise ValueError("recording.language other than en goes with recording.recognizer whisper")
        if self.language_model.endpoint and not self.language_model.model:
            raise ValueError("language_model.endpoint is set, so language_model.model must name a model")
        if self.policy.summarizer == "language_model":
            if not self.language_model.endpoint:
                raise ValueError("policy.summarizer is language_model, so language_model.endpoint must name a server")
            if not self.policy.summary_max_chars:
                raise ValueError("policy.summarizer is language_model, so policy.summary_max_chars must be above 0")
        if self.cluster.address and self.cluster.engine != "ray":
            raise ValueError("cluster.address is set, so cluster.engine must be ray")
        if self.cluster.training_nodes > max(self.ct.processes, self.sft.processes, self.rl.processes):
            raise ValueError(
                f"cluster.training_nodes is {self.cluster.training_nodes}, so ct.processes, sft.processes or "
                "rl.processes must be as many or more"
            )
        if self.preference.weight and self.adapter.dropout:
            raise ValueError("preference.weight goes with adapter.dropout 0: the pairs are compared without dropout")
        if self.policy.backend == "openai" and not self.policy.endpoint:
            raise ValueError("policy.backend is openai, so policy.endpoint must name a server")
        spaces = COORDINATE_SPACES[self.policy.template]
        if self.policy.coordinate_format not in spaces:
            raise ValueError(
                f"policy.template {self.policy.template} goes with policy.coordinate_format {' or '.join(spaces)}, "
                f"not {self.policy.coordinate_format}"
            )
        for name in self.policy.unheld() if self.policy.guided_decoding == "always" else ():
            fit = " or ".join(str(one).lower() for one in GUIDED_DECODING_REQUIREMENTS[name])
            value = str(getattr(self.policy, name)).lower()
            raise ValueError(f"policy.guided_decoding always goes with policy.{name} {fit}, not {value}")
        if max(self.sandbox.width, self.sandbox.height) > self.policy.max_image_side:
            raise ValueError("sandbox.width and sandbox.height must not be above policy.max_image_side")
        if self.sandbox.pages_min > self.sandbox.pages:
            raise ValueError("sandbox.pages_min must not be above sandbox.pages")
        if self.sandbox.heartbeat_timeout_s < 2 * self.policy.timeout_s:
            raise ValueError(
                "sandbox.heartbeat_timeout_s must be twice policy.timeout_s or more: a session waits for its policy"
            )
        if self.policy.min_pixels > self.policy.max_pixels:
            raise ValueError("policy.min_pixels must not be above policy.max_pixels")
        if self.rl.deterministic and self.rl.max_staleness:
            raise ValueError("rl.deterministic goes with rl.max_staleness 0: a stream depends on what finishes first")
        if self.policy.sleeps_while_training and (self.policy.backend != "openai" or self.rl.max_staleness):
            raise ValueError(
                "policy.sleeps_while_training goes with policy.backend openai and rl.max_staleness 0: "
                "a server that sleeps answers no episode"
            )
        if self.rl.min_live_groups and self.rollout.n_rollouts < 2:
            raise ValueError(
                "rl.min_live_groups goes with rollout.n_rollouts 2 or more: one sample shows no live group"
            )
        if self.rl.length_buffer >= self.policy.max_new_tokens:
            raise ValueError("rl.length_buffer must be under policy.max_new_tokens")
        if self.policy.max_new_tokens >= self.policy.max_context_tokens:
            raise ValueError("policy.max_new_tokens must be under policy.max_context_tokens")
        return self
