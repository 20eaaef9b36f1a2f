"""A small byte-level BPE tokeniser in the manner of Qwen's, for the embedded model.

About 2,000 entries: every digit is one token (a point is then two digits an axis), the words of the general
screens are one token each, and the fixed pieces of the action grammar are one token each, so that a step takes
about 16 tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 2048
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
GRAMMAR = (
    "Thought: ",
    "\nAction: ",
    "click(point='<point>",
    "left_double(point='<point>",
    "right_single(point='<point>",
    "drag(start_point='<point>",
    "</point>', end_point='<point>",
    "scroll(point='<point>",
    "</point>', direction='",
    "</point>')",
    "hotkey(key='",
    "press(key='",
    "release(key='",
    "type(content='",
    "finished(content='",
    "finished()",
    "call_user()",
    "wait()",
    "navigate(content='",
    "navigate_back()",
    "')",
    "\\n')",
)

# Qwen's chat form without its default system message; images stand where the message has them.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train on `texts`; the same texts give the same tokeniser. Special tokens have the first ids, in order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(GRAMMAR),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, "user\n", "assistant\n"] * 2, trainer)
    tokenizer.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in GRAMMAR])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[token for token in SPECIAL if token not in ("<|im_end|>", "<|endoftext|>")],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
