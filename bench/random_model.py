"""Makes a folder that `--load-format random` can serve: Qwen3's shapes, a byte tokenizer.

python -m bench.random_model 0.6B FOLDER
"""

import argparse
import json
from pathlib import Path

from bench.roofline import MODELS
from tests.fakes.byte_tokenizer import write_byte_tokenizer
from tests.fakes.checkpoints import TinyModel, config_of
from worker_svc.models.spec import ModelSpec


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


def main() -> None:
    """Writes one folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=tuple(MODELS))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    write_random_model(options.folder, MODELS[options.model])


if __name__ == "__main__":
    main()
