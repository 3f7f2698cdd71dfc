"""What vLLM loads media with: it takes `data:` URLs alone, within the limits of the model.

Every place of a request in which vLLM would follow a URL goes through its connector.
"""

from typing import Any, NoReturn

from shared.openai.media import MediaLimits
from worker.row_rules import MEDIA_CONNECTOR


def register_media_connector(limits: MediaLimits) -> None:
    """Let vLLM, in this process, load media in our way where its environment names us."""
    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

    MEDIA_CONNECTOR_REGISTRY.register(MEDIA_CONNECTOR)(_connector_class(limits))


def _connector_class(limits: MediaLimits) -> type[Any]:
    from vllm.multimodal.media import MediaConnector, VideoMediaIO

    class DataConnector(MediaConnector):
        """Downloads nothing and opens no file."""

        def load_from_url(self, url: str, media_io: Any, *, fetch_timeout: Any = None) -> Any:
            _prepare(url, media_io)
            return super().load_from_url(url, media_io, fetch_timeout=fetch_timeout)

        async def load_from_url_async(
            self, url: str, media_io: Any, *, fetch_timeout: Any = None
        ) -> Any:
            _prepare(url, media_io)
            return await super().load_from_url_async(url, media_io, fetch_timeout=fetch_timeout)

        def fetch_video(self, *args: Any, video_processor: Any = None, **options: Any) -> Any:
            name = _one_name(video_processor)
            return super().fetch_video(*args, video_processor=name, **options)

        async def fetch_video_async(
            self, *args: Any, video_processor: Any = None, **options: Any
        ) -> Any:
            name = _one_name(video_processor)
            return await super().fetch_video_async(*args, video_processor=name, **options)

    def _prepare(url: str, media_io: Any) -> None:
        if url[:5].lower() != "data:":
            _refuse("The engine takes media as `data:` URLs only.")
        if isinstance(media_io, VideoMediaIO):
            media_io.video_loader = _bounded(media_io.video_loader, limits)

    return DataConnector


def _one_name(video_processor: Any) -> str | None:
    """The name of the model's video processor.

    Where a model's files name none, as those of Qwen2-VL, vLLM 0.29 has what transformers says of
    its architecture, which in 5.23 is a name for each library: vLLM would fail with a 500.
    """
    if isinstance(video_processor, dict):
        return next((name for name in video_processor.values() if name), None)
    return None if video_processor is None else str(video_processor)


def _bounded(loader: Any, limits: MediaLimits) -> Any:
    """A loader of the same kind that looks at what a video says of itself, and then decodes it.

    vLLM itself bounds the pixels of images and of frames, and the seconds and bytes of sounds.
    """
    kind = type(loader)

    def prepare(cls: Any, source: Any) -> Any:
        found = super(bounded, cls)._prepare_source(source)
        if found.total_frames_num > limits.frames:
            _refuse(
                f"The video has {found.total_frames_num} frames, and a video of this model may "
                f"have {limits.frames}. Send a shorter one."
            )
        if found.duration > limits.seconds:
            _refuse(
                f"The video is {found.duration:.0f} seconds long, and a video of this model may "
                f"have {limits.seconds}. Send a shorter one."
            )
        return found

    bounded: Any = type(kind.__name__, (kind,), {"_prepare_source": classmethod(prepare)})
    return bounded()


def _refuse(message: str) -> NoReturn:
    from vllm.exceptions import VLLMValidationError

    raise VLLMValidationError(message, parameter="messages")
