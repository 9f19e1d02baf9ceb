#!/usr/bin/env python3
"""h5py_test.py ANANKE: token stores and checkpoints are plain HDF5. h5py reads both, and the pieces of a checkpoint put
together by their attributes are what `ananke export` writes.
"""
import os
import pathlib
import struct
import subprocess
import sys
import tempfile


def find_python():
    """Starts again under ANANKE_PYTHON; leaves with 77 where it has no h5py."""
    python = os.environ.get("ANANKE_PYTHON")
    if python and not os.environ.get("ANANKE_STARTED"):
        os.environ["ANANKE_STARTED"] = "1"
        os.execv(python, [python] + sys.argv)
    try:
        import h5py  # noqa: F401
    except ImportError:
        print(f"skipped: {sys.executable} has no h5py; ANANKE_PYTHON names a Python that has it")
        sys.exit(77)


JOB = """
name: "h5py"
run_dir: "set on the command line"
model { vocab_size: 257 hidden_size: 16 num_hidden_layers: 1 num_attention_heads: 2 num_experts: 3 num_experts_per_tok: 2
        moe_intermediate_size: 8 }
training { steps: 2 sequence_length: 16 rows_per_step: 6 }
data { tokens: "%s" }
optimizer { use: "adamw" }
"""


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def safetensors(path):
    """Name -> flat f32 array, without the safetensors package."""
    import json

    import numpy
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__")
    return {name: numpy.frombuffer(data[8 + length:], "<f4")[entry["data_offsets"][0] // 4:entry["data_offsets"][1] // 4]
            for name, entry in header.items()}


def pieces(folder):
    """(parameter, state) -> flat array, put together from all files of a checkpoint."""
    import h5py
    import numpy
    whole = {}
    for path in sorted(folder.glob("rank-*.h5")):
        with h5py.File(path) as file:
            def visit(name, item):
                if not isinstance(item, h5py.Dataset):
                    return
                parameter, state = name.rsplit("/", 1)
                size = int(numpy.prod(item.attrs["shape"]))
                begin = int(item.attrs["begin"][0])
                values = whole.setdefault((parameter, state), numpy.full(size, numpy.nan, "<f4"))
                values[begin:begin + item.shape[0]] = item[:]
            file.visititems(visit)
    return whole


def main():
    import h5py
    import numpy

    ananke = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        text = "The quick brown fox jumps over the lazy dog. " * 40
        (work / "text.txt").write_text(text)
        run(ananke, "data", "import", "--output", work / "tokens.h5", work / "text.txt")
        with h5py.File(work / "tokens.h5") as file:
            assert bytes(file["tokens"][:len(text)].astype("u1")).decode() == text
            assert file["document_offsets"][0] == 0
        (work / "job.textproto").write_text(JOB % (work / "tokens.h5"))
        run(ananke, "run", work / "job.textproto", "--ranks", 3, "--run-dir", work / "run")
        run(ananke, "export", work / "run", "--output", work / "hf", "--dtype", "fp32")
        whole = pieces(work / "run/checkpoints/step-00000002")
        exported = safetensors(work / "hf/model.safetensors")
        assert sorted(exported) == sorted(p for p, state in whole if state == "weight")
        for name, values in exported.items():
            assert numpy.array_equal(values, whole[name, "weight"]), name
        for (name, state), values in whole.items():
            assert numpy.isfinite(values).all(), f"{name} {state} has elements that no file holds"
        print(f"h5py {h5py.__version__} reads the token store and {len(whole)} tensors of the checkpoint")


if __name__ == "__main__":
    find_python()
    main()
