"""Makes a folder that `--load-format random` can serve: Qwen3's shapes and a tokenizer as large.

python -m bench.random_model 0.6B FOLDER
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from bench.roofline import MODELS
from tests.fakes.byte_tokenizer import NUM_IDS, write_byte_tokenizer
from tests.fakes.checkpoints import TinyModel, config_of
from worker_svc.models.spec import ModelSpec

_LETTERS = "etaoinshrdlucmfw"


def write_random_model(folder: Path, spec: ModelSpec) -> None:
    """Write config.json and the tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    model = TinyModel(
        family="qwen3",
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        max_position_embeddings=spec.max_position_embeddings,
        tied=spec.has_tied_head,
        rope_theta=1e6,
        stored_dtype="bfloat16",
    )
    (folder / "config.json").write_text(json.dumps(config_of(model), indent=1), encoding="utf-8")
    write_byte_tokenizer(folder)
    _add_words(folder / "tokenizer.json", NUM_IDS, spec.vocab_size)


def _add_words(tokenizer: Path, first_id: int, num_ids: int) -> None:
    """Gives every further id a word.

    With bytes alone, a random token would often be the beginning of a character, which a stream
    has to hold back, and the times of tokens would not be those of a real model's.
    """
    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    words = zip(range(first_id, num_ids), _words(), strict=False)
    content["model"]["vocab"].update({word: index for index, word in words})
    tokenizer.write_text(json.dumps(content), encoding="utf-8")


def _words() -> Iterator[str]:
    for length in itertools.count(2):
        for letters in itertools.product(_LETTERS, repeat=length):
            yield "Ġ" + "".join(letters)


def main() -> None:
    """Writes one folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=tuple(MODELS))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    write_random_model(options.folder, MODELS[options.model])


if __name__ == "__main__":
    main()
