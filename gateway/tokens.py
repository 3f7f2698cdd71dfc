"""Counts the prompt tokens of requests as the model's engine would, without an engine.

Without the model's tokenizer on this machine it estimates, and says so. Knows neither HTTP nor
storage.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import structlog
from tokenizers import Tokenizer

from gateway.chat_template import TEMPLATE_ERRORS, ChatTemplates, load_templates
from gateway.conversation import conversation, texts_of
from gateway.engine_tokenizer import EngineTokenizer, engine_tokenizer, is_own_mode
from gateway.model_files import ModelFiles, max_model_len
from shared.catalog import Model
from shared.input.request_lines import mended
from shared.openai.endpoints import ENDPOINTS, Endpoint
from shared.openai.image_rules import ImageRule
from shared.openai.media_tokens import may_have_media, media_prediction
from shared.openai.torn_texts import is_torn

log = structlog.get_logger()

T = TypeVar("T")

#: Loading a tokenizer takes seconds.
_loading = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

Method = Literal["tokenizer", "tokenizer_without_template", "bytes"]

#: What is asked for the tokenizer of a source and its revision.
_Load = Callable[[str, str | None], EngineTokenizer | None]

#: Bytes of JSON that stand for about one token.
_BYTES_PER_TOKEN = 4
#: Only the first characters of a longer prompt are tokenized.
_MAX_CHARACTERS = 200_000
#: Files of which transformers makes a tokenizer; a model that has none of them here is not asked.
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


class Counted(NamedTuple):
    """Prompt tokens of a request: the total, and the fewest that its longest prompt can have.

    If `is_exact`, the engine will count the same. Otherwise `total` is an estimate.
    """

    total: int
    at_least: int
    is_exact: bool


class Counter:
    """Counts for one model. `load_counter` makes it, and threads may share it."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        templates: ChatTemplates | None,
        *,
        max_model_len: int | None,
        lowers: bool = False,
        defaults: Mapping[str, Any] | None = None,
        images: ImageRule | None = None,
    ) -> None:
        """`lowers` says that texts of pooling are lowered first; `defaults` are for templates.

        `images` is the rule of the model's images, if it is known.
        """
        self._tokenizer = tokenizer
        self._templates = templates
        self._lowers = lowers
        self._defaults = defaults or {}
        self._images = images
        self.max_model_len = max_model_len
        #: Tokens that a template adds to a short conversation; 0 without one.
        self.overhead = 0
        if tokenizer is not None and templates is not None:
            messages = [{"role": "user", "content": ""}]
            chat = next(one for one in ENDPOINTS.values() if one.prompt == "messages")
            self.overhead = self._count_body(chat, {chat.content: messages}).total

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    def method(self, endpoint: str) -> Method:
        """How requests of this endpoint are counted."""
        if self._tokenizer is None:
            return "bytes"
        if self._templates is None and ENDPOINTS[endpoint].prompt in ("messages", "items"):
            return "tokenizer_without_template"
        return "tokenizer"

    def count(self, endpoint: str, line: bytes) -> Counted:
        """The prompt tokens of a request line that has passed the line check."""
        if self._tokenizer is None:
            guess = len(line) // _BYTES_PER_TOKEN
            return Counted(guess, 0, is_exact=False)
        try:
            body: dict[str, Any] = msgspec.json.decode(line)["body"]
        except msgspec.DecodeError:
            body = msgspec.json.decode(mended(line))["body"]
        counted = self._count_body(ENDPOINTS[endpoint], body)
        if may_have_media(line) and (media := media_prediction(body, self._images)[1]):
            # Of a picture the engine may make fewer.
            return Counted(counted.total + media, counted.at_least, is_exact=False)
        return counted

    def _count_body(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Counted:
        has_texts = endpoint.prompt == "texts" and body.get(endpoint.content) is not None
        if has_texts:
            special = body.get("add_special_tokens", True) is not False
            lowers = self._lowers and not endpoint.has_output
            prompts = body.get(endpoint.content)
            found = self._count_prompts(prompts, special=special, lowers=lowers)
            is_whole = "prompt_embeds" not in body
        elif endpoint.prompt == "pairs":
            # How the two sides of a pair are put together is the model's own.
            found, is_whole = self._count_pairs(endpoint, body), False
        elif endpoint.prompt == "sound":
            found, is_whole = self._count_prompts(body.get("prompt")), False
        else:
            text, is_whole = self._conversation(endpoint, body)
            found = [self._count_text(text, special=body.get("add_special_tokens") is True)]
        total = sum(count for count, _ in found)
        is_exact = is_whole and all(count == minimum for count, minimum in found)
        if (limit := body.get("truncate_prompt_tokens")) is not None:
            # The engine shortens the prompt itself, so it fits however long it is.
            if type(limit) is not int or limit < 0:
                # To what the context has room for, which depends on the answer's limit.
                return Counted(total, 0, is_exact=False)
            return Counted(sum(min(count, limit) for count, _ in found), 0, is_exact=is_exact)
        return Counted(total, max((minimum for _, minimum in found), default=0), is_exact=is_exact)

    def _count_prompts(
        self, prompt: object, *, special: bool = True, lowers: bool = False
    ) -> list[tuple[int, int]]:
        """The tokens of each prompt of a completion or embedding, in any of its forms."""
        match prompt:
            case str():
                text = prompt.lower() if lowers else prompt
                return [self._count_text(text, special=special)]
            case [int(), *_]:
                return [(len(prompt), len(prompt))]
            case list():
                left, found = _MAX_CHARACTERS, []
                for one in prompt:
                    if isinstance(one, str) and left > 0:
                        text = one.lower() if lowers else one
                        found.append(self._count_text(text, special=special))
                        left -= len(one)
                    elif isinstance(one, str):
                        # In a row with many long prompts, the last ones are not worth the time.
                        found.append((1 + len(one) // _BYTES_PER_TOKEN, 0))
                    elif isinstance(one, list):
                        found.append((len(one), len(one)))
                return found
            case _:
                return []

    def _count_pairs(self, endpoint: Endpoint, body: Mapping[str, Any]) -> list[tuple[int, int]]:
        """The tokens of each pair, by the texts of its sides."""
        form = next((form for form in endpoint.forms if set(form) <= body.keys()), ())
        sides = [self._count_prompts(_texts_of(body[name])) for name in form]
        pairs = max(map(len, sides), default=0)
        # A side of one text is in each pair.
        whole = [side * pairs if len(side) == 1 else side for side in sides]
        return [(sum(total for total, _ in pair), 0) for pair in zip(*whole, strict=False)]

    def _count_text(self, text: str, *, special: bool) -> tuple[int, int]:
        """The text's tokens, and the fewest that they can be."""
        assert self._tokenizer is not None  # noqa: S101  # only asked when there is one
        head = text[:_MAX_CHARACTERS]
        # As a batch, because only that releases the lock that other threads need.
        [encoding] = self._tokenizer.encode_batch_fast([head], add_special_tokens=special)
        count = len(encoding)
        return (count, count) if head == text else (count * len(text) // len(head), count)

    def _conversation(self, endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[str, bool]:
        """The prompt as the engine sees it, and whether it has everything that counts."""
        if self._templates is not None:
            template = self._templates.with_tools if body.get("tools") else self._templates.usual
            found = conversation(
                endpoint,
                body,
                as_parts=template.reads_parts,
                knows_developer=template.knows_developer,
                defaults=self._defaults,
            )
            try:
                text = template.render(found.values)
            except TEMPLATE_ERRORS as error:
                log.debug("template.broke", kind=type(error).__name__)
            else:
                # The arguments of a call are JSON in JSON, which can have half of a surrogate pair.
                is_whole = found.is_whole and not is_torn(text)
                return text if is_whole else text.encode(errors="replace").decode(), is_whole
        return texts_of(conversation(endpoint, body).values["messages"]), False


def _texts_of(side: object) -> list[str]:
    """The texts of one side of pairs; of one with media only its text."""
    found = []
    for one in side if isinstance(side, list) else [side]:
        parts = one.get("content") if isinstance(one, dict) else [{"text": one}]
        texts = [part.get("text") for part in parts or () if isinstance(part, dict)]
        found.append(" ".join(text for text in texts if isinstance(text, str)))
    return found


async def loaded(load: Callable[[Model], T], model: Model) -> T:
    """What `load` reads of the model, one after the other, beside the threads that others need."""
    return await asyncio.get_running_loop().run_in_executor(_loading, load, model)


def tokenizer_file(model: Model) -> bytes | None:
    """The engine's tokenizer as a `tokenizer.json`; None if it is not known here. Slow."""
    known = _known(model, engine_tokenizer)
    return None if known is None else known.text.encode()


def _known(model: Model, load: _Load) -> EngineTokenizer | None:
    source, revision = model.source, model.revision
    if own := model.engine.get("tokenizer"):
        source, revision = str(own), model.engine.get("tokenizer_revision")
    mode = model.engine.get("tokenizer_mode", "auto")
    if is_own_mode(mode) or not any(map(ModelFiles(source, revision).find, _TOKENIZERS)):
        return None
    return load(source, revision)


def load_counter(model: Model, load: _Load = engine_tokenizer) -> Counter:
    """Read the model's tokenizer and chat template. Slow; never raises for what it finds."""
    max_len = max_model_len(model)
    nothing = Counter(None, None, max_model_len=max_len)
    try:
        known = _known(model, load)
        if known is None:
            return nothing
        tokenizer = Tokenizer.from_str(known.text)
        # Both may be left over from when it was made; the engine sets its own.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = known.splits_special
        return Counter(
            tokenizer,
            load_templates(model, known),
            max_model_len=max_len,
            lowers=ModelFiles(model.source, model.revision).lowers_texts(),
            defaults=model.engine.get("default_chat_template_kwargs"),
            images=model.image_tokens,
        )
    except Exception as error:  # noqa: BLE001  # tokenizers raises nothing narrower
        log.warning("tokenizer.unreadable", model=model.name, reason=str(error)[:300])
        return nothing
