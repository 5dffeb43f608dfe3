"""Finds or makes a model's folder while a display shows how far that is."""

from __future__ import annotations

from octavo.models.resolve import ModelFolder, resolve_model
from octavo.progress_display import Display, display_progress

_STAGES = {
    "wait": "Waiting for another process that prepares this model",
    "download": "Downloading the model",
    "verify": "Checking the download",
    "extract": "Unpacking the model",
    "convert": "Converting the model (once)",
}


class ModelProgress:
    """An `octavo.models.progress.Progress` on a display."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def __call__(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Shows the stage in words."""
        self._display.bytes_done(_STAGES.get(stage, stage), done_bytes, total_bytes)


def obtain_model(name_or_dir: str, *, is_shown: bool = True) -> ModelFolder:
    """The folder of a model, made first if need be; raises ModelError."""
    if not is_shown:
        return resolve_model(name_or_dir)
    with display_progress() as display:
        return resolve_model(name_or_dir, progress=ModelProgress(display))
