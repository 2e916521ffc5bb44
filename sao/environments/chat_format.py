"""Conversations as token ids: prompt, tool results and actions in a model's own chat template.

A trajectory is never rendered twice. The prompt is rendered once; what follows a sampled action is the tail
that the template writes after an assistant message, tokenised on its own and appended. So the tokens of a
turn are always a prefix of those of the next, also with templates that strip earlier thinking from a history
that they are given as messages.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sao.environments.tool_calls import Action, read_action

Message = dict[str, Any]
"""A chat message as templates take it: role, content, and reasoning_content and tool_calls where needed."""

PYTHON_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Runs Python code and returns what it prints. Variables live on between calls.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "the code to run"}},
            "required": ["code"],
        },
    },
}

END_OF_TEXT = (
    "<|endoftext|>"  # models of the Qwen and GPT families end with it where they do not end the turn
)
RESULT = 'a "b"\n  <c> & \\d'  # of a tool, with what templates that write JSON or HTML would change
QUESTION, ANCHOR = "QUESTION", "ANCHOR"  # contents of the probes that show how a template writes turns


class ChatFormatError(ValueError):
    """The tokenizer or its chat template cannot carry the conversation; the message says what it lacks."""


class ChatFormat:
    """Renders and reads turns with the tokenizer of a model (a transformers tokenizer).

    `tools` are the schemas that the prompt lists, PYTHON_TOOL or none. `end_of_turn` is the token that closes
    an assistant message; sampling stops at any of `stop_ids`. `opens_thinking` says that the prompt itself
    opens the thinking, so that an action starts inside it.

    Raises ChatFormatError for a tokenizer without a chat template, or whose template cannot do this.
    """

    def __init__(self, tokenizer: Any, tools: Sequence[dict[str, Any]] = ()) -> None:
        self.tokenizer, self.tools = tokenizer, list(tools)
        if not tokenizer.chat_template:
            raise ChatFormatError(
                f"{self._name}: the tokenizer has no chat template; use a chat model, or add a "
                "chat_template.jinja to its folder"
            )
        added = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        self._added_tokens = re.compile("|".join(map(re.escape, added)) or r"(?!)")
        probe: list[Message] = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": ANCHOR},
        ]
        self._probe = probe
        closing = self._encode(self._after_anchor(self._render(probe)))
        if not closing or closing[0] not in tokenizer.get_added_vocab().values():
            raise ChatFormatError(f"{self._name}: its chat template closes no assistant message with a token")
        self.end_of_turn = int(closing[0])
        self._end_text = tokenizer.decode([self.end_of_turn])
        others = [tokenizer.eos_token_id, tokenizer.get_added_vocab().get(END_OF_TEXT)]
        stops = [self.end_of_turn, *(token for token in others if token is not None)]
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(stops))
        self._opening = self._render(probe[:1], generation=True)
        self.opens_thinking = self._opening.rstrip().endswith("<think>")
        if self.tools:
            self._check_observations()

    def _check_observations(self) -> None:
        """Raise ChatFormatError where a tool result's tokens depend on the tokens before it."""
        alone = self.observation_ids([RESULT])
        if self._encode(f"{ANCHOR}{self._end_text}{self.tokenizer.decode(alone)}")[-len(alone) :] != alone:
            raise ChatFormatError(f"{self._name}: tool results get other tokens behind an action than alone")

    @property
    def _name(self) -> str:
        return str(self.tokenizer.name_or_path or "tokenizer")

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the messages and the opening of the assistant's turn."""
        return self._encode(self._render(messages, generation=True))

    def observation_ids(self, results: Sequence[str]) -> list[int]:
        """Token ids between an action that ended its turn and the next action: the results of its tool calls.

        A result cannot forge a turn: it is made `harmless`.
        """
        tools = [{"role": "tool", "name": "python", "content": self.harmless(result)} for result in results]
        tail = self._following(tools)
        if not all(tool["content"].strip() in tail for tool in tools):
            raise ChatFormatError(f"{self._name}: its chat template does not write tool results as they are")
        return self._encode(tail)

    def following_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids between an action that ended its turn and the next action: any messages but the model's.

        Contents should be `harmless`. A template may write less of them than they hold.
        """
        return self._encode(self._following(messages))

    def _following(self, messages: Sequence[Message]) -> str:
        tail = self._after_anchor(self._render([*self._probe, *messages], generation=True))
        if not tail.startswith(self._end_text):
            raise ChatFormatError(f"{self._name}: its chat template does not write tool results as they are")
        return tail.removeprefix(self._end_text)

    def action_ids(self, message: Message) -> list[int]:
        """Token ids of an assistant message as the template writes it, its end of turn included.

        Raises ChatFormatError where the template opens the turn in another way than before sampling.
        """
        text = self._render([*self._probe[:1], message])
        if not text.startswith(self._opening):
            raise ChatFormatError(
                f"{self._name}: its chat template does not write this assistant message behind its own "
                "opening; a template that opens the thinking needs reasoning_content"
            )
        action, end, _ = text.removeprefix(self._opening).rpartition(self._end_text)
        return self._encode(action + end)

    def training_example(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Token ids of a whole conversation and a mask that is true on the assistant's tokens.

        Built turn by turn, as it would be sampled, so that thinking stays in every turn. Raises
        ChatFormatError for messages in an order that no attempt has.
        """
        opening = [message["role"] in ("system", "user") for message in messages].index(False)
        token_ids = self.prompt_ids(messages[:opening])
        action_mask = [False] * len(token_ids)
        for role, together in groupby(messages[opening:], key=lambda message: message["role"]):
            said = list(together)
            if role == "tool":
                ids = self.observation_ids([message["content"] for message in said])
            elif role == "assistant" and len(said) == 1:
                ids = self.action_ids(said[0])
            else:
                raise ChatFormatError(f"a conversation holds {len(said)} messages of {role!r} in a row")
            token_ids += ids
            action_mask += [role == "assistant"] * len(ids)
        return token_ids, action_mask

    def read(self, action_ids: Sequence[int]) -> Action:
        """What an action says, from its tokens."""
        ended = bool(action_ids) and action_ids[-1] in self.stop_ids
        turn_ended = ended and action_ids[-1] == self.end_of_turn
        text = self.tokenizer.decode(
            list(action_ids[:-1] if ended else action_ids),
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        return read_action(text, self.opens_thinking, ended=ended, may_call=turn_ended and bool(self.tools))

    def harmless(self, result: str) -> str:
        """The text with a space behind the first character of all that spells a special token."""
        encodable = result.encode(errors="replace").decode()  # half a surrogate pair is no text
        return self._added_tokens.sub(lambda match: f"{match[0][0]} {match[0][1:]}", encodable)

    def _render(self, messages: Sequence[Message], generation: bool = False) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                tools=self.tools or None,
                tokenize=False,
                add_generation_prompt=generation,
            )
        except Exception as error:  # jinja2 and the template's own raise_exception
            raise ChatFormatError(f"{self._name}: its chat template fails: {error}") from error

    def _after_anchor(self, text: str) -> str:
        before, anchor, after = text.partition(ANCHOR)
        if not anchor or QUESTION not in before:
            raise ChatFormatError(f"{self._name}: its chat template does not write messages as they are")
        return after

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)
