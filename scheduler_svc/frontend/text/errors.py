"""What can be wrong with a checkpoint's text files or with a conversation.

TextError
 +-- TokenizerFileInvalid   a file of the model folder is missing or breaks a rule
 +-- ChatInvalid            the messages or template variables of a request break a rule
"""

from __future__ import annotations

from pathlib import Path


class TextError(Exception):
    """Text cannot be turned into token ids; the message names the file or field and the rule."""


class TokenizerFileInvalid(TextError):
    """A file of the model folder is missing or breaks a rule."""

    def __init__(self, path: Path, rule: str) -> None:
        super().__init__(f"{path}: {rule}")
        self.path = path
        self.rule = rule


class ChatInvalid(TextError):
    """A field of the conversation breaks a rule; `field` is relative to the chat prompt."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule
