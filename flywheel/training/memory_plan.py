"""Estimate the memory of training and of inference from a checkpoint's config.json and the settings, without torch.

Each formula describes what the code allocates: `policy/model.py` (loading), `training/modeling` (tensors kept for the
gradient), `training/distributed/engine.py` (gradients, AdamW, saved state), `policy/inference` (keys and values).
`flywheel bench plan` compares the estimates with measured peaks. Sizes are bytes unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from flywheel.config import AdapterSettings, PolicySettings, TrainingSettings
from flywheel.utils.errors import ModelError

Device = Literal["cpu", "cuda"]

MIB = 1 << 20
SINGLE, HALF = 4, 2  # bytes of a float32 and of a bfloat16 number
# Bytes of a number in NF4: 4 bits; a block of 64 numbers has a scale of one byte, 256 blocks have a float32 scale.
_NF4 = 0.5 + 1 / 64 + SINGLE / (64 * 256)
_LOGITS = 1 << 24  # logits that are in memory at once (`policy_forward.py`)
_WIDE = 1 << 24  # numbers of a weight that are widened to float32 at once (`monkey_patch.py`)
_SCREEN_CACHE = 256 * MIB  # `policy_forward.SCREEN_CACHE_BYTES`
_BLOCK = 64  # tokens that buffers of keys and values grow by (`inference/cache.py`)
SMALL = 100_000_000  # parameters below which a CPU makes passes in parallel (`policy/devices.py`)
PROCESS = {"cpu": 500 * MIB, "cuda": 600 * MIB}  # Python with its libraries; CUDA's context and libraries

# The library's defaults for fields that config.json may leave out.
_VISION = {
    "qwen2_vl": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4},
    "qwen2_5_vl": {"depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "out_hidden_size": 3584},
    "qwen3_vl": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 3584}
    | {"patch_size": 16, "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24]},
}
_VISION_ALIKE = {"num_heads": 16, "in_channels": 3, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2}


@dataclass(frozen=True)
class VisionShape:
    """Hold the sizes of a vision tower that determine its memory.

    width: of a patch's hidden state. inner: of the feed-forward part. out: width of an image token. patch: its side in
    pixels. merge: patches along a side of an image token. levels: of deepstack. pixels: values per patch. places:
    entries of the position embedding; 0: none. gated: whether the feed-forward part is gated, as in Qwen2.5-VL.
    layer_norm: whether its norms are LayerNorm, with a bias, and not RMSNorm.
    """

    depth: int
    width: int
    inner: int
    heads: int
    out: int
    patch: int
    merge: int
    levels: int
    pixels: int
    places: int
    gated: bool
    layer_norm: bool

    @property
    def linears(self) -> list[tuple[int, int]]:
        """Return (in, out) of each linear layer of a block."""
        fed = [(self.width, self.inner)] * (2 if self.gated else 1) + [(self.inner, self.width)]
        return [(self.width, 3 * self.width), (self.width, self.width), *fed]

    @property
    def merger(self) -> list[tuple[int, int]]:
        """Return (in, out) of each linear layer from patches to image tokens: of all mergers, deepstack's too."""
        joined = self.width * self.merge**2
        return [(joined, joined), (joined, self.out)] * (1 + self.levels)

    @property
    def parameters(self) -> int:
        """Count the parameters of the vision tower, mergers included."""
        norm = self.width * (2 if self.layer_norm else 1)
        block = sum(i * o + o for i, o in self.linears) + 2 * norm
        embed = self.pixels * self.width + self.places * self.width + (self.width if self.places else 0)
        joined = 2 * self.width * self.merge**2  # the norm of a deepstack merger, which is over merged patches
        return embed + self.depth * block + sum(i * o + o for i, o in self.merger) + norm + self.levels * joined


@dataclass(frozen=True)
class ModelShape:
    """Hold the sizes of a Qwen-VL model that determine its memory.

    width: of a token's hidden state. inner: of the feed-forward part. heads, key_heads: numbers of attention heads, of
    queries and of keys. head: width of one. vocabulary: tokens. tied: whether input and output embeddings are one
    table. biased: whether queries, keys and values have biases. normed_heads: whether queries and keys are normalised.
    """

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head: int
    vocabulary: int
    tied: bool
    biased: bool
    normed_heads: bool
    vision: VisionShape

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> ModelShape:
        """Read the sizes from the content of a config.json.

        The language model's fields may be in `text_config` or at the top level. Raises ModelError where a size is
        missing or invalid.
        """
        try:
            made = cls._read(config)
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            what = f"config.json does not tell how large the model is: {error}"
            raise ModelError(what, where="policy.base", fix="copy it again") from None
        for name, size in {**vars(made), **vars(made.vision)}.items():
            if not isinstance(size, VisionShape) and not (isinstance(size, int) and size >= 0):
                raise ModelError(f"config.json has no sound {name}", where="policy.base", fix="copy it again")
        return made

    @classmethod
    def _read(cls, config: Mapping[str, Any]) -> ModelShape:
        kind, text = config["model_type"], config.get("text_config") or config
        given = config.get("vision_config") or {}
        seen = _VISION_ALIKE | _VISION[kind] | given
        channels = given.get("in_channels", given.get("in_chans", seen["in_channels"]))
        patch, frames = (_side(seen[name]) for name in ("patch_size", "temporal_patch_size"))
        older, newer = kind == "qwen2_vl", kind == "qwen3_vl"
        width = seen["embed_dim"] if older else seen["hidden_size"]
        vision = VisionShape(
            depth=seen["depth"],
            width=width,
            inner=int(width * seen["mlp_ratio"]) if older else seen["intermediate_size"],
            heads=seen["num_heads"],
            out=seen["hidden_size"] if older else seen["out_hidden_size"],
            patch=patch,
            merge=seen["spatial_merge_size"],
            levels=len(seen["deepstack_visual_indexes"]) if newer else 0,
            pixels=channels * frames * patch**2,
            places=seen["num_position_embeddings"] if newer else 0,
            gated=kind == "qwen2_5_vl",
            layer_norm=kind != "qwen2_5_vl",
        )
        heads = text["num_attention_heads"]
        return cls(
            layers=text["num_hidden_layers"],
            width=text["hidden_size"],
            inner=text["intermediate_size"],
            heads=heads,
            key_heads=text.get("num_key_value_heads") or heads,
            head=text.get("head_dim") or (128 if newer else text["hidden_size"] // heads),
            vocabulary=text["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            biased=not newer or bool(text.get("attention_bias")),
            normed_heads=newer,
            vision=vision,
        )

    @property
    def queries(self) -> int:
        """Return the width of all heads' queries."""
        return self.heads * self.head

    @property
    def keys(self) -> int:
        """Return the width of all heads' keys, which is also that of the values."""
        return self.key_heads * self.head

    @property
    def linears(self) -> list[tuple[int, int]]:
        """Return (in, out) of each linear layer in a layer of the language model."""
        attention = [(self.width, self.queries), *[(self.width, self.keys)] * 2, (self.queries, self.width)]
        return [*attention, *[(self.width, self.inner)] * 2, (self.inner, self.width)]

    @property
    def embedding(self) -> int:
        """Count the parameters of the input embedding; the output embedding has as many, where it is a second table."""
        return self.vocabulary * self.width

    @property
    def language_parameters(self) -> int:
        """Count the parameters of the language model, embeddings included."""
        layer = sum(i * o for i, o in self.linears) + 2 * self.width
        layer += (self.queries + 2 * self.keys) * self.biased + 2 * self.head * self.normed_heads
        return self.embedding * (1 if self.tied else 2) + self.layers * layer + self.width

    @property
    def parameters(self) -> int:
        """Count the parameters of the whole model."""
        return self.language_parameters + self.vision.parameters

    @property
    def kv_numbers(self) -> int:
        """Count the numbers that make up one token's keys and values, over all layers."""
        return 2 * self.layers * self.keys

    def adapter_parameters(self, adapter: AdapterSettings) -> dict[str, int]:
        """Count the parameters of an adapter, by target of `adapter.targets`.

        adapter: block `adapter`, whose rank, dora and targets count.
        """
        of = {
            "language_model": self.linears * self.layers,
            "merger": self.vision.merger,
            "vision_tower": self.vision.linears * self.vision.depth,
        }
        return {
            target: sum(adapter.rank * (i + o) + (o if adapter.dora else 0) for i, o in of[target])
            for target in adapter.targets
        }

    def linear_parameters(self) -> int:
        """Count the weights of all linear layers but the output embedding.

        They are those that NF4 quantises, and that have bfloat16 copies under autocast.
        """
        every = [*self.linears * self.layers, *self.vision.linears * self.vision.depth, *self.vision.merger]
        return sum(i * o for i, o in every)


def _side(size: int | list[int]) -> int:
    return size[0] if isinstance(size, list) else size


@dataclass(frozen=True)
class Workload:
    """Hold the size of the largest micro-batch of a training.

    tokens, responses: its tokens, and those of responses. scores: its attention scores per head, padding included.
    screens: its screens, with `patches` patches each. samples: screens whose pixels are in memory together. seen:
    different screens of the whole training. passes: micro-batches per gradient step and process. beside: how many of
    them run in parallel.
    """

    tokens: int
    responses: int
    scores: int
    screens: int
    patches: int
    samples: int
    seen: int = 0
    passes: int = 1
    beside: int = 1


def largest_workload(
    model: ModelShape,
    chosen: TrainingSettings,
    *,
    tokens: int,
    responses: int,
    screens: int,
    patches: int,
    batch: int,
    samples: int = 0,
    seen: int = 0,
    beside: int = 1,
) -> Workload:
    """Compute the largest micro-batch of a training, for `plan_training`, as if all samples had the same length.

    model: whose vision tower merges patches. chosen: block `ct`, `sft` or `rl`. tokens: tokens of a sample, at least
    one. responses: tokens of its response. screens: screens of a sample, with `patches` patches each. batch: samples of
    a gradient step, at least one. samples: samples in memory at once; 0: those of `batch`. seen: different screens of
    the whole training. beside: passes that run in parallel.
    """
    mine = -(-batch // (chosen.processes * beside))
    if chosen.pack_tokens:
        packed = min(max(chosen.pack_tokens // tokens, 1), mine) * tokens
        # Shorter samples have more screens in the same number of tokens.
        shown = min(mine * screens, max(screens, packed * model.vision.merge**2 // max(1, patches)))
    else:
        packed, shown = min(mine, chosen.micro_batch) * tokens, min(mine, chosen.micro_batch) * screens
    together = packed // tokens
    return Workload(
        tokens=packed,
        responses=together * responses,
        scores=packed * tokens,
        screens=shown,
        patches=patches,
        samples=(samples or batch) * screens,
        seen=seen,
        passes=-(-batch // (chosen.processes * together)),
        beside=beside,
    )


@dataclass(frozen=True)
class TrainingMemory:
    """Hold the memory of a training process on its device, in bytes.

    process to temporary: the parts of a gradient step. step, loading, saving: peaks of a gradient step, of loading, and
    of saving the state; `peak` is the largest. resident: what stays there between gradient steps. host: the machine's
    memory, where the device is a GPU.
    """

    process: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    screens: int
    value_model: int
    temporary: int
    step: int
    loading: int
    saving: int
    resident: int
    host: int = 0

    @property
    def peak(self) -> int:
        """Return the largest of the peaks, in bytes."""
        return max(self.step, self.loading, self.saving)

    def row(self) -> dict[str, int]:
        """Return the fields by name, and `peak`, in bytes."""
        return {**asdict(self), "peak": self.peak}


def count_trained(model: ModelShape, chosen: TrainingSettings, adapter: AdapterSettings) -> tuple[int, int]:
    """Return how many parameters of `model` are trained, and how many an adapter has in memory (0 without one).

    chosen: block `ct`, `sft` or `rl`, whose freeze_vision counts. adapter: block `adapter`.
    """
    if adapter.method == "none":
        return model.parameters - (model.vision.parameters if chosen.freeze_vision else 0), 0
    parts = model.adapter_parameters(adapter)
    return parts.get("language_model", 0) if chosen.freeze_vision else sum(parts.values()), sum(parts.values())


def plan_training(
    model: ModelShape,
    work: Workload,
    chosen: TrainingSettings,
    adapter: AdapterSettings,
    device: Device,
    *,
    value_model: bool = False,
    held_to_form: bool = False,
    disk_bytes: int = 0,
) -> TrainingMemory:
    """Compute the memory of one training process on `device`, in bytes.

    work: its largest micro-batch. chosen: block `ct`, `sft` or `rl`. adapter: block `adapter`. value_model: whether RL
    trains a value model. held_to_form: whether guided decoding constrains the answers. disk_bytes: of the checkpoint's
    weights files, which loading maps into memory; 0: unknown.
    """
    whole, on_cpu = adapter.method == "none", device == "cpu"
    half = chosen.compute_dtype == "bfloat16" or (not whole and adapter.base_dtype == "nf4")
    trained, adapters = count_trained(model, chosen, adapter)
    loaded = weights = _base_bytes(model, adapter) + SINGLE * adapters
    gradients, optimizer = SINGLE * trained, (2 if chosen.optimizer == "adamw_8bit" else 2 * SINGLE) * trained
    moved = 0  # ZeRO's state that is offloaded to the machine's memory
    if chosen.engine == "deepspeed":
        optimizer = (optimizer + SINGLE * trained) // chosen.processes  # with ZeRO's own copy of the weights
        gradients *= 2  # with ZeRO's buffer
        if chosen.zero_stage > 1:
            gradients //= chosen.processes
        if chosen.zero_stage == 3:
            weights //= chosen.processes
        if chosen.zero_offload and not on_cpu:
            moved = optimizer + (weights if chosen.zero_stage == 3 else 0)
            optimizer, weights = 0, 0 if chosen.zero_stage == 3 else weights

    activations = _kept_for_gradient(model, work, chosen, adapter, device, half)
    if half and whole:  # autocast keeps bfloat16 copies of float32 weights until the gradient is computed
        activations += HALF * (model.linear_parameters() + model.embedding)
    rows = min(work.responses, max(1, _LOGITS // model.vocabulary))
    logits = (7 if held_to_form else 5) * SINGLE * rows * model.vocabulary
    screens = SINGLE * work.samples * work.patches * model.vision.pixels
    if not _tower_learns(chosen, adapter):
        features = SINGLE * work.seen * (work.patches // model.vision.merge**2) * model.vision.out
        features = min(_SCREEN_CACHE, features * (1 + model.vision.levels))
    else:
        features = 0
    value = 0
    if value_model:  # its weights, gradients and AdamW's moments
        value = 4 * SINGLE * (model.width * (model.width + 2) + 4 * model.width + 1)

    # The output embedding's gradient is separate until the input embedding's is added; each chunk of logits adds to it.
    table, widest = (SINGLE * n if whole else 0 for n in (model.embedding, max(i * o for i, o in model.linears)))
    heads = table * (2 if work.responses > rows else 1)
    wide = SINGLE * min(_WIDE, model.embedding) if loaded < SINGLE * model.parameters and not half else 0
    passing = work.beside * (activations + max(logits, _layer_temporary(model, work, half)) + heads + wide)
    if work.passes > 1:  # with one pass, its activations are freed by the time that all gradients exist
        passing += gradients * (work.beside + 1 if work.beside > 1 else 1) + widest
    stepping = gradients + table
    if on_cpu:  # AdamW's temporary square root and quotient, one parameter at a time
        stepping = gradients + 2 * max(table, widest)
    if chosen.engine == "torch" and chosen.processes > 1:  # the gradients are exchanged as one flat copy
        stepping = max(stepping, 2 * gradients)
    most = max(passing, stepping)
    fixed = PROCESS[device] + weights + optimizer + value + features + (screens if on_cpu else 0)
    own = SINGLE * (model.parameters if whole else adapters)  # copied into the saved state, like AdamW's moments
    return TrainingMemory(
        PROCESS[device],
        weights,
        gradients,
        optimizer,
        work.beside * activations,
        work.beside * logits,
        features + (screens if on_cpu else 0),
        value,
        max(0, most - gradients - work.beside * (activations + logits)),
        step=fixed + most,
        loading=PROCESS[device] + loaded + (_mapped(disk_bytes, loaded) if on_cpu else 0),
        saving=fixed + optimizer + (own if on_cpu else 0),
        resident=fixed,
        # The weights leave this memory for the GPU before screens are read.
        host=0 if on_cpu else PROCESS["cpu"] + max(loaded + disk_bytes, moved + own + screens),
    )


def _tower_learns(chosen: TrainingSettings, adapter: AdapterSettings) -> bool:
    adapted = adapter.method == "none" or bool({"merger", "vision_tower"} & set(adapter.targets))
    return adapted and not chosen.freeze_vision


def _mapped(disk_bytes: int, weights: int) -> int:
    """Return the bytes of mapped files in addition to the weights: 0 where the weights keep the files' dtype."""
    return disk_bytes if abs(disk_bytes - weights) > weights / 10 else 0


def _base_bytes(model: ModelShape, adapter: AdapterSettings) -> int:
    if adapter.method == "none" or adapter.base_dtype == "float32":
        return SINGLE * model.parameters
    if adapter.base_dtype == "bfloat16":
        return HALF * model.parameters
    four = model.linear_parameters()
    return int(_NF4 * four) + HALF * (model.parameters - four)


def _kept_for_gradient(
    model: ModelShape, work: Workload, chosen: TrainingSettings, adapter: AdapterSettings, device: Device, half: bool
) -> int:
    """Return the bytes that a pass over the micro-batch keeps for its gradient, without the logits."""
    whole = adapter.method == "none"
    fused = device == "cuda" or not chosen.pack_tokens
    lean = not half and device == "cpu" and _has_lean_mlp(chosen, adapter)
    layer = work.tokens * _layer_token_bytes(model, adapter, half, fused=fused, lean=lean)
    if device == "cpu" and chosen.pack_tokens:
        layer += SINGLE * model.heads * work.scores
    if chosen.gradient_checkpointing:
        saved = -(-model.layers // chosen.checkpoint_every_n_layers)  # layers that keep their input alone
        kept = saved * work.tokens * model.width * (HALF if half and not whole else SINGLE)
        kept += (model.layers - saved + 1) * layer
    else:
        # The last layer is computed for the responses only; of the other tokens it needs keys and values.
        last = (work.responses + 0.25 * (work.tokens - work.responses)) / work.tokens if chosen.pack_tokens else 1
        kept = int((model.layers - 1 + last) * layer)
    if _tower_learns(chosen, adapter):
        seen, size = model.vision, HALF if half else SINGLE
        block = work.screens * work.patches * _block_patch_bytes(seen, size)
        if device == "cpu" and chosen.pack_tokens and not seen.gated:  # attention over Qwen3-VL's screens keeps scores
            block += SINGLE * seen.heads * work.screens * work.patches**2
        blocks = seen.depth
        if chosen.gradient_checkpointing:
            blocks += 1 - -(-seen.depth // chosen.checkpoint_every_n_layers)
        kept += blocks * block + (work.screens * work.patches * seen.width * size * (seen.depth - blocks))
        kept += work.screens * work.patches * 4 * seen.width * size * (1 + seen.levels)  # the mergers
    return kept


def _has_lean_mlp(chosen: TrainingSettings, adapter: AdapterSettings) -> bool:
    """Return whether the language model's MLPs are computed by `monkey_patch.LoraMlp`, in float32 on a CPU."""
    plain = adapter.method == "lora" and not adapter.dora and not adapter.dropout and chosen.engine == "torch"
    return plain and "language_model" in adapter.targets


def _layer_token_bytes(model: ModelShape, adapter: AdapterSettings, half: bool, *, fused: bool, lean: bool) -> int:
    """Return the bytes that a layer of the language model keeps for each token.

    half: whether products are bfloat16. fused: whether attention is torch's fused kernel, which keeps its result and a
    copy of keys and values for each query head. lean: whether the MLP keeps two of its four wide tensors.
    """
    whole, size = adapter.method == "none", HALF if half else SINGLE
    width, inner, asked, held = model.width, model.inner, model.queries, model.keys
    norms = SINGLE * 2 * width
    # Inputs of the linear layers: in float32 layers share one tensor, in bfloat16 each has a copy.
    inputs = HALF * (5 * width + asked + inner) if half else SINGLE * (2 * width + asked + inner)
    heads = (SINGLE if half and whole else size) * (asked + held) + size * held
    if model.normed_heads:
        heads += SINGLE * (asked + held) + (HALF * (asked + held) if half and whole else 0)
    if fused:
        heads += size * (asked + 2 * (asked - held))
    fed = size * 3 * inner  # gate, its activation, and the up projection
    low = 0 if whole else size * 7 * adapter.rank
    return norms + inputs + heads + fed + low - (SINGLE * 2 * inner if lean else 0)


def _block_patch_bytes(vision: VisionShape, size: int) -> int:
    """Return the bytes that a trained block of the vision tower keeps for each patch. size: bytes of a number."""
    norms = SINGLE * (2 if vision.layer_norm else 4) * vision.width + 2 * size * vision.width
    attention = size * 7 * vision.width
    return norms + attention + size * (4 if vision.gated else 2) * vision.inner


def _layer_temporary(model: ModelShape, work: Workload, half: bool) -> int:
    """Return the temporary bytes of a layer's backward pass."""
    return (HALF if half else SINGLE) * work.tokens * (3 * model.inner + 2 * model.width)


@dataclass(frozen=True)
class AnsweringMemory:
    """Hold the memory of a policy in inference, on its device, in bytes.

    kv_token: keys and values of one token. cache: those of all rows. kept: caches of prompt prefixes and screen
    features. loading: the peak while weights are loaded.
    """

    process: int
    weights: int
    kv_token: int
    cache: int
    kept: int
    temporary: int
    loading: int

    @property
    def peak(self) -> int:
        """Return the most memory that is in use at once, in bytes."""
        return max(self.process + self.weights + self.cache + self.kept + self.temporary, self.loading)

    def row(self) -> dict[str, int]:
        """Return the fields by name, and `peak`, in bytes."""
        return {**asdict(self), "peak": self.peak}


_PREFILL = 8192  # tokens of prompts in one pass (`inference/engine.py`)


def plan_answering(
    model: ModelShape, policy: PolicySettings, device: Device, disk_bytes: int = 0, *, swaps: bool = False
) -> AnsweringMemory:
    """Compute the memory of a policy that answers policy.max_num_seqs requests together, in bytes.

    Prompts and answers are of the greatest length. model: the policy's. policy: block `policy`. device: where it runs.
    disk_bytes: of the checkpoint's weights files, which loading maps into memory; 0: unknown. swaps: whether new
    weights are loaded while the old ones are in memory, as in RL.
    """
    size = HALF if policy.dtype == "bfloat16" else SINGLE
    weights, token = size * model.parameters, size * model.kv_numbers
    if device == "cpu" and size == SINGLE and model.parameters >= SMALL:
        weights += HALF * model.embedding  # the output layer once more (`inference/output_layer.py`)
    length = -(-(policy.max_context_tokens + policy.max_new_tokens) // _BLOCK) * _BLOCK
    rows = 1 << (policy.max_num_seqs - 1).bit_length()
    cache = rows * length * token
    together = min(rows, max(1, _PREFILL // policy.max_context_tokens)) * policy.max_context_tokens
    prefill = together * (token + size * (3 * model.inner + 4 * model.width))
    growing = cache // 2  # the old buffers, while they are copied to larger ones
    loading = PROCESS[device] + weights + (weights + cache if swaps else 0)
    if device == "cpu":
        loading += _mapped(disk_bytes, weights)
    return AnsweringMemory(
        PROCESS[device], weights, token, cache, (3 * policy.cache_mb * MIB) // 4, max(prefill, growing), loading
    )


# A vLLM server, by the code of vLLM 0.33: level 1 of its sleep mode unmaps weights, keys and values, adapter slots and
# CUDA graphs, and copies all but keys and values to the machine's memory. CUDA's context and what is allocated outside
# of its pools stay. The next two sizes and `_SERVER_HOST` are allowances, which were not measured here.
_ASLEEP = 1536 * MIB
_GRAPHS = 1024 * MIB  # CUDA graphs, and the sampler's buffers
_SERVER_HOST = 2 * PROCESS["cpu"] + (4096 * MIB)  # two processes, and pictures as encoded (`--mm-processor-cache-gb`)


@dataclass(frozen=True)
class ServerMemory:
    """Hold the memory of a vLLM server that computes in bfloat16, in bytes.

    adapter: its slot for one (`--max-loras 1`). working: the largest pass over prompts and screens, and graphs. kv_row:
    keys and values of a request at its longest. asleep: what stays on the GPU in sleep mode. host: the machine's memory
    meanwhile.
    """

    weights: int
    adapter: int
    working: int
    kv_row: int
    asleep: int
    host: int

    @property
    def least(self) -> int:
        """Return the GPU memory, in bytes, with which it answers one request at a time."""
        return self.asleep + self.weights + self.adapter + self.working + self.kv_row


def plan_server(
    model: ModelShape, policy: PolicySettings, adapter: AdapterSettings, largest_screen: int
) -> ServerMemory:
    """Compute the memory of a vLLM server that answers with a model of the shape `model`, in bytes.

    policy: block `policy`. adapter: block `adapter`; its rank is the server's `--max-lora-rank`. largest_screen: area
    in pixels of the largest picture that the checkpoint takes, with which vLLM measures itself at its start.
    """
    seen, weights = model.vision, HALF * model.parameters
    slot = HALF * sum(model.adapter_parameters(adapter).values()) if adapter.method != "none" else 0
    working = HALF * _PREFILL * (3 * model.inner + 4 * model.width)
    working += HALF * (largest_screen // seen.patch**2) * (2 * seen.inner + 7 * seen.width)
    row = HALF * model.kv_numbers * (policy.max_context_tokens + policy.max_new_tokens)
    host = weights + slot + _GRAPHS + _SERVER_HOST
    return ServerMemory(weights, slot, working + _GRAPHS, row, _ASLEEP, host)
