"""Which layers slide, chunk or keep states, as the installed transformers' config classes say: layer-types.jsonl.

The file names the fields that are set; this script reads them, asks the real classes, and writes what they answer.

    python validate/layer_types.py
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).parent / "truth" / "transformers-5.23.0-layer-types.jsonl"


def main() -> None:
    """Rewrite the file's answers."""
    import transformers

    head, *rows = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
    lines = [{**head, "version": transformers.__version__}]
    for row in rows:
        fields = dict(row["config"])
        config = transformers.CONFIG_MAPPING[fields.pop("model_type")](**fields)
        lines.append({"config": row["config"], "layer_types": list(config.layer_types)})
    FILE.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
