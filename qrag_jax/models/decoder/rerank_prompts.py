"""The prompt of a reranker: tokens around a passage and a question. Imports no JAX.

Texts of documents and questions never pass through a chat template, and are never read as special tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qrag_jax.chunking.text.spans import readable
from qrag_jax.models.chat.render import render_chat
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.types import InputError, Message, UsageError

ScoreKind = Literal["likelihood", "yesno"]

# The mean log-probability has this weight when it is added to the score of hybrid search. It gave the best nDCG@10 on
# 108 questions, for a model of 0.5 and for one of 1.5 billion parameters (benchmarks/search/results/fresh_questions).
LIKELIHOOD_WEIGHT = 0.1

_TASK = "You read a text and write a question that the text answers."
_HOLE = "PASSAGE7RERANK"  # a word that no chat template writes
_USER = ("Text:\n", "\n\nWrite one question that this text answers.")
# For models without a chat template, and for servers that continue plain text.
PLAIN = (f"{_TASK}\n\nText:\n", "\n\nA question that this text answers:\n")

# The format that Qwen3-Reranker was trained with (its model card, and its template for sentence-transformers).
_JUDGE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>:",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)


@dataclass(frozen=True)
class RerankPrompt:
    """The tokens of a prompt that are the same for all passages and questions.

    Attributes:
        shared: the beginning of every prompt.
        after: what follows the passage.
        answers: ids of "yes" and "no"; None if the question itself is scored.
    """

    shared: tuple[int, ...]
    after: tuple[int, ...]
    answers: tuple[int, int] | None = None

    @classmethod
    def of(cls, kind: ScoreKind, tokenizer: DecoderTokenizer) -> "RerankPrompt":
        """The prompt of a kind of scores, for a model.

        Raises:
            UsageError: `yesno` for a model without the marks of ChatML.
            InputError: the chat template does not repeat the text of a message exactly once.
        """
        return _judging(tokenizer) if kind == "yesno" else _asking(tokenizer)

    def rows(
        self, tokenizer: DecoderTokenizer, question: str, passages: Sequence[str], window: int
    ) -> tuple[list[list[int]], list[int], int]:
        """The tokens after `shared` of every passage, those of the question to score, and how many passages were cut.

        Likelihood: passage, `after`, question. Yes or no: question, passage, `after`; the question is not scored.

        Args:
            window: most tokens of a whole prompt. A passage that is too long loses its end.

        Raises:
            InputError: the question leaves no room for a passage.
        """
        question, plain = readable(question), [readable(passage) for passage in passages]
        if self.answers is None:
            asked = tokenizer.encode(question, special=False)
            first, end, bodies = 0, [*self.after, *asked], [tokenizer.encode(text, special=False) for text in plain]
        else:
            # Question and passage are one text for the tokenizer, as in training.
            head = f" {question}\n<Document>:"
            asked, end = [], list(self.after)
            first = len(tokenizer.encode(head, special=False))
            bodies = [tokenizer.encode(f"{head} {text}", special=False) for text in plain]
        room = window - len(self.shared) - len(end)
        if room <= first:
            raise InputError(
                f"question: with the prompt it leaves no room for a passage in the {window:,} tokens that the reranker "
                "reads; ask a shorter question",
                field="question",
                value=question,
            )
        return [[*body[:room], *end] for body in bodies], asked, sum(len(body) > room for body in bodies)


def _asking(tokenizer: DecoderTokenizer) -> RerankPrompt:
    if tokenizer.chat_template is None:
        opening = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        before, after = (tokenizer.encode(text, special=False) for text in PLAIN)
        return RerankPrompt((*opening, *before), tuple(after))
    text = render_chat(
        tokenizer.chat_template,
        (Message("system", _TASK), Message("user", _HOLE.join(_USER))),
        tokenizer.special_tokens,
        other_tokens=tokenizer.other_tokens,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
    )
    parts = text.split(_HOLE)
    if len(parts) != 2:
        raise InputError("the model's chat template does not repeat a text exactly once, so no passage can be scored")
    before, after = (tokenizer.encode(part, special=True) for part in parts)
    return RerankPrompt(tuple(before), tuple(after))


def _judging(tokenizer: DecoderTokenizer) -> RerankPrompt:
    if "<|im_start|>" not in tokenizer.special_tokens:
        raise UsageError("yesno: this model does not read the format of Qwen3-Reranker (ChatML); choose likelihood")
    system, instruct, after = _JUDGE
    shared = [*tokenizer.encode(system, special=True), *tokenizer.encode(instruct, special=False)]
    yes, no = (tokenizer.encode(word, special=False)[0] for word in ("yes", "no"))
    return RerankPrompt(tuple(shared), tuple(tokenizer.encode(after, special=True)), (yes, no))
