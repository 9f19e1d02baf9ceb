#!/usr/bin/env python3
"""Writes the data sets of tests/golden/megatron with Megatron-LM's own writer.

Usage: make_megatron.py megatron/core/datasets/indexed_dataset.py FOLDER     (needs numpy)

The file is taken alone, of megatron-core or a clone of it: writing needs nothing of what it imports, torch included.
"""

import importlib.util
import sys
from pathlib import Path
from unittest.mock import MagicMock


def load(path):
    for name in (
        "torch",
        "torch.utils.data",
        "megatron",
        "megatron.core",
        "megatron.core.datasets",
        "megatron.core.datasets.object_storage_utils",
        "megatron.core.msc_utils",
        "megatron.core.utils",
    ):
        sys.modules[name] = MagicMock()
    sys.modules["torch"].utils.data.Dataset = object
    sys.modules["megatron.core.msc_utils"].MultiStorageClientFeature.is_enabled = lambda: False
    spec = importlib.util.spec_from_file_location("indexed_dataset", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def token(document, sequence, i, vocabulary):
    return (document * 7919 + sequence * 131 + i * i) % vocabulary


# Lengths of each document's sequences.
SHAPE = [[5], [3, 1, 4], [], [1], [0], [700, 2], [9]]


def write(module, prefix, first, last, vocabulary):
    builder = module.IndexedDatasetBuilder(f"{prefix}.bin", dtype=module.DType.optimal_dtype(vocabulary))
    for document in range(first, last):
        lengths = SHAPE[document]
        tokens = [token(document, s, i, vocabulary) for s, length in enumerate(lengths) for i in range(length)]
        builder.add_document(tokens, lengths)
    return builder


def main():
    module, folder = load(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for vocabulary in (50000, 200000):  # uint16 and int32
        prefix = str(folder / f"vocabulary-{vocabulary}")
        write(module, prefix, 0, len(SHAPE), vocabulary).finalize(f"{prefix}.idx")
    # Two halves, the second merged into the first as Megatron's merge_datasets.py does it.
    prefix, other = str(folder / "merged"), str(folder / "half")
    builder = write(module, prefix, 0, 3, 50000)
    write(module, other, 3, len(SHAPE), 50000).finalize(f"{other}.idx")
    builder.add_index(other)
    builder.finalize(f"{prefix}.idx")
    for suffix in (".bin", ".idx"):
        Path(other + suffix).unlink()


if __name__ == "__main__":
    main()
