"""A small tokenizer with a chat template, for models that are trained here from nothing.

Byte-level, so that every text can be written and read back; single digits, so that numbers are copied digit
by digit; trained on a task's own texts, so that its phrases are short. The template has the shape of Qwen3's
thinking models: ChatML, an opened <think>, calls in <tool_call>, results in <tool_response>, and no thinking
of answers to earlier questions.
"""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PADDING, END_OF_TEXT, START, END = "<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHAT_TEMPLATE = """\
{%- set spot = namespace(question=-1) %}
{%- for message in messages %}
  {%- if message.role == "user" %}{%- set spot.question = loop.index0 %}{%- endif %}
{%- endfor %}
{%- if tools %}
  {{- "<|im_start|>system\\nTools:" }}
  {%- for tool in tools %}{{- " " ~ tool.function.name }}{%- endfor %}
  {{- "<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
  {%- if message.role == "tool" %}
    {%- if loop.first or loop.previtem.role != "tool" %}{{- "<|im_start|>user" }}{%- endif %}
    {{- "\\n<tool_response>\\n" ~ message.content ~ "\\n</tool_response>" }}
    {%- if loop.last or loop.nextitem.role != "tool" %}{{- "<|im_end|>\\n" }}{%- endif %}
  {%- else %}
    {{- "<|im_start|>" ~ message.role ~ "\\n" }}
    {%- if message.role == "assistant" and loop.index0 > spot.question %}
      {{- "<think>\\n" ~ (message.reasoning_content or "") ~ "\\n</think>\\n\\n" }}
    {%- endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
      {{- "\\n" if message.content or not loop.first }}
      {{- "<tool_call>\\n" ~ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}
      {{- "\\n</tool_call>" }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- "<|im_start|>assistant\\n<think>\\n" }}
{%- endif %}
"""


def small_tokenizer(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most `vocabulary_size` tokens on `texts`; id 0 is padding.

    Raises ValueError where the size leaves no room for the 256 bytes and the special tokens.
    """
    special = [PADDING, END_OF_TEXT, START, END, *MARKS]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocabulary_size < len(special) + len(alphabet):
        raise ValueError(
            f"vocabulary_size: {vocabulary_size} is below {len(special) + len(alphabet)}, the bytes and the "
            "special tokens; raise it"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=special,
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PADDING,
        eos_token=END,
        additional_special_tokens=[END_OF_TEXT, START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
